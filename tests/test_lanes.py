"""Two lanes, one thread: a batch of many and a request that no batch can express go on side by side."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import MambaConfig, MambaForCausalLM

from streaming.config import Config
from streaming.engines import batching
from streaming.engines.base import Generation, Item
from streaming.engines.local import BATCH_SHARE, LOG, LocalEngine
from streaming.engines.paged import page_bytes
from streaming.errors import EngineBusy, GenerationFailed, InvalidRequest
from streaming.events import Finished, Tentative, TextDelta
from streaming.messages import Assisted, Beam, PromptLookup, Sampling
from tests.tiny import tiny_folder, tiny_model
from tests.tokenizers import byte_level_bpe
from tests.worlds import GREEDY, TIMEOUT_S, BatchedWorld, Gate, LocalWorld, ask, cancel_at

ALONE = replace(GREEDY, repetition_penalty=1.8)  # the penalty looks at the whole text, which a batch does not know
LONG_ALONE = replace(ALONE, max_new_tokens=60)
LONG = Sampling(temperature=0, max_new_tokens=60)
HELLO = "Hello, who are you?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[BatchedWorld]:
    world = BatchedWorld(folder)
    yield world
    world.engine.close()


def cache_gb(pages: int) -> float:
    """The setting that gives the batch so many."""
    page = page_bytes(tiny_model(byte_level_bpe()), batching.CHUNK_TOKENS + batching.MAX_ROWS)
    return (pages + 0.5) * page / BATCH_SHARE / 1e9


class Score:
    """Counts the tokens of several answers, and looks at all the counts at each token of one of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.seen: dict[str, list[dict[str, int]]] = {}

    def of(self, name: str) -> Any:
        def note(_: Generation, item: Item) -> None:
            if isinstance(item, TextDelta):
                self.counts[name] = item.tokens
                self.seen.setdefault(name, []).append(dict(self.counts))

        return note


def test_the_lanes_take_turns_by_token(world: BatchedWorld) -> None:
    """Whoever is in one lane loses to the other a step between two tokens, never more: neither starves."""
    score, gate = Score(), Gate()
    holding = ask(world.engine, "Hold", LONG, hook=gate)
    gate.wait()
    alone = ask(world.engine, HELLO, LONG_ALONE, hook=score.of("alone"), user="ann")
    batched = [ask(world.engine, f"{name}?", LONG, hook=score.of(name), user=name) for name in ("ben", "cleo")]
    gate.open()
    for reader in (holding, alone, *batched):
        reader.wait()
    assert alone.text == world.plainly(HELLO, 60, repetition_penalty=1.8)
    assert [reader.text for reader in batched] == [world.expected("ben?", 60), world.expected("cleo?", 60)]
    for counts in score.seen["alone"][3:]:
        assert abs(counts["alone"] - counts["ben"]) <= 10  # half characters are told with the next token
        assert abs(counts["alone"] - counts["cleo"]) <= 10


def test_only_one_at_a_time_is_answered_alone_and_nobody_else_waits_for_it(world: BatchedWorld) -> None:
    ended: list[str] = []
    gate = Gate()

    def ending(name: str) -> Any:
        return lambda generation, item: ended.append(name) if isinstance(item, Finished) else None

    first = ask(world.engine, "Hold", LONG_ALONE, hook=gate, user="ann")
    gate.wait()
    second = ask(world.engine, HELLO, ALONE, hook=ending("alone"), user="ben")
    third = ask(world.engine, HELLO, GREEDY, hook=ending("batched"), user="cleo")
    assert (second.positions, third.positions) == ([1], [2])
    gate.open()
    for reader in (first, second, third):
        reader.wait()
    assert ended == ["batched", "alone"]
    assert second.text == world.plainly(HELLO, 20, repetition_penalty=1.8)
    assert first.text == world.plainly("Hold", 60, repetition_penalty=1.8)


def test_a_failure_alone_leaves_the_batch_as_it_was(world: BatchedWorld) -> None:
    gate = Gate()
    batched = ask(world.engine, HELLO, LONG, hook=gate)
    gate.wait()
    with LocalWorld.failing(world, 3):
        alone = ask(world.engine, HELLO, ALONE)
        gate.open()
        assert isinstance(alone.wait().error, GenerationFailed)
        assert batched.wait().text == world.expected(HELLO, 60)
    assert ask(world.engine, HELLO, ALONE).wait().text == world.plainly(HELLO, 20, repetition_penalty=1.8)


def test_a_failure_of_the_batch_leaves_the_other_as_it_was(world: BatchedWorld) -> None:
    gate = Gate()
    alone = ask(world.engine, HELLO, LONG_ALONE, hook=gate)
    gate.wait()
    with world.failing(3):
        batched = [ask(world.engine, f"{number}?", LONG) for number in range(2)]
        gate.open()
        for reader in batched:
            assert isinstance(reader.wait().error, GenerationFailed)
        assert alone.wait().text == world.plainly(HELLO, 60, repetition_penalty=1.8)
    assert ask(world.engine, HELLO).wait().text == world.expected(HELLO)


def test_what_is_wrong_with_one_who_waits_is_no_concern_of_those_who_are_answered(
    world: BatchedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt is first looked at between two of their tokens, if it came while the model was loading."""
    lanes, gate = world.engine._loaded.lanes, Gate()
    wants = lanes._wants

    def look(request: Any) -> int:
        return 1 // 0 if "broken" in request.job.asked[-1].content else int(wants(request))

    monkeypatch.setattr(lanes, "_wants", look)
    running = ask(world.engine, HELLO, LONG, hook=gate)
    gate.wait()
    broken = ask(world.engine, "broken")
    gate.open()
    assert isinstance(broken.wait().error.__cause__, ZeroDivisionError)
    assert running.wait().text == world.expected(HELLO, 60)
    assert ask(world.engine, HELLO).wait().text == world.expected(HELLO)


def test_a_stop_in_one_lane_is_none_in_the_other(world: BatchedWorld) -> None:
    gate = Gate()
    holding = ask(world.engine, "Hold", LONG, hook=gate)
    gate.wait()
    batched = [ask(world.engine, HELLO, LONG, hook=hook) for hook in (cancel_at(TextDelta, 3), cancel_at(Finished))]
    alone = ask(world.engine, HELLO, LONG_ALONE, hook=cancel_at(TextDelta, 8))
    gate.open()
    assert [reader.wait().finished.reason for reader in (*batched, alone)] == ["cancelled", "length", "cancelled"]
    assert batched[1].text == world.expected(HELLO, 60)
    assert holding.wait().text == world.expected("Hold", 60)
    assert (world.engine.status().running, world.engine.status().waiting) == (0, 0)


def test_more_than_there_is_room_for(folder: Path) -> None:
    """They wait until pages are free, in their order, and each is answered in full."""
    engine = LocalEngine(Config(model=str(folder), batching="on", kv_cache_gb=cache_gb(9)))
    plain = LocalWorld(folder)
    readers = [ask(engine, f"{number} is mine", LONG, user=str(number)) for number in range(6)]
    assert [reader.wait().text for reader in readers] == [plain.expected(f"{n} is mine", 60) for n in range(6)]
    engine.close()
    plain.engine.close()


def test_a_request_larger_than_the_batch_and_then_a_usual_one(folder: Path) -> None:
    """Elsewhere the first neither answered nor failed, and the second starved (transformers continuous batching)."""
    engine = LocalEngine(Config(model=str(folder), batching="on", kv_cache_gb=cache_gb(4)))
    plain = LocalWorld(folder)
    large = ask(engine, HELLO * 5, LONG)
    usual = ask(engine, HELLO)
    assert usual.wait().text == plain.expected(HELLO)
    assert large.wait().text == plain.expected(HELLO * 5, 60)
    engine.close()
    plain.engine.close()


@pytest.mark.parametrize(("batching", "state"), [("auto", "ready"), ("off", "ready"), ("on", "failed")])
def test_a_model_that_cannot_be_batched(
    tmp_path: Path, batching: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []  # what other tests set up of logging does not matter here
    monkeypatch.setattr(LOG, "warning", lambda text, *values: logged.append(text % values))
    engine = LocalEngine(Config(model=str(tiny_folder(tmp_path)), batching=batching, kv_cache_gb=1e-6))
    status = engine.wait_ready(TIMEOUT_S)
    assert status.state == state
    if state == "failed":
        assert "cannot answer several at once, because there is no memory" in status.detail
        assert "--batching auto" in status.detail
    else:
        assert ask(engine, HELLO).wait().text
        assert ("one request at a time, because there is no memory" in "".join(logged)) is (batching == "auto")
    engine.close()


def test_a_full_house_is_told_so(folder: Path) -> None:
    engine = LocalEngine(Config(model=str(folder), max_waiting=2))
    gate = Gate()
    first = ask(engine, HELLO, hook=gate)
    gate.wait()
    waiting = [ask(engine, HELLO, user=user) for user in ("ann", "ben")]
    with pytest.raises(EngineBusy, match="number 3"):
        ask(engine, HELLO, user="cleo")
    gate.open()
    for reader in (first, *waiting):
        assert reader.wait().finished
    engine.close()


def test_everything_at_once_leaves_nothing_behind(world: BatchedWorld) -> None:
    """Seeds, stops, cancels, both lanes, from several threads."""
    threads_before = threading.active_count()
    texts: dict[int, str] = {}

    def visit(number: int) -> None:
        for turn in range(4):
            sampling = ALONE if number == 0 else replace(GREEDY, max_new_tokens=10 + turn)
            hook = cancel_at(TextDelta, 3) if turn == 2 else (lambda generation, item: None)
            reader = ask(world.engine, f"{number} says hello", sampling, hook=hook, user=str(number)).wait()
        texts[number] = reader.text

    visitors = [threading.Thread(target=visit, args=(number,)) for number in range(6)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    for number in range(1, 6):
        assert texts[number] == world.expected(f"{number} says hello", 13)
    batch = world.engine._loaded.lanes.batch
    assert (len(batch), batch._reserved, len(batch._paged)) == (0, 0, 0)
    assert threading.active_count() == threads_before


# -- strategies


def test_strategies_go_alone_beside_the_batch(world: BatchedWorld) -> None:
    gate = Gate()
    batched = ask(world.engine, "Hold", LONG, hook=gate)
    gate.wait()
    rows: list[int] = []
    batch = world.engine._loaded.lanes.batch

    def look(_: Generation, item: Item) -> None:
        if isinstance(item, TextDelta):
            rows.append(len(batch))

    beams = ask(world.engine, HELLO, replace(GREEDY, strategy=Beam(3)), hook=look, user="ann")
    looked_up = ask(world.engine, HELLO, replace(GREEDY, strategy=PromptLookup(4)), hook=look, user="ben")
    gate.open()
    assert beams.wait().text == world.plainly(HELLO, 20, num_beams=3)
    assert looked_up.wait().text == world.expected(HELLO)
    assert batched.wait().text == world.expected("Hold", 60)
    assert set(rows) <= {0, 1}, "in the batch there was the first one alone"


@pytest.fixture(scope="module")
def drafted(folder: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(Config(model=str(folder), draft_model=str(folder), batching="on", kv_cache_gb=0.2))
    yield engine
    engine.close()


def test_a_draft_model_guesses_for_those_who_ask_for_it(drafted: LocalEngine, world: BatchedWorld) -> None:
    """From the first request on, which comes while the model is loading."""
    draft = str(drafted._config.draft_model)
    assisted = replace(GREEDY, strategy=Assisted(draft))
    first = ask(drafted, HELLO, assisted).wait()
    status = drafted.wait_ready(TIMEOUT_S)
    assert (status.draft, status.strategies) == (draft, ("beam", "prompt_lookup", "assisted"))
    assert world.engine.status().strategies == ("beam", "prompt_lookup")
    again = ask(drafted, HELLO, replace(assisted, strategy=Assisted(Path(draft).name))).wait()
    assert first.text == again.text == world.expected(HELLO)
    assert 0 < first.finished.usage.accepted_tokens <= first.finished.usage.proposed_tokens
    assert ask(drafted, HELLO).wait().finished.usage.proposed_tokens == 0


def test_a_draft_that_is_not_here_is_refused_at_the_call(drafted: LocalEngine, world: BatchedWorld) -> None:
    drafted.wait_ready(TIMEOUT_S)
    with pytest.raises(InvalidRequest, match="no draft model 'other' here: this engine has") as refused:
        ask(drafted, HELLO, replace(GREEDY, strategy=Assisted("other")))
    assert refused.value.field == "strategy"
    with pytest.raises(InvalidRequest, match="--draft-model"):
        ask(world.engine, HELLO, replace(GREEDY, strategy=Assisted("other")))


def test_a_draft_that_does_not_fit_is_said_when_it_is_loaded(folder: Path, tmp_path: Path) -> None:
    engine = LocalEngine(Config(model=str(folder), draft_model=str(tiny_folder(tmp_path, byte_level_bpe(400)))))
    status = engine.wait_ready(TIMEOUT_S)
    assert (status.state, status.draft) == ("failed", "")
    assert "another tokenizer" in status.detail
    engine.close()


def test_nothing_can_be_guessed_for_a_recurrent_model(tmp_path: Path) -> None:
    tokenizer = byte_level_bpe()
    config = MambaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        state_size=4,
        num_hidden_layers=2,
        eos_token_id=tokenizer.eos_token_id,
    )
    MambaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = LocalEngine(Config(model=str(tmp_path)))
    assert engine.wait_ready(TIMEOUT_S).strategies == ("beam",)
    with pytest.raises(InvalidRequest, match="cannot take a token back"):
        ask(engine, HELLO, replace(GREEDY, strategy=PromptLookup()))
    assert ask(engine, HELLO).wait().finished
    assert ask(engine, HELLO, replace(GREEDY, strategy=Beam(2))).wait().finished
    engine.close()


def test_the_starter_model_says_the_same_with_guesses(starter_folder: Path) -> None:
    engine = LocalEngine(Config(model=str(starter_folder), draft_model=str(starter_folder)))
    question = "Repeat this twice: the quick brown fox jumps over the lazy dog."
    texts = []
    for strategy in (None, PromptLookup(8), Assisted(str(starter_folder))):
        reader = ask(engine, question, replace(LONG, strategy=strategy)).wait()
        texts.append(reader.text)
        assert bool(reader.finished.usage.accepted_tokens) is (strategy is not None)
    assert texts[0]
    assert texts == [texts[0]] * 3
    beams = ask(engine, question, replace(LONG, max_new_tokens=30, strategy=Beam(2))).wait()
    assert beams.text
    assert any(isinstance(item, Tentative) for item in beams.items)
    engine.close()
