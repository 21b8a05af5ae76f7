"""A transformers pipeline whose call takes `stream=True`, and then gives the text while the model writes it.

All that a call without it does is transformers' own. Knows no engine. Threading: the model of a stream computes in one
thread of the pipeline's, which lives as long as the pipeline; streams of one pipeline wait for each other there.
"""

import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

import torch
import transformers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TextGenerationPipeline
from transformers.pipelines.text_generation import ReturnType

from streaming import models
from streaming.beams import BeamSearch
from streaming.stops import StopMatcher
from streaming.streamers import GenerationCancelled, IteratorStreamer, Streamer

Texts = Generator[str, None, None]
Job = Callable[[], None]


class Piece(NamedTuple):
    """Text of the answer to one of several prompts, and that prompt's place among them."""

    prompt: int
    text: str


Pieces = Generator[Piece, None, None]


def pipeline(task: str = "text-generation", model: Any = None, **kwargs: Any) -> "StreamingPipeline":
    """`transformers.pipeline` for text generation, with a `stream` in its call. Takes the same arguments.

    The model may also be "starter". Raises ValueError for another task.
    """
    if task != "text-generation":
        raise ValueError(f"Only text can be streamed, by the task text-generation, and this is {task}.")
    if model == models.STARTER:
        model = str(models.prepare(model, cache_dir=None, progress=lambda _: None).path)
    made = transformers.pipeline("text-generation", model, pipeline_class=StreamingPipeline, **kwargs)
    return cast(StreamingPipeline, made)


class StreamingPipeline(TextGenerationPipeline):
    """transformers' own, until it is called with `stream=True`.

    for text in pipe("Once", stream=True): ...
    for text in pipe([{"role": "user", "content": "Hello"}], stream=True): ...
    for prompt, text in pipe(["Once", "Twice"], stream=True): ...  # prompt is 0 or 1

    The pieces of an answer, joined, are the generated_text that the same call gives with return_full_text=False; but
    stop strings, also those of a stop_sequence, end the text before them, under every strategy. With num_beams, a
    piece is what all beams agree on. Several prompts are answered one after the other, whatever the batch_size.

    Nothing is computed before the first piece is asked for; the exception that the model raises is raised there.
    Closing the iterator, or dropping it, stops the model within one step. Settings that torch keeps for each thread,
    such as autocast, do not reach a stream.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._lane = _Lane()
        weakref.finalize(self, self._lane.end)

    def __call__(self, text_inputs: Any, *, stream: bool = False, **kwargs: Any) -> Any:  # type: ignore[override]
        """Texts or Pieces with `stream`, without it what transformers says."""
        if not stream:
            return super().__call__(text_inputs, **kwargs)
        if isinstance(text_inputs, str) or _is_chat(text_inputs):
            return self._texts(text_inputs, self._live(kwargs), kwargs)
        if not isinstance(text_inputs, Sequence):
            raise TypeError(f"A stream needs a text, a chat or a list of them, not a {type(text_inputs).__name__}.")
        return self._pieces(text_inputs, [self._live(kwargs) for _ in text_inputs], kwargs)

    def _live(self, kwargs: Mapping[str, Any]) -> "_Live":
        """What turns ids into text, as this call wants it. Raises ValueError for what a stream cannot give."""
        _, _, asked = self._sanitize_parameters(**kwargs)  # type: ignore[no-untyped-call]
        if asked.get("return_type", ReturnType.NEW_TEXT) != ReturnType.NEW_TEXT:
            raise ValueError("A stream gives new text only: leave out return_tensors, return_full_text and the like.")
        settings = {**self._postprocess_params, **asked}
        tokenizer: Any = self.tokenizer
        if _tidies(tokenizer, settings.get("clean_up_tokenization_spaces")):
            raise ValueError(
                "This tokenizer tidies spaces away when the text is whole, which a stream cannot: "
                "pass clean_up_tokenization_spaces=False."
            )
        skip = settings.get("skip_special_tokens", True) and not getattr(tokenizer, "response_template", None)
        return _Live(tokenizer, kwargs.get("streamer"), skip_special_tokens=skip)

    def _texts(self, prompt: Any, live: "_Live", kwargs: dict[str, Any]) -> Texts:
        with self._lane.running(lambda: self._answer([prompt], [live], kwargs), [live]):
            yield from live

    def _pieces(self, prompts: Sequence[Any], lives: "list[_Live]", kwargs: dict[str, Any]) -> Pieces:
        with self._lane.running(lambda: self._answer(prompts, lives, kwargs), lives):
            for index, live in enumerate(lives):
                for text in live:
                    yield Piece(index, text)

    def _answer(self, prompts: Sequence[Any], lives: "list[_Live]", kwargs: dict[str, Any]) -> None:
        """In the lane's thread. Whatever is raised goes to the reader, after the text that came before it."""
        for prompt, live in zip(prompts, lives, strict=True):
            try:
                super().__call__(prompt, **{**kwargs, "streamer": live})
            except GenerationCancelled:
                pass  # by the reader, or by a stop string
            except BaseException as error:
                live.fail(error)
                return
            live.end()

    def _forward(self, model_inputs: Any, **generate_kwargs: Any) -> Any:  # type: ignore[override]
        """The one place where all settings have come together: of the call, of the pipeline, of the model."""
        live = generate_kwargs.get("streamer")
        if isinstance(live, _Live):
            live.prompt_is_text(model_inputs["input_ids"].shape[-1] == 0)
            asked = self._get_set_generation_params(self._prepare_generate_kwargs(generate_kwargs))
            if (stops := asked.get("stop_strings")) is not None:
                live.stop_at(stops)
                generate_kwargs["stop_strings"] = None
            if (asked.get("num_beams") or 1) > 1:
                del generate_kwargs["streamer"]  # refused with beams
                generate_kwargs["custom_generate"] = live.search
        return super()._forward(model_inputs, **generate_kwargs)  # type: ignore[no-untyped-call]


class _Live(IteratorStreamer):
    """The text of one answer up to a stop string, for a reader in another thread. `own` gets the same ids as this."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, own: Streamer | None, *, skip_special_tokens: bool) -> None:
        super().__init__(tokenizer, skip_special_tokens=skip_special_tokens)
        self._own = own
        self._stops = StopMatcher(())

    def prompt_is_text(self, shown: bool) -> None:
        """An empty prompt becomes the token that begins a text, and transformers counts that as generated."""
        self._skip_next = not shown

    def stop_at(self, stops: Sequence[str]) -> None:
        """transformers itself would show the stop, and under speculation miss it: it looks at the last token only."""
        self._stops = StopMatcher(stops)

    def search(self, model: Any, input_ids: torch.Tensor, **settings: Any) -> Any:
        """The decoding loop of a beam search, instead of the library's, which would not show it."""
        self.put(input_ids[:1])
        return BeamSearch(self._settle)(model, input_ids, **settings)

    def _settle(self, settled: list[int], _: list[int]) -> bool:
        try:
            self.put(torch.tensor(settled, dtype=torch.long))
        except GenerationCancelled:
            return True
        return False

    def put(self, value: torch.Tensor) -> None:
        super().put(value)
        if self._own is not None:
            self._own.put(value)
        if self._stops.stopped is not None:
            raise GenerationCancelled

    def _write(self, text: str) -> None:
        if certain := self._stops.add(text):
            super()._write(certain)

    def _close(self) -> None:
        if rest := self._stops.finish():
            super()._write(rest)
        super()._close()
        if self._own is not None:
            self._own.end()


class _Lane:
    """One thread that does one job after the other: started by the first, ended with the pipeline, alone in a copy."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[None], Job] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._streams: list[Sequence[_Live]] = []

    def __reduce__(self) -> tuple[type["_Lane"], tuple[()]]:
        return _Lane, ()

    @contextmanager
    def running(self, job: Job, lives: Sequence[_Live]) -> Iterator[None]:
        """While the job waits or runs; leaving cancels it, and waits until the model has really stopped."""
        future: Future[None] = Future()
        self._jobs.put((future, job))
        with self._lock:
            self._streams.append(lives)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads
                self._thread = threading.Thread(target=_work, args=(self._jobs,), name="pipeline", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            _cancel(lives)
            if not future.cancel():
                wait([future])
            with self._lock:
                self._streams.remove(lives)

    def end(self) -> None:
        """With the pipeline or the interpreter, which must not end while torch computes in a thread: that aborts."""
        with self._lock:
            for lives in self._streams:
                _cancel(lives)
            thread = self._thread
        self._jobs.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _cancel(lives: Sequence[_Live]) -> None:
    for live in lives:
        live.cancel()


def _work(jobs: "SimpleQueue[tuple[Future[None], Job] | None]") -> None:
    """Keeps nothing of a job that is done: it holds the pipeline, whose end is the end of this thread."""
    while (item := jobs.get()) is not None:
        future, job = item
        if future.set_running_or_notify_cancel():
            job()
            future.set_result(None)
        del item, future, job


def _is_chat(inputs: Any) -> bool:
    return isinstance(inputs, Sequence) and bool(inputs) and isinstance(inputs[0], Mapping)


def _tidies(tokenizer: PreTrainedTokenizerBase, asked: bool | None) -> bool:
    """Whether `decode` changes spaces of a whole text. It does not for BPE, whatever it is told."""
    bpe = isinstance(tokenizer, PreTrainedTokenizerFast) and isinstance(tokenizer.backend_tokenizer.model, BPE)
    forced = tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    return bool(tokenizer.clean_up_tokenization_spaces if asked is None else asked) and (forced or not bpe)
