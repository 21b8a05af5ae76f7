"""One prompt, several ways of decoding: what each wrote, when, and how it compares."""

import asyncio
import csv
import io
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.config import Config
from streaming.engines import open_engine
from streaming.engines.base import Status
from streaming.engines.script import Fail, Hold, Say, Step
from streaming.engines.scripted import ScriptedEngine
from streaming.errors import GenerationFailed, InvalidRequest
from streaming.events import Finished, Prefill, Queued, Tentative, TextDelta, Usage
from streaming.messages import Beam, Message, PromptLookup, Sampling
from streaming.race import Lane, Race, Sight, Track, differences
from tests.tiny import tiny_folder

TWO = (Lane("Plain"), Lane("Prompt lookup", PromptLookup(4)))
THREE = (*TWO, Lane("Beams 2", Beam(2)))


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedEngine]]:
    engines: list[ScriptedEngine] = []

    def make(*steps: Step) -> ScriptedEngine:
        engines.append(ScriptedEngine(lambda _: steps))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ran(race: Race, look: Callable[[list[Sight]], object] | None = None) -> list[list[Sight]]:
    async def run() -> list[list[Sight]]:
        seen = []
        async for sights in race.run():
            seen.append(sights)
            if look is not None:
                result = look(sights)
                if isinstance(result, Awaitable):
                    await result
        return seen

    return asyncio.run(run())


def track(*texts: str, pace: float = 1.0) -> Track:
    """A lane that waited for nine seconds and then wrote one text after each `pace` seconds."""
    clock = Clock()
    made = Track(Lane("Plain"), clock)
    made.note(Queued(1))
    clock.now += 9
    made.note(Prefill(0, 5))
    for count, text in enumerate(texts, start=1):
        clock.now += pace
        made.note(TextDelta(text, count))
    made.note(Finished("stop", Usage(completion_tokens=len(texts))))
    clock.now += 50
    return made


# -- one lane


def test_a_lane_is_seen_again_at_the_pace_it_had() -> None:
    """Its clock starts with the prompt, not in the queue."""
    made = track("One ", "two ", "three")
    assert made.seconds == 3.0
    assert made.elapsed == 53.0, "it goes on, for those who are seen beside it"
    first = made.at(1.5)
    assert (first.state, first.tokens, first.text, first.ttft_s) == ("again", 1, "One ", 1.0)
    assert made.at(0.5).text == ""
    assert made.at(0.5).ttft_s is None
    assert made.at(2.0).text == "One two "
    assert made.at(2.0).rate == 1.0
    last = made.at(99)
    assert (last.state, last.tokens, last.text, last.seconds) == ("done", 3, "One two three", 3.0)


def test_what_is_tentative_is_seen_while_it_may_change() -> None:
    clock = Clock()
    made = Track(Lane("Beams 2", Beam(2)), clock)
    made.note(Prefill(0, 5))
    made.note(Tentative("One thing"))
    assert made.at(0).tentative == "One thing"
    clock.now += 2
    made.note(TextDelta("One two", 2))
    made.note(Finished("length", Usage(completion_tokens=3)))
    assert made.at(9).tentative == ""
    assert made.at(9).tokens == 3, "a token without a text of its own counts too"


@given(st.lists(st.tuples(st.text(max_size=3), st.floats(0, 5)), max_size=12), st.lists(st.floats(0, 60), max_size=5))
def test_a_lane_never_goes_back(steps: list[tuple[str, float]], moments: list[float]) -> None:
    clock = Clock()
    made = Track(Lane("Plain"), clock)
    made.note(Prefill(0, 1))
    for count, (text, seconds) in enumerate(steps, start=1):
        clock.now += seconds
        made.note(TextDelta(text, count))
    made.note(Finished("stop", Usage(completion_tokens=len(steps))))
    sights = [made.at(moment) for moment in sorted(moments)]
    assert all(later.text.startswith(earlier.text) for earlier, later in pairwise(sights))
    assert made.at(10**9).text == "".join(text for text, _ in steps)


# -- beside each other

WORDS = st.lists(st.sampled_from(["a ", "b ", "the ", "cat", "\n", " "]), max_size=12).map("".join)


@given(WORDS, WORDS)
def test_the_parts_are_the_text_and_what_is_not_marked_stands_in_both(first: str, other: str) -> None:
    parts = differences(first, other)
    assert "".join(text for text, _ in parts) == other
    if first == other:
        assert not any(different for _, different in parts)
    rest = iter(first)
    unmarked = "".join(text for text, different in parts if not different)
    assert all(character in rest for character in unmarked), "in their order"


def test_a_change_in_the_middle_is_what_is_marked() -> None:
    assert differences("The cat sat down", "The dog sat down") == [("The ", False), ("dog ", True), ("sat down", False)]


# -- the race


def test_lanes_run_one_after_the_other_and_are_seen_beside_each_other(scripted: Any) -> None:
    race = Race(scripted(Say("One two three four five", tokens_per_s=25)), "Count", lanes=TWO)
    seen = ran(race)
    states = [tuple(sight.state for sight in sights) for sights in seen]
    assert states[0] == ("waiting", "waiting")
    assert ("running", "waiting") in states
    assert ("again", "running") in states, "the first is seen again while the second runs"
    assert states[-1] == ("done", "done")
    assert not any(state.count("running") > 1 for state in states)
    plain, lookup = seen[-1]
    assert plain.text == lookup.text == "One two three four five"
    assert (plain.tokens, plain.speed_up, plain.same_text) == (5, None, None)
    assert lookup.same_text is True
    assert lookup.speed_up == pytest.approx(lookup.rate / plain.rate)
    assert lookup.parts == [("One two three four five", False)]


def test_a_stop_ends_the_lane_that_runs_and_begins_no_other(scripted: Any) -> None:
    until = threading.Event()
    engine = scripted(Say("One two "), Hold(until))
    race = Race(engine, "Count", lanes=TWO)

    def look(sights: list[Sight]) -> None:
        if sights[0].tokens == 2:
            race.stop()
            race.stop()

    last = ran(race, look)[-1]
    assert [sight.state for sight in last] == ["stopped", "waiting"]
    assert last[0].text == "One two "
    assert engine.status().running == 0


def test_a_stop_before_the_first_lane_counts(scripted: Any) -> None:
    race = Race(scripted(Say("One two"), Hold(threading.Event())), "Count", lanes=TWO)
    race.stop()
    assert [sight.state for sight in ran(race)[-1]] == ["waiting", "waiting"]


def test_leaving_stops_the_model(scripted: Any) -> None:
    engine = scripted(Say("One two "), Hold(threading.Event()))

    async def leave() -> None:
        lanes = Race(engine, "Count", lanes=TWO).run()
        async for sights in lanes:
            if sights[0].tokens:
                break
        await lanes.aclose()

    asyncio.run(leave())
    answered = engine.stream([Message("user", "Next")], Sampling(max_new_tokens=1))
    assert isinstance(list(answered)[-1], Finished), "whoever comes next is not kept waiting"


def test_what_fails_is_raised(scripted: Any) -> None:
    with pytest.raises(GenerationFailed):
        ran(Race(scripted(Fail("broken")), "Count", lanes=TWO))
    with pytest.raises(InvalidRequest, match="empty"):
        ran(Race(scripted(Say("One")), "  ", lanes=TWO))


def test_a_race_beside_somebody_elses_answer_is_known_to_be_slower() -> None:
    class Busy(ScriptedEngine):
        def status(self) -> Status:
            return replace(super().status(), running=2)

    engine = Busy(lambda _: [Say("One two")])
    try:
        race = Race(engine, "Count", lanes=TWO)
        ran(race)
    finally:
        engine.close()
    assert not race.alone


def test_everything_can_be_taken_away(scripted: Any) -> None:
    race = Race(scripted(Say("Eins, zwei, drü")), "Zähle", lanes=TWO, new_tokens=7)
    ran(race)
    lines = list(csv.DictReader(io.StringIO(race.table_csv())))
    assert [(line["lane"], line["state"], line["tokens"], line["same_text"]) for line in lines] == [
        ("Plain", "done", "3", ""),
        ("Prompt lookup", "done", "3", "True"),
    ]
    rows = list(csv.DictReader(io.StringIO(race.curves_csv())))
    assert [(row["lane"], row["tokens"]) for row in rows] == [
        (lane, str(tokens)) for lane in ("Plain", "Prompt lookup") for tokens in range(4)
    ]
    told = json.loads(race.to_json())
    assert (told["prompt"], told["new_tokens"], told["alone"]) == ("Zähle", 7, True)
    assert [lane["text"] for lane in told["lanes"]] == ["Eins, zwei, drü"] * 2
    assert [tokens for _, tokens in told["lanes"][1]["points"]] == [1, 2, 3]
    assert told["lanes"][1]["same_text"] is True


def test_a_real_model_through_all_lanes(tmp_path: Path) -> None:
    """Prompt lookup says what plain decoding says, beams what they say by themselves."""
    engine = open_engine(Config(model=str(tiny_folder(tmp_path))))
    try:
        plain, lookup, beams = ran(Race(engine, "the the the the", lanes=THREE, new_tokens=24))[-1]
        again = ran(Race(engine, "the the the the", lanes=THREE[2:], new_tokens=24))[-1][0]
    finally:
        engine.close()
    assert [sight.state for sight in (plain, lookup, beams)] == ["done"] * 3
    assert plain.text
    assert lookup.text == plain.text
    assert (lookup.same_text, beams.same_text) == (True, beams.text == plain.text)
    assert beams.text == again.text
    assert "".join(text for text, _ in beams.parts or []) == beams.text
    assert lookup.tokens == plain.tokens
    assert all(sight.rate and sight.ttft_s for sight in (plain, lookup, beams))
