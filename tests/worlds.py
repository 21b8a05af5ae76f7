"""Engines to test, each with what is known of it beforehand: how it answers, and how to make it fail.

A Reader is a consumer that tests can stop in its tracks: its hook runs in the engine's thread.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import openai
import pytest

from streaming.config import Config
from streaming.engines.base import Engine, Generation, Item
from streaming.engines.remote import RemoteEngine
from streaming.engines.script import Fail, ReadPrompt, Say, Step
from streaming.engines.scripted import ScriptedEngine
from streaming.errors import StreamingError
from streaming.events import Event, Finished, Queued, ReasoningDelta, TextDelta
from streaming.messages import Message, Sampling
from streaming.reasoning import ReasoningParser
from tests.serving import serve_engine

TIMEOUT_S = 120
Hook = Callable[[Generation, Item], None]
GREEDY = Sampling(temperature=0, max_new_tokens=20)


class Reader:
    """Keeps what a generation delivers. `hook` gets each item first, and may cancel, raise or wait there."""

    def __init__(self, generation: Generation, hook: Hook) -> None:
        self.generation = generation
        self.items: list[Item] = []
        self._hook = hook
        self._ended = threading.Event()
        generation.subscribe(self._listen)

    def _listen(self, item: Item) -> None:
        self.items.append(item)
        self._hook(self.generation, item)
        if isinstance(item, Finished | StreamingError):
            self._ended.set()

    def wait(self) -> "Reader":
        assert self._ended.wait(TIMEOUT_S), f"no end came, only {self.items}"
        return self

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.items if isinstance(item, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(item.text for item in self.items if isinstance(item, ReasoningDelta))

    @property
    def positions(self) -> list[int]:
        return [item.position for item in self.items if isinstance(item, Queued)]

    @property
    def finished(self) -> Finished:
        assert isinstance(self.items[-1], Finished), self.items[-1]
        return self.items[-1]

    @property
    def error(self) -> StreamingError:
        assert isinstance(self.items[-1], StreamingError), self.items[-1]
        return self.items[-1]


class Gate:
    """A hook that holds the engine's thread at the first token of an answer until it is opened."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def __call__(self, generation: Generation, item: Item) -> None:
        if isinstance(item, TextDelta | ReasoningDelta):
            self._reached.set()
            assert self._open.wait(TIMEOUT_S)

    def wait(self) -> None:
        assert self._reached.wait(TIMEOUT_S)

    def open(self) -> None:
        self._open.set()


class Report:
    """What is to hear of a switch."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[StreamingError | None] = queue.SimpleQueue()

    def __call__(self, error: StreamingError | None) -> None:
        self._told.put(error)

    def wait(self) -> StreamingError | None:
        return self._told.get(timeout=TIMEOUT_S)


class World(Protocol):
    """An engine that is ready. `expected` is its greedy answer, `going_on` the rest of one that has begun, or of a text
    alone; within `failing(n)` its nth token raises, and `cause` is what the error then comes from."""

    engine: Engine
    cause: type[Exception]

    def fresh(self) -> Engine: ...

    def close(self) -> None: ...

    def expected(self, text: str, max_new_tokens: int = 20) -> str: ...

    def going_on(self, text: str, begun: str | None, max_new_tokens: int = 20) -> str: ...

    def failing(self, token: int) -> Any: ...


def cancel_at(kind: type[Event], count: int = 1) -> Hook:
    """Cancel at the `count`th event of a kind, from the engine's thread."""
    left = count

    def hook(generation: Generation, item: Item) -> None:
        nonlocal left
        if isinstance(item, kind):
            left -= 1
            if left == 0:
                generation.cancel()

    return hook


def nothing(generation: Generation, item: Item) -> None: ...


def ask(engine: Engine, text: str, sampling: Sampling = GREEDY, *, hook: Hook = nothing, user: str = "") -> Reader:
    return Reader(engine.stream([Message("user", text)], sampling, user=user), hook)


class ScriptedWorld:
    """Answers with numbered words in which the question is."""

    cause = RuntimeError

    def __init__(self) -> None:
        self._fail_at: int | None = None
        self.engine = self.fresh()

    def fresh(self) -> ScriptedEngine:
        return ScriptedEngine(self._script)

    def close(self) -> None:
        self.engine.close()

    def _script(self, messages: Sequence[Message]) -> Iterator[Step]:
        yield ReadPrompt(0.004, chunks=4)
        words = [f"{_short(messages[-1].content)}-{number} " for number in range(2000)]
        if self._fail_at is not None:
            yield Say("".join(words[: self._fail_at - 1]))
            yield Fail("broken on purpose")
        yield Say("".join(words), tokens_per_s=1000)

    def expected(self, text: str, max_new_tokens: int = 20) -> str:
        return "".join(f"{_short(text)}-{number} " for number in range(max_new_tokens))

    def going_on(self, text: str, begun: str | None, max_new_tokens: int = 20) -> str:
        first = 0 if begun is None or begun.startswith("<think>") else len(begun.split())
        return "".join(f"{_short(text)}-{number} " for number in range(first, first + max_new_tokens))

    @contextmanager
    def failing(self, token: int) -> Iterator[None]:
        self._fail_at = token
        yield
        self._fail_at = None


def _short(text: str) -> str:
    return text.replace(" ", "")[:5]


class LocalWorld:
    """A model in a folder. What it answers is asked of plain `generate`, with a model of its own."""

    cause = RuntimeError

    def __init__(self, folder: Path, batching: str = "off", kv_cache_gb: float = 0.2) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from streaming.engines.local import LocalEngine

        self._folder = folder
        self._batching = batching
        self._kv_cache_gb = kv_cache_gb
        self._expected: dict[tuple[str, int], str] = {}
        self._engine_kind = LocalEngine
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.engine = self.fresh()
        status = self.engine.wait_ready(TIMEOUT_S)
        assert status.state == "ready", status

    def fresh(self) -> Any:
        return self._engine_kind(
            Config(model=str(self._folder), batching=self._batching, kv_cache_gb=self._kv_cache_gb)
        )

    def close(self) -> None:
        self.engine.close()

    def prompt(self, text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return list(ids)

    def expected(self, text: str, max_new_tokens: int = 20) -> str:
        if (text, max_new_tokens) not in self._expected:
            self._expected[text, max_new_tokens] = self.plainly(text, max_new_tokens)
        return self._expected[text, max_new_tokens]

    def going_on(self, text: str, begun: str | None, max_new_tokens: int = 20) -> str:
        begun_ids = self.tokenizer(begun or "", add_special_tokens=False)["input_ids"]
        prompt = self.prompt(text) + begun_ids if begun is not None else self.tokenizer(text)["input_ids"]
        return self._generate(prompt, do_sample=False, max_new_tokens=max_new_tokens)

    def plainly(self, text: str, max_new_tokens: int, **settings: Any) -> str:
        """The answer of plain `generate`, by default a greedy one."""
        settings = {"do_sample": False, "max_new_tokens": max_new_tokens} | settings
        parser = ReasoningParser()
        whole = self._generate(self.prompt(text), **settings)
        return "".join(part for kind, part in parser.add(whole) + parser.finish() if kind == "text")

    def _generate(self, prompt: list[int], **settings: Any) -> str:
        import torch

        ids = torch.tensor([prompt])
        made = self.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return str(
            self.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    @contextmanager
    def failing(self, token: int, error: BaseException | None = None) -> Iterator[None]:
        """Break the loaded model's own computation at its `token`th decode step."""
        import torch

        head = self.engine._loaded.lanes.single._model.lm_head
        steps = 0

        def count(*_: Any) -> None:
            nonlocal steps
            decoding = not torch.is_inference_mode_enabled()  # as it is for chunks of the prompt and for batches
            steps += decoding
            if decoding and steps == token:
                raise error or RuntimeError("broken on purpose")

        hook = head.register_forward_pre_hook(count)
        yield
        hook.remove()


class BatchedWorld(LocalWorld):
    """The same, answering several at once."""

    def __init__(self, folder: Path, kv_cache_gb: float = 0.2) -> None:
        super().__init__(folder, batching="on", kv_cache_gb=kv_cache_gb)

    @contextmanager
    def failing(self, token: int, error: BaseException | None = None) -> Iterator[None]:
        """Break the loaded model's own computation at the `token`th step of the batch that makes one."""
        import torch

        lanes = self.engine._loaded.lanes
        inputs = lanes.batch._paged._processor.inputs_and_outputs
        steps = 0

        def count(*_: Any) -> None:
            nonlocal steps
            in_batch = torch.is_inference_mode_enabled()
            steps += in_batch and any(item.has_new_token for item in inputs.requests_in_batch)
            if in_batch and steps == token:
                raise error or RuntimeError("broken on purpose")

        hook = lanes.single._model.lm_head.register_forward_pre_hook(count)
        yield
        hook.remove()


class RemoteWorld:
    """The engine of another world behind the app's own API, over real HTTP. One answer at a time, so that the rest
    waits here and not at the server."""

    cause = openai.APIError

    def __init__(self, behind: World) -> None:
        self._behind = behind
        self._served = serve_engine(behind.engine)
        self.expected, self.going_on, self.failing = behind.expected, behind.going_on, behind.failing
        self.engine = self.fresh()
        status = self.engine.wait_ready(TIMEOUT_S)
        assert status.state == "ready", status

    def fresh(self) -> RemoteEngine:
        return RemoteEngine(f"{self._served.url}/v1", max_running=1)

    def close(self) -> None:
        self.engine.close()
        self._served.close()
        self._behind.close()


class TransformersServeWorld(LocalWorld):
    """The starter model, in the server that comes with transformers."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        super().__init__(folder)

    def fresh(self) -> RemoteEngine:
        return RemoteEngine(self._url, max_running=1)


def small_chunks(monkeypatch: pytest.MonkeyPatch, tokens: int = 8) -> None:
    """Prompts of a few words are read in several chunks."""
    from streaming.engines import batching, generate

    for lane in (batching, generate):
        monkeypatch.setattr(lane, "CHUNK_TOKENS", tokens)
        monkeypatch.setattr(lane, "SMALL_CHUNK_TOKENS", tokens)
