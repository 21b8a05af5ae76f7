"""Live text out of any `model.generate` of your own, for programs that use transformers directly.

Knows no engine. `generate` calls `put` and `end` (transformers takes any object that has both); one streamer serves
one call. Threading: iterate in one thread while `generate` runs in another; `cancel` may come from anywhere. A second
computing thread can slow the first one down: an engine of this project has only one, these helpers cannot promise it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TextIO

import torch
from transformers import GenerationMixin, PreTrainedTokenizerBase, StoppingCriteria

from streaming.beams import BeamSearch
from streaming.detokenizer import Detokenizer


class GenerationCancelled(Exception):
    """Raised out of `generate` by a streamer that was cancelled: the only way that ends it within one step."""


class Streamer(Protocol):
    """What `generate` takes as `streamer`. `put` gets the prompt first, [1, L], then [1] or [n] or [1, n] new ids."""

    def put(self, value: torch.Tensor) -> None: ...

    def end(self) -> None: ...


class _TextStreamer:
    """A streamer that turns ids into text; a subclass says where the text goes.

    `put` raises ValueError for a batch, and RuntimeError for a second `generate` with the same streamer.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, skip_prompt: bool = True, *, skip_special_tokens: bool = True
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._skip_next = skip_prompt
        self._ended = False

    def put(self, value: torch.Tensor) -> None:
        if self._ended:
            raise RuntimeError("This streamer has ended: make a new one for each call of generate.")
        ids = _one_sequence(value)
        if self._skip_next:
            self._skip_next = False
            return
        if text := self._detokenizer.add(ids):
            self._write(text)

    def end(self) -> None:
        """Show the rest. More calls do nothing."""
        if self._ended:
            return
        self._ended = True
        if text := self._detokenizer.finish():
            self._write(text)
        self._close()

    def _write(self, text: str) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class IteratorStreamer(_TextStreamer):
    """Iterates over the text while `generate` runs in another thread. One consumer.

    Special tokens are left out, as the end of the answer is, but with skip_special_tokens=False.
    Who runs `generate` hands its exception to `fail`, or the consumer would wait for ever; generate_stream does so.
    `timeout`: seconds without new text after which the iteration raises TimeoutError.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        skip_prompt: bool = True,
        timeout: float | None = None,
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        super().__init__(tokenizer, skip_prompt, skip_special_tokens=skip_special_tokens)
        self._timeout = timeout
        self._texts: SimpleQueue[str | None] = SimpleQueue()  # None: nothing follows
        self._exhausted = False
        self._cancelled = threading.Event()
        self.failure: BaseException | None = None  # what generate raised, until the consumer has got it

    def put(self, value: torch.Tensor) -> None:
        """Read more ids; raises GenerationCancelled after `cancel`, which ends `generate` within one step."""
        if self._cancelled.is_set():
            raise GenerationCancelled
        super().put(value)

    def fail(self, error: BaseException) -> None:
        """End with this exception: the consumer gets all text so far, and then the exception itself."""
        self.failure = error
        self.end()

    def cancel(self) -> None:
        """End the iteration after the text so far, and `generate` at its next `put`. Any thread, any time."""
        self._cancelled.set()
        self._texts.put(None)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = None if self._exhausted else self._next_text()
        if text is not None:
            return text
        self._exhausted = True
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        raise StopIteration

    def _next_text(self) -> str | None:
        try:
            return self._texts.get(timeout=self._timeout)
        except Empty as error:
            raise TimeoutError(f"The model has written nothing for {self._timeout:g} seconds.") from error

    def _write(self, text: str) -> None:
        self._texts.put(text)

    def _close(self) -> None:
        self._texts.put(None)


class BeamStreamer(IteratorStreamer):
    """Iterates over the text on which all beams of a `generate(num_beams=...)` agree: it never changes any more.

    `generate` takes no streamer with beams: hand this over as `custom_generate`. After each piece, which may be empty,
    `tentative` is how the best beam goes on, which another one may still overtake. For one prompt; beams in groups or
    under constraints are refused (ValueError).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, timeout: float | None = None) -> None:
        super().__init__(tokenizer, skip_prompt=False, timeout=timeout)
        self._tails: SimpleQueue[str] = SimpleQueue()  # one for each text
        self._tail = ""
        self.tentative = ""

    def __call__(self, model: Any, input_ids: torch.Tensor, **settings: Any) -> Any:
        """What `generate` calls to run its decoding loop. Ends within one step of a `cancel`."""
        if self._ended:
            raise RuntimeError("This streamer has ended: make a new one for each call of generate.")
        made = BeamSearch(self._step)(model, input_ids, **settings)
        self.end()
        return made

    def _step(self, settled: list[int], leading: list[int]) -> bool:
        if self._cancelled.is_set():
            return True
        text = self._detokenizer.add(settled)
        trial = self._detokenizer.fork()
        tail = trial.add(leading) + trial.finish() if leading else ""
        if text or tail != self._tail:
            self._tail = tail
            self._write(text)
        return False

    def end(self) -> None:
        self._tail = ""
        super().end()

    def _write(self, text: str) -> None:
        self._tails.put(self._tail)
        super()._write(text)

    def _next_text(self) -> str | None:
        text = super()._next_text()
        self.tentative = "" if text is None else self._tails.get()
        return text


class PrintStreamer(_TextStreamer):
    """Prints the text as it comes, to the terminal or to `file`, and a newline at the end."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, file: TextIO | None = None, *, skip_prompt: bool = True
    ) -> None:
        super().__init__(tokenizer, skip_prompt)
        self._file = file

    def _write(self, text: str) -> None:
        print(text, end="", flush=True, file=self._file)

    def _close(self) -> None:
        print(flush=True, file=self._file)


class StreamCallback(StoppingCriteria):
    """Calls `fn` with the new ids of each step; its True stops `generate`, its exception leaves it.

    The first call of a StoppingCriteria does not say where the prompt ended. One new id is assumed, which is right but
    under speculation (assistant model, prompt lookup): give `prompt_tokens` there. Not for batches and beams.
    """

    def __init__(self, fn: Callable[[list[int]], object], prompt_tokens: int | None = None) -> None:
        self._fn = fn
        self._seen = prompt_tokens

    def __call__(
        self,
        input_ids: torch.LongTensor,
        scores: tuple[torch.Tensor] | None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> torch.BoolTensor:
        ids = _one_sequence(input_ids)
        seen = len(ids) - 1 if self._seen is None else self._seen
        if seen >= len(ids):
            raise RuntimeError("A StreamCallback serves one call of generate: make a new one for each.")
        self._seen = len(ids)
        stop = self._fn(ids[seen:]) is True
        return torch.full((1,), stop, dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]


@contextmanager
def generate_stream(
    model: GenerationMixin, tokenizer: PreTrainedTokenizerBase, **generate_kwargs: Any
) -> Iterator[IteratorStreamer]:
    """Run `model.generate(**generate_kwargs)` in a thread and iterate over the text of its answer.

    with generate_stream(model, tokenizer, **inputs, max_new_tokens=50) as texts:
        for text in texts: ...

    The exception that `generate` raises is raised by the iteration, or on leaving if that was not reached. Leaving the
    block stops the model within one step and joins its thread: never do that on an event loop. A `streamer` of your
    own gets the same ids beside this one; `stopping_criteria` and all the rest go to `generate` as they are. Settings
    that torch keeps for each thread, such as autocast, do not reach it. With several beams it is a BeamStreamer.
    """
    texts: IteratorStreamer
    if _num_beams(model, generate_kwargs) > 1 and not {"streamer", "custom_generate"} & generate_kwargs.keys():
        texts = generate_kwargs["custom_generate"] = BeamStreamer(tokenizer)
    else:
        texts = IteratorStreamer(tokenizer)
        other: Streamer | None = generate_kwargs.pop("streamer", None)
        generate_kwargs["streamer"] = texts if other is None else _Both(texts, other)
    if _needs_tokenizer(model, generate_kwargs):
        generate_kwargs.setdefault("tokenizer", tokenizer)

    def generate() -> None:
        try:
            model.generate(**generate_kwargs)
            texts.end()
        except GenerationCancelled:
            texts.end()
        except BaseException as error:
            texts.fail(error)

    thread = threading.Thread(target=generate, name="generate_stream", daemon=True)
    thread.start()
    try:
        yield texts
    finally:
        texts.cancel()
        thread.join()
    if texts.failure is not None:
        raise texts.failure


class _Both:
    """Two streamers of one `generate`."""

    def __init__(self, first: Streamer, second: Streamer) -> None:
        self._first = first
        self._second = second

    def put(self, value: torch.Tensor) -> None:
        self._first.put(value)
        self._second.put(value)

    def end(self) -> None:
        self._first.end()
        self._second.end()


def _one_sequence(value: torch.Tensor) -> list[int]:
    """The ids of [n] or [1, n]. Raises ValueError for more than one row."""
    if value.dim() > 1:
        rows = value.shape[0]
        if rows != 1:
            raise ValueError(f"Only one sequence can be streamed, and this batch has {rows}: generate them one by one.")
        value = value[0]
    ids: list[int] = value.tolist()
    return ids


def _needs_tokenizer(model: GenerationMixin, kwargs: dict[str, Any]) -> bool:
    """Whether `generate` has to be told the tokenizer: a stand-in with a `generate` of its own may not take one."""
    own = getattr(model, "generation_config", None)
    named = {"stop_strings", "token_healing", "assistant_tokenizer", "generation_config"} & kwargs.keys()
    return bool(named) or bool(getattr(own, "stop_strings", None))


def _num_beams(model: GenerationMixin, kwargs: dict[str, Any]) -> int:
    """Of the first who says: the call, the config that goes with it, the model's own."""
    configs = (kwargs.get("generation_config"), getattr(model, "generation_config", None))
    said = (kwargs.get("num_beams"), *(getattr(config, "num_beams", None) for config in configs))
    return next((beams for beams in said if beams), 1)
