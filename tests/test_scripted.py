"""What only the scripted engine can show: counted decode steps, directed failures, progress while it loads."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from streaming.engines.base import Item
from streaming.engines.script import Fail, Hold, ReadPrompt, Say, Step, Think, Wait
from streaming.engines.scripted import ScriptedEngine
from streaming.errors import (
    ContextTooLong,
    EngineClosed,
    GenerationFailed,
    ModelError,
    ModelNotFound,
    NoDraft,
)
from streaming.events import Event, Finished, Prefill, Queued, ReasoningDelta, Tentative, TextDelta
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling

HELLO = [Message("user", "Hello there")]
Make = Callable[..., ScriptedEngine]


@pytest.fixture
def make() -> Iterator[Make]:
    engines: list[ScriptedEngine] = []

    def engine(*steps: Step, **settings: object) -> ScriptedEngine:
        engines.append(ScriptedEngine(lambda _: steps, **settings))  # type: ignore[arg-type]
        return engines[-1]

    yield engine
    for engine_ in engines:
        engine_.close()


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_script_is_played(make: Make) -> None:
    engine = make(ReadPrompt(0.01, chunks=2), Think("Let me see."), Wait(0.001), Say("It is  so.\n"))
    *events, finished = engine.stream(HELLO)
    assert events[:3] == [Prefill(0, 2), Prefill(1, 2), Prefill(2, 2)]
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "Let me see."
    assert text_of(events) == "It is  so.\n"
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.usage.completion_tokens) == ("stop", 3 + 2 + 3)
    assert engine.decode_steps == 8


def test_thinking_can_be_switched_off(make: Make) -> None:
    engine = make(Think("Let me see."), Say("So."))
    events = list(engine.stream(HELLO, Sampling(chat_template_kwargs={"enable_thinking": False})))
    assert not [event for event in events if isinstance(event, ReasoningDelta)]
    assert text_of(events) == "So."


@pytest.mark.parametrize("tokens_before", [0, 1, 3])
def test_a_stop_takes_no_decode_step_more(make: Make, tokens_before: int) -> None:
    """A stop that the model notices only at the end costs the whole answer (transformers 31963)."""
    engine = make(Say("word " * 1000))
    generation = engine.stream(HELLO)
    steps: list[int] = []
    ended = threading.Event()

    def listener(item: Item) -> None:
        if (tokens_before == 0 and isinstance(item, Prefill)) or getattr(item, "tokens", 0) == tokens_before > 0:
            generation.cancel()
            steps.append(engine.decode_steps)
        elif isinstance(item, Finished):
            ended.set()

    generation.subscribe(listener)
    assert ended.wait(30)
    assert steps == [tokens_before]
    assert engine.decode_steps == tokens_before


@pytest.mark.parametrize("pause", [Wait(3600), Hold(threading.Event()), ReadPrompt(3600), Say("a b", 0.001)])
def test_a_stop_ends_a_pause(make: Make, pause: Step) -> None:
    engine = make(pause)
    generation = engine.stream(HELLO)
    events = iter(generation)
    next(events)
    generation.cancel()
    assert isinstance(last := list(events)[-1], Finished)
    assert last.reason == "cancelled"


def test_a_failure_keeps_its_cause_and_what_was_said(make: Make) -> None:
    engine = make(Say("one two three "), Fail("boom"))
    events: list[Event] = []
    with pytest.raises(GenerationFailed, match="boom") as raised:
        events.extend(engine.stream(HELLO))
    assert text_of(events) == "one two three "
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_timings_are_true(make: Make) -> None:
    engine = make(Wait(0.2), Say("a b c d e f g h i j k", 50))
    finished = list(engine.stream(HELLO))[-1]
    assert isinstance(finished, Finished)
    assert finished.timings.ttft_s >= 0.2
    assert 0 < finished.timings.decode_tps <= 51
    assert 0 <= finished.timings.queued_s < finished.timings.ttft_s


def test_oldest_turns_are_left_out(make: Make) -> None:
    engine = make(Say("So."), context_tokens=40)
    history = [Message("system", "Be brief.")]
    for turn in range(6):
        history += [Message("user", f"question {turn} " * 2), Message("assistant", "answer " * 4)]
    finished = list(engine.stream([*history, *HELLO], Sampling(max_new_tokens=8)))[-1]
    assert isinstance(finished, Finished)
    assert (finished.usage.dropped_messages, finished.usage.prompt_tokens) == (6, 28)
    with pytest.raises(ContextTooLong, match="50"):
        engine.stream([Message("user", "word " * 50)])


def test_loading_is_waited_for_with_its_progress(make: Make) -> None:
    go, said = threading.Event(), threading.Event()

    def load(say: Callable[[str], None]) -> None:
        say("Half of it is here")
        said.set()
        go.wait(30)

    engine = make(Say("So."), load=load)
    assert engine.status().state == "loading"
    generation = engine.stream(HELLO)
    assert said.wait(30)
    assert engine.status().detail == "Half of it is here"
    assert engine.wait_ready(0).state == "loading"
    stopped = engine.stream(HELLO)
    stopped.cancel()
    assert list(stopped)[-1].reason == "cancelled"  # type: ignore[union-attr]
    go.set()
    events = list(generation)
    assert Queued(1, "Half of it is here") in events
    assert text_of(events) == "So."
    assert (engine.status().state, engine.status().detail) == ("ready", "")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ModelNotFound("There is no model x."), ModelNotFound), (OSError("no such device"), ModelError)],
)
def test_a_model_that_cannot_be_loaded_is_told_to_all(make: Make, raised: Exception, expected: type) -> None:
    go = threading.Event()

    def load(_: Callable[[str], None]) -> None:
        go.wait(30)
        raise raised

    engine = make(Say("So."), load=load)
    generation = engine.stream(HELLO)
    go.set()
    with pytest.raises(expected, match=str(raised)):
        list(generation)
    assert (status := engine.wait_ready(30)).state == "failed"
    assert str(raised) in status.detail
    for _ in range(2):
        with pytest.raises(expected, match=str(raised)):
            engine.stream(HELLO)


def test_closing_interrupts_loading(make: Make) -> None:
    said, before = threading.Event(), set(threading.enumerate())

    def load(say: Callable[[str], None]) -> None:
        while True:
            say("Downloading")
            said.set()
            time.sleep(0.001)

    engine = make(Say("So."), load=load)
    generation = engine.stream(HELLO)
    assert said.wait(30)
    engine.close()
    with pytest.raises(EngineClosed):
        list(generation)
    assert engine.status().state == "closed"
    assert "scripted" not in [thread.name for thread in set(threading.enumerate()) - before]


# -- strategies


def test_beams_lean_towards_what_comes_next(make: Make) -> None:
    """Two words ahead, never part of the answer, and cut where a stop string would end it."""
    engine = make(Say("one two three four END five"))
    events = list(engine.stream(HELLO, Sampling(stop=("END",), strategy=Beam(2))))
    assert events[1:-1] == [
        TextDelta("one "),
        Tentative("two three "),
        TextDelta("two "),
        Tentative("three four "),
        TextDelta("three "),
        Tentative("four "),
        TextDelta("four "),
        Tentative(),
    ]
    assert engine.status().strategies == ("beam", "prompt_lookup")


def test_beams_lean_in_a_thought_and_beyond_it(make: Make) -> None:
    events = list(make(Think("Hm, let me see."), Say("So.")).stream(HELLO, Sampling(strategy=Beam(3))))
    leaning = [event for event in events if isinstance(event, Tentative)]
    assert leaning[0] == Tentative(reasoning="Hm, let me")
    assert all(not lean.text for lean in leaning)
    assert text_of(events) == "So."


def test_a_stop_keeps_nothing_that_is_tentative(make: Make) -> None:
    generation = make(Say("word " * 1000, tokens_per_s=100)).stream(HELLO, Sampling(strategy=Beam(4)))
    events: list[Event] = []
    for event in generation:
        events.append(event)
        if isinstance(event, Tentative):
            generation.cancel()
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.reason, text_of(events)) == ("cancelled", "word " * finished.usage.completion_tokens)


def test_prompt_lookup_says_several_words_a_step_where_the_answer_repeats(make: Make) -> None:
    asked = [Message("user", "a rose is a flower in the garden ")]
    engine = make(Say("is a flower in a garden "))
    *events, finished = engine.stream(asked, Sampling(strategy=PromptLookup(3)))
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert [delta.text for delta in deltas] == ["is ", "a flower in a ", "garden "]
    assert [(delta.tokens, delta.accepted) for delta in deltas] == [(1, 0), (5, 3), (6, 3)]
    assert [delta.text[: delta.guessed] for delta in deltas] == ["", "a flower in ", ""]
    assert isinstance(finished, Finished)
    usage = finished.usage
    assert (usage.completion_tokens, usage.accepted_tokens, usage.proposed_tokens) == (6, 3, 3 + 3)
    assert engine.decode_steps == 3


@pytest.mark.parametrize(("limit", "stop"), [(3, ()), (None, ("flower",))])
def test_guesses_end_where_the_answer_does(make: Make, limit: int | None, stop: tuple[str, ...]) -> None:
    asked = [Message("user", "is a flower in the garden ")]
    sampling = Sampling(max_new_tokens=limit, stop=stop, strategy=PromptLookup(10))
    *events, finished = make(Say("is a flower in the garden ")).stream(asked, sampling)
    assert text_of(events) == ("is a " if stop else "is a flower ")
    assert isinstance(finished, Finished)
    assert finished.reason == ("stop" if stop else "length")
    assert finished.usage.completion_tokens == 3


def test_a_script_has_no_draft_model(make: Make) -> None:
    with pytest.raises(NoDraft, match="no draft model"):
        make(Say("So.")).stream(HELLO, Sampling(strategy=Assisted("small")))
