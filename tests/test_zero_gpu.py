"""The lane on ZeroGPU, with the `spaces` package as it is elsewhere, and with a forked worker in its place.

That behaves as Spaces' own: arguments and ids are pickled, a stop is seen after the next id, errors come as words.
"""

import multiprocessing
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import spaces
import torch
from transformers import GenerationConfig, LlamaForCausalLM

from streaming.config import on_zero_gpu
from streaming.engines.answers import Answers
from streaming.engines.base import Generation, Item
from streaming.engines.local import LocalEngine
from streaming.engines.zero_gpu import ZeroGpuLane, duration
from streaming.errors import GenerationFailed, InvalidRequest
from streaming.events import Finished, Prefill, TextDelta
from streaming.messages import Beam, Sampling
from streaming.models import Model
from tests.lane import IDS, TOKENIZER, answer, decoded, plainly, text_of
from tests.tiny import CONTEXT_TOKENS, tiny_folder, tiny_model
from tests.worlds import TIMEOUT_S, LocalWorld, ask, cancel_at

FORK = multiprocessing.get_context("fork")
Task = Callable[..., Generator[Any, None, None]]


class Lane(ZeroGpuLane):
    """A lane with all that it needs to be asked."""

    def __init__(self, model: Any) -> None:
        loaded = Model("tiny", model, TOKENIZER, CONTEXT_TOKENS)
        self.answers = Answers(loaded)
        super().__init__(loaded)


class ForkedWorkers:
    """Stands in for `spaces.GPU`: each call of what it decorates runs in a process of its own."""

    def __init__(self) -> None:
        self.durations: list[float] = []
        self.exit_codes: list[int | None] = []

    def __call__(self, task: Task, *, duration: Callable[..., float]) -> Task:
        def handler(*args: Any) -> Generator[Any, None, None]:
            self.durations.append(duration(*args))
            arguments, results, stop = FORK.SimpleQueue(), FORK.SimpleQueue(), FORK.Event()
            arguments.put(args)
            process = FORK.Process(target=_work, args=(task, arguments, results, stop), daemon=True)
            process.start()
            try:
                while (result := results.get()) is not None:
                    if isinstance(result, str):
                        raise RuntimeError(result)
                    try:
                        yield result
                    except GeneratorExit:
                        stop.set()
                        while results.get() is not None:
                            pass
                        raise
            finally:
                process.join(TIMEOUT_S)
                self.exit_codes.append(process.exitcode)

        return handler


def _work(task: Task, arguments: Any, results: Any, stop: Any) -> None:
    torch.set_num_threads(1)  # the threads of the parent's team are not here
    generator = task(*arguments.get())
    while True:
        try:
            result = next(generator)
        except StopIteration:
            break
        except Exception as error:
            results.put(f"GPU task aborted: {error}")
            break
        if stop.is_set():
            generator.close()
            break
        results.put(result)
    results.put(None)


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_model(TOKENIZER)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> ForkedWorkers:
    workers = ForkedWorkers()
    monkeypatch.setattr(spaces, "GPU", workers)
    return workers


@pytest.fixture(params=["package", "forked"])
def lane(request: pytest.FixtureRequest, model: LlamaForCausalLM) -> Lane:
    if request.param == "forked":
        request.getfixturevalue("workers")
    return Lane(model)


def test_it_says_what_generate_says(lane: Lane, model: LlamaForCausalLM) -> None:
    items = answer(lane)
    ids = plainly(model, do_sample=False)
    assert text_of(items) == decoded(ids)
    assert items[0] == Prefill(0, len(IDS))
    assert isinstance(last := items[-1], Finished)
    assert (last.reason, last.usage.completion_tokens) == ("length", 12)
    assert len([item for item in items if isinstance(item, TextDelta)]) > 4


def test_seeds_are_kept_and_without_one_chance_is_fresh(lane: Lane) -> None:
    warm = Sampling(temperature=1.5, top_k=0)
    seeded = Sampling(temperature=1.5, top_k=0, seed=7)
    assert text_of(answer(lane, sampling=seeded)) == text_of(answer(lane, sampling=seeded))
    assert len({text_of(answer(lane, sampling=warm)) for _ in range(4)}) > 1


def test_a_stop_string_ends_the_workers_work(lane: Lane, model: LlamaForCausalLM) -> None:
    whole = decoded(plainly(model, 40, do_sample=False))
    stop = whole[len(whole) // 2 :][:3]
    items = answer(lane, max_new_tokens=400, sampling=Sampling(temperature=0, stop=(stop,)))
    assert text_of(items) == whole[: whole.index(stop)]
    assert isinstance(last := items[-1], Finished)
    assert last.reason == "stop"


def test_a_cancel_ends_the_worker(workers: ForkedWorkers, model: LlamaForCausalLM) -> None:
    """A flag in this process does not reach it: the closed generator does."""
    generation = Generation()
    seen: list[Item] = []
    generation.observe(lambda item: generation.cancel() if isinstance(item, TextDelta) else seen.append(item))
    items = answer(Lane(model), max_new_tokens=400, generation=generation)
    assert isinstance(last := items[-1], Finished)
    assert last.reason == "cancelled"
    assert last.usage.completion_tokens < 100
    assert workers.exit_codes == [0]
    assert "generate" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.usefixtures("workers")
def test_what_the_model_raises_is_told_after_what_it_said(model: LlamaForCausalLM) -> None:
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise RuntimeError("broken on purpose")

    model.lm_head.register_forward_pre_hook(count)
    generation = Generation()
    seen: list[Item] = []
    generation.observe(seen.append)
    with pytest.raises(RuntimeError, match="GPU task aborted: broken on purpose"):
        answer(Lane(model), generation=generation)
    assert text_of(seen) == decoded(plainly(tiny_model(TOKENIZER), 5, do_sample=False))


def test_strategies_that_look_into_the_steps_are_refused(lane: Lane) -> None:
    with pytest.raises(InvalidRequest, match="ZeroGPU"):
        answer(lane, sampling=Sampling(strategy=Beam(num_beams=2)))
    assert lane.strategies == ("prompt_lookup",)


@pytest.mark.parametrize(("tokens", "seconds"), [(20, 16), (1000, 65), (100_000, 120)])
def test_the_time_asked_for_goes_by_the_longest_answer(tokens: int, seconds: float) -> None:
    config = GenerationConfig(max_new_tokens=tokens)  # type: ignore[no-untyped-call]
    assert duration([1], config, None) == seconds


@pytest.mark.parametrize(("value", "offered"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_where_it_is_offered(value: str, offered: bool) -> None:
    assert on_zero_gpu({"SPACES_ZERO_GPU": value}) == offered
    assert not on_zero_gpu({})


# -- the whole engine, in such a Space


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: ForkedWorkers) -> Iterator[LocalWorld]:
    assert spaces.GPU is workers
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")  # after `spaces` was imported: it is not to look for its own server
    world = LocalWorld(tiny_folder(tmp_path), batching="auto")
    yield world
    world.close()


def test_the_engine_answers_there(world: LocalWorld, workers: ForkedWorkers) -> None:
    question = "Hello, who are you?"
    assert isinstance(world.engine, LocalEngine)
    assert ask(world.engine, question).wait().text == world.expected(question)
    assert ask(world.engine, question, hook=cancel_at(TextDelta)).wait().finished.reason == "cancelled"
    with world.failing(3):
        reader = ask(world.engine, question).wait()
    assert isinstance(reader.error, GenerationFailed)
    assert "broken on purpose" in str(reader.error)
    assert ask(world.engine, question).wait().text == world.expected(question)
    assert workers.durations == [16.0] * 4
