"""What only an engine with a model can show: seeds, one computing thread, loading, templates, reasoning."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming import models
from streaming.config import Config
from streaming.engines.local import LocalEngine
from streaming.errors import ContextTooLong, EngineClosed, GenerationFailed, InvalidRequest, ModelError, ModelNotFound
from streaming.events import Queued, ReasoningDelta, TextDelta
from streaming.messages import Message, Sampling
from tests.tiny import tiny_folder
from tests.tokenizers import CHAT_TEMPLATE, byte_fallback, byte_level_bpe, word_level
from tests.worlds import GREEDY, TIMEOUT_S, Gate, LocalWorld, Reader, ask, cancel_at, nothing

HELLO = "Hello, who are you?"
WARM = Sampling(temperature=1.0, max_new_tokens=12)
THINKING_TEMPLATE = CHAT_TEMPLATE.replace(
    "assistant\n{% endif %}", "assistant\n{{ '<think>\n' if enable_thinking is not false }}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=["tiny", "starter"])
def world(request: pytest.FixtureRequest, folder: Path) -> Iterator[LocalWorld]:
    world = LocalWorld(request.getfixturevalue("starter_folder") if request.param == "starter" else folder)
    yield world
    world.engine.close()


@pytest.fixture
def engine(folder: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(Config(model=str(folder), max_new_tokens=30))
    yield engine
    engine.close()


# -- chance


def test_one_seed_gives_one_text(world: LocalWorld) -> None:
    seeded = replace(WARM, seed=7)
    first = ask(world.engine, HELLO, seeded).wait().text
    assert ask(world.engine, HELLO, seeded).wait().text == first
    assert ask(world.engine, HELLO, replace(seeded, seed=8)).wait().text != first


def test_a_seed_holds_beside_other_requests(world: LocalWorld) -> None:
    """Sampling shares one global random state, so answers that mix are not repeatable; here they take turns."""
    seeded = replace(WARM, seed=7)
    alone = ask(world.engine, HELLO, seeded).wait().text
    gate = Gate()
    readers = [ask(world.engine, HELLO, WARM, user="ann", hook=gate)]
    gate.wait()
    readers += [ask(world.engine, HELLO, sampling, user="ben") for sampling in (seeded, WARM, seeded)]
    gate.open()
    texts = [reader.wait().text for reader in readers]
    assert texts[1] == texts[3] == alone


def test_a_seed_does_not_fix_the_requests_after_it(world: LocalWorld) -> None:
    following = set()
    for _ in range(3):
        ask(world.engine, HELLO, replace(WARM, seed=7)).wait()
        following.add(ask(world.engine, HELLO, WARM).wait().text)
    assert len(following) > 1


def test_the_repetition_penalty_reaches_the_model(world: LocalWorld) -> None:
    reader = ask(world.engine, HELLO, replace(GREEDY, repetition_penalty=1.8)).wait()
    assert reader.text == world.plainly(HELLO, 20, repetition_penalty=1.8)


# -- one thread


def test_only_the_inference_thread_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second computing thread costs a third of the speed: loading, warming up and answering share one."""
    import torch

    threads: set[str] = set()
    load = models.load

    def note(*_: object) -> None:
        threads.add(threading.current_thread().name)

    def watched(source: models.ModelSource, **settings: str) -> models.Model:
        note()
        loaded = load(source, **settings)
        for module in loaded.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(note)
        return loaded

    monkeypatch.setattr(models, "load", watched)
    engine = LocalEngine(Config(model=str(folder)))
    early = ask(engine, HELLO)
    engine.wait_ready(TIMEOUT_S)
    for reader in (early, ask(engine, HELLO, WARM)):
        reader.wait()
    engine.close()
    assert threads == {"inference"}


def test_importing_and_making_one_loads_no_torch() -> None:
    code = (
        "import sys; from streaming import Config, open_engine; engine = open_engine(Config(model='no-such-model'));"
        "print(engine.status().state, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["loading", "False", "False"]


def test_the_interpreter_ends_in_the_middle_of_an_answer(folder: Path) -> None:
    """A thread that computes while the interpreter goes down can take the process with it, core and all."""
    code = (
        "import sys; from streaming import Config, Message, Sampling, open_engine;"
        "from streaming.events import TextDelta;"
        "engine = open_engine(Config(model=sys.argv[1]));"
        "events = iter(engine.stream([Message('user', 'Hi')], Sampling(temperature=0, max_new_tokens=400)));"
        "next(event for event in events if isinstance(event, TextDelta))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- loading


def test_requests_while_it_loads_wait_with_its_progress(engine: LocalEngine) -> None:
    early = ask(engine, HELLO)
    status = engine.wait_ready(TIMEOUT_S)
    assert (status.state, status.context_tokens, status.detail) == ("ready", 512, "")
    details = [item.detail for item in early.wait().items if isinstance(item, Queued)]
    assert any(detail.startswith("Loading") for detail in details)
    assert early.text == ask(engine, HELLO).wait().text


def test_input_errors_of_early_requests_come_through_the_generation(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows a length in tokens before there is a tokenizer."""
    too_long, unknown = "word " * 2000, Sampling(chat_template_kwargs={"messages": []})
    go = threading.Event()
    load = models.load
    monkeypatch.setattr(models, "load", lambda source, **how: go.wait(TIMEOUT_S) and load(source, **how))
    early = [
        ask(engine, too_long),
        Reader(engine.stream([Message("user", HELLO)], unknown), nothing),
        ask(engine, HELLO),
    ]
    with pytest.raises(InvalidRequest, match="nothing to answer"):
        ask(engine, " ")
    go.set()
    assert isinstance(early[0].wait().error, ContextTooLong)
    assert isinstance(early[1].wait().error, InvalidRequest)
    assert early[2].wait().text
    with pytest.raises(ContextTooLong):
        ask(engine, too_long)
    with pytest.raises(InvalidRequest):
        engine.stream([Message("user", HELLO)], unknown)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    engine = LocalEngine(Config(model=str(tmp_path / "nothing")))
    with pytest.raises(ModelNotFound):  # at the call or from the generation, as soon as it is known
        list(engine.stream([Message("user", HELLO)]))
    assert (status := engine.wait_ready(TIMEOUT_S)).state == "failed"
    assert "nothing" in status.detail
    with pytest.raises(ModelNotFound):
        ask(engine, HELLO)
    engine.close()
    assert engine.status().state == "closed"


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    engine = LocalEngine(Config(model=str(folder)))
    with pytest.raises(ModelError) as raised:
        list(engine.stream([Message("user", HELLO)]))
    assert raised.value.__cause__ is not None
    engine.close()


def test_closing_while_it_loads(folder: Path) -> None:
    others = set(threading.enumerate())
    engine = LocalEngine(Config(model=str(folder)))
    early = ask(engine, HELLO)
    engine.close()
    assert isinstance(early.wait().error, EngineClosed)
    assert "inference" not in [thread.name for thread in set(threading.enumerate()) - others]


# -- answers


def test_the_longest_answer_is_the_settings(engine: LocalEngine) -> None:
    assert ask(engine, HELLO, Sampling(temperature=0)).wait().finished.usage.completion_tokens == 30


@pytest.mark.parametrize("make", [byte_level_bpe, byte_fallback, word_level])
def test_every_kind_of_tokenizer_streams_what_it_decodes(make: Any, tmp_path: Path) -> None:
    world = LocalWorld(tiny_folder(tmp_path, make()))
    reader = ask(world.engine, "Hi", Sampling(temperature=0, max_new_tokens=80)).wait()
    world.engine.close()
    assert reader.text == world.expected("Hi", 80)
    assert reader.text.isascii() is False or make is word_level


def test_memory_that_runs_out_is_told_in_words(folder: Path) -> None:
    import torch

    world = LocalWorld(folder)
    with world.failing(2, torch.OutOfMemoryError("CUDA out of memory")):
        reader = ask(world.engine, HELLO).wait()
    assert isinstance(reader.error, GenerationFailed)
    assert "memory ran out" in str(reader.error)
    assert reader.text == world.expected(HELLO, 1)
    with world.failing(1, SystemExit(1)):
        assert isinstance(ask(world.engine, HELLO).wait().error, GenerationFailed)
    assert ask(world.engine, HELLO).wait().text == world.expected(HELLO)
    world.engine.close()


def test_a_failure_does_not_keep_what_it_worked_on(folder: Path) -> None:
    """An error is kept with its answer: the cache of the answer may not be kept with the error."""
    import torch
    import transformers

    world = LocalWorld(folder)
    with world.failing(3):
        error = ask(world.engine, HELLO).wait().error
    world.engine.close()
    assert error.__cause__ is not None
    trace = error.__cause__.__traceback__
    frames = []
    while trace:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert len(frames) > 5
    assert not [value for value in held if isinstance(value, torch.Tensor | transformers.Cache | torch.nn.Module)]


def test_a_model_without_a_chat_template_answers_with_a_notice(tmp_path: Path) -> None:
    tokenizer = byte_level_bpe()
    tokenizer.chat_template = None
    engine = LocalEngine(Config(model=str(tiny_folder(tmp_path, tokenizer))))
    assert "no chat template" in engine.wait_ready(TIMEOUT_S).notices[0]
    assert ask(engine, HELLO).wait().text
    engine.close()


def test_stopping_while_it_reasons_keeps_the_reasoning(tmp_path: Path) -> None:
    """hermes-webui 893: the reasoning was gone. And where the template opens the block, all of it is reasoning."""
    engine = LocalEngine(Config(model=str(tiny_folder(tmp_path, chat_template=THINKING_TEMPLATE))))
    assert engine.wait_ready(TIMEOUT_S).can_think
    whole = ask(engine, HELLO).wait()
    assert whole.reasoning
    assert not whole.text
    stopped = ask(engine, HELLO, hook=cancel_at(ReasoningDelta, 4)).wait()
    assert stopped.finished.reason == "cancelled"
    assert 4 <= len([item for item in stopped.items if isinstance(item, ReasoningDelta)]) <= 5
    assert whole.reasoning.startswith(stopped.reasoning.rstrip("\ufffd"))
    off = ask(engine, HELLO, replace(GREEDY, chat_template_kwargs={"enable_thinking": False})).wait()
    assert off.text
    assert not off.reasoning
    assert [item for item in off.items if isinstance(item, TextDelta)]
    engine.close()


def test_a_request_that_is_refused_leaves_no_prompt_behind(world: LocalWorld) -> None:
    """A reused streamer showed the next request's system prompt as its answer (transformers, streamer reuse)."""
    with pytest.raises(InvalidRequest):
        world.engine.stream([Message("user", HELLO)], Sampling(chat_template_kwargs={"tokenize": False}))
    messages = [Message("system", "The word is swordfish."), Message("user", HELLO)]
    reader = Reader(world.engine.stream(messages, GREEDY), nothing).wait()
    assert "The word is" not in reader.text
    assert ask(world.engine, HELLO).wait().text == world.expected(HELLO)
