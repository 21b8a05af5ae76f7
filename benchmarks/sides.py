"""Who a benchmark of many answers compares: our engine, the textbook pattern, any server that speaks OpenAI's API.

The first two compute each in a process of its own, since computing threads of one process slow each other down. One
side works at a time: the others wait, and take no core.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

from benchmarks.textbook import Textbook
from streaming import models
from streaming.config import Config
from streaming.engines import open_engine
from streaming.engines.base import Generation, Item
from streaming.errors import StreamingError
from streaming.events import Finished, ReasoningDelta, TextDelta
from streaming.messages import Message, Sampling

Chat = Sequence[Message]


@dataclass(slots=True)
class Sample:
    """One answer: seconds from the request to the first text and to the end, tokens, and the text."""

    first_s: float = 0.0
    whole_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    text: str = field(default="", repr=False)


class Side(Protocol):
    name: str

    def ask(self, chats: Sequence[Chat], new_tokens: int) -> list[Sample]:
        """The greedy answers to all, asked at the same moment by different people."""

    def end(self) -> None: ...


class Ours:
    """Our engine in this process."""

    def __init__(self, model: str, *, batching: str = "auto", weights: str = "full") -> None:
        self._engine = open_engine(Config(model=model, batching=batching, weights=weights))
        status = self._engine.wait_ready()
        if status.state != "ready":
            raise RuntimeError(status.detail)

    def ask(self, chats: Sequence[Chat], new_tokens: int) -> list[Sample]:
        sampling = Sampling(temperature=0, max_new_tokens=new_tokens)
        readers = [_Reader(self._engine.stream(chat, sampling, user=str(place))) for place, chat in enumerate(chats)]
        return [reader.sample() for reader in readers]


class OneByOne(Ours):
    """Our engine without its batch: the lane that answers one at a time."""

    def __init__(self, model: str) -> None:
        super().__init__(model, batching="off")


class InEightBits(Ours):
    """Our engine with weights of 8 bits."""

    def __init__(self, model: str) -> None:
        super().__init__(model, weights="int8")


class _Reader:
    """Takes the time of what a generation delivers, in the engine's own thread."""

    def __init__(self, generation: Generation) -> None:
        self._start = time.perf_counter()
        self._ended = threading.Event()
        self._sample = Sample()
        self._error: StreamingError | None = None
        generation.subscribe(self._listen)

    def _listen(self, item: Item) -> None:
        sample, now = self._sample, time.perf_counter() - self._start
        if isinstance(item, TextDelta | ReasoningDelta):
            sample.first_s = sample.first_s or now
            sample.text += item.text
        elif isinstance(item, Finished):
            sample.whole_s = now
            sample.tokens = item.usage.completion_tokens
            sample.prompt_tokens, sample.cached_tokens = item.usage.prompt_tokens, item.usage.cached_tokens
            self._ended.set()
        elif isinstance(item, StreamingError):
            self._error = item
            self._ended.set()

    def sample(self) -> Sample:
        self._ended.wait()
        if self._error is not None:
            raise RuntimeError(str(self._error))
        return self._sample


class ManyTextbooks:
    """A thread each, as the textbook has it. Its tokens are counted in its text."""

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer

        folder = models.prepare(model, cache_dir=None, progress=lambda _: None).path
        self._textbook = Textbook(folder)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def ask(self, chats: Sequence[Chat], new_tokens: int) -> list[Sample]:
        def answer(chat: Chat) -> Iterator[str]:
            return self._textbook.stream(chat[-1].content, new_tokens)

        samples = _by_threads([answer(chat) for chat in chats])
        for sample in samples:
            sample.tokens = len(self._tokenizer(sample.text, add_special_tokens=False)["input_ids"])
        return samples


class Server:
    """Any server that speaks OpenAI's API, with the first model that it lists (one of a single model may list none)."""

    def __init__(self, base_url: str, api_key: str, name: str) -> None:
        from openai import OpenAI

        self.name = name
        self._client = OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=600)
        self._model = next((model.id for model in self._client.models.list()), "model")

    def ask(self, chats: Sequence[Chat], new_tokens: int) -> list[Sample]:
        usages: list[Any] = [None] * len(chats)

        def answer(place: int) -> Iterator[str]:
            messages: Any = [{"role": message.role, "content": message.content} for message in chats[place]]
            stream = self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                max_tokens=new_tokens,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            for chunk in stream:
                usages[place] = chunk.usage or usages[place]
                for choice in chunk.choices:
                    yield choice.delta.content or ""

        samples = _by_threads([answer(place) for place in range(len(chats))])
        for sample, usage in zip(samples, usages, strict=True):
            sample.tokens, sample.prompt_tokens = usage.completion_tokens, usage.prompt_tokens
            details = usage.prompt_tokens_details
            sample.cached_tokens = (details.cached_tokens or 0) if details is not None else 0
        return samples

    def end(self) -> None:
        self._client.close()


def _by_threads(answers: list[Iterator[str]]) -> list[Sample]:
    samples = [Sample() for _ in answers]
    start = time.perf_counter()

    def read(answer: Iterator[str], sample: Sample) -> None:
        for text in answer:
            sample.text += text
            if text:
                sample.first_s = sample.first_s or time.perf_counter() - start
        sample.whole_s = time.perf_counter() - start

    threads = [threading.Thread(target=read, args=pair) for pair in zip(answers, samples, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(sample.whole_s for sample in samples):
        raise RuntimeError("An answer broke off: see above.")
    return samples


class Child:
    """A side in a process of its own: `kind` is Ours or ManyTextbooks."""

    def __init__(self, name: str, kind: type[Ours] | type[ManyTextbooks], model: str) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(kind, model, there), daemon=True)
        self._process.start()
        there.close()  # the child has the only one: if it dies, receiving ends instead of waiting for ever

    def ask(self, chats: Sequence[Chat], new_tokens: int) -> list[Sample]:
        self._pipe.send((chats, new_tokens))
        samples: list[Sample] = self._pipe.recv()
        return samples

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve(kind: type[Ours] | type[ManyTextbooks], model: str, pipe: Connection) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    side = kind(model)
    while (question := pipe.recv()) is not None:
        pipe.send(side.ask(*question))
