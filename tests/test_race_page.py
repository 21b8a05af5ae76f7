"""The race's handlers, called as Gradio calls them, by browsers that behave and clients that do not; what is drawn."""

import asyncio
import threading
from collections.abc import Iterator
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.allowance import Allowance
from streaming.engines.base import Status
from streaming.engines.script import Hold, Say
from streaming.engines.scripted import ScriptedEngine
from streaming.messages import Beam
from streaming.race import Sight
from streaming.ui.race import CODE, EXAMPLES, Races, lanes_of
from streaming.ui.race_view import lanes_html, verdict
from streaming.ui.ways import name_of

ALL = Status("ready", "all", strategies=("beam", "prompt_lookup", "assisted"), draft="owner/small")
BROWSER = {"owner": "a browser of its own"}
HOSTILE = """${alert(1)} {{value}} <img src=x onerror=alert(1)> </section> "'`\\"""


class Serverlike(ScriptedEngine):
    """As an engine is that has no strategies."""

    def status(self) -> Status:
        return Status("ready", "far away")


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine(lambda _: [Say("One two three")])
    yield made
    made.close()


def tab(name: str = "tab") -> Any:
    return SimpleNamespace(session_hash=name, username=None)


def raced(races: Races, prompt: Any, chosen: Any, tokens: Any, request: Any) -> list[tuple[str, Any]]:
    async def run() -> list[tuple[str, Any]]:
        return [seen async for seen in races.run(request, BROWSER, prompt, chosen, tokens)]

    return asyncio.run(run())


def test_lanes_are_what_the_engine_can_do_under_the_names_of_the_drawer() -> None:
    lanes = lanes_of(ALL)
    assert [lane.name for lane in lanes] == ["Plain", "Prompt lookup", "Assisted by small", "Beams 2", "Beams 4"]
    assert all(name_of(lane.strategy) == lane.name for lane in lanes)
    assert [lane.name for lane in lanes_of(Status("ready", "far away"))] == ["Plain"]


def test_an_engine_without_strategies_has_nothing_to_race_and_says_so() -> None:
    engine = Serverlike()

    async def look() -> Any:
        return [seen async for seen in Races(engine).look()][-1]

    try:
        notice, chosen, start, board = asyncio.run(look())
    finally:
        engine.close()
    assert "Only a model in this process can be raced" in notice
    assert (chosen.choices, start.interactive, board) == ([], False, "")


def test_a_race_ends_with_a_table_and_a_chart(engine: ScriptedEngine) -> None:
    races = Races(engine)
    notice, board = raced(races, "Count", ["Beams 2"], 8, tab())[-1]
    assert notice == ""
    assert board.count('data-state="done"') == 2
    results, chart = races.end(tab())
    assert "Beams 2" in results
    assert chart.visible is True
    assert races.end(tab())[0] == "", "it is told once"


@pytest.mark.parametrize(
    ("prompt", "chosen", "tokens", "words"),
    [
        ("  ", [], 8, "empty"),
        (None, [], 8, "empty"),
        ("Count", ["Assisted by small"], 8, "no such way of decoding"),
        ("Count", ["Beams 31"], 8, "no such way of decoding"),
        ("Count", [["Plain"]], 8, "no such way of decoding"),
        ("Count", "Beams 2", 8, "no such way of decoding"),
        ("Count", [], 10**9, "from 8 to 512 tokens"),
        ("Count", [], float("nan"), "from 8 to 512 tokens"),
        ("Count", [], "8", "from 8 to 512 tokens"),
        ("Count", [], True, "from 8 to 512 tokens"),
    ],
)
def test_what_no_page_of_ours_would_send_is_refused_in_words(
    engine: ScriptedEngine, prompt: Any, chosen: Any, tokens: Any, words: str
) -> None:
    assert words in raced(Races(engine), prompt, chosen, tokens, tab())[-1][0]
    assert engine.decode_steps == 0


def test_only_the_tab_itself_stops_its_race_and_closing_it_does() -> None:
    engine = ScriptedEngine(lambda _: [Say("One two "), Hold(threading.Event())])
    races = Races(engine)

    async def run() -> str:
        board, left = "", False
        async for _, board in races.run(tab(), BROWSER, "Count", [], 8):
            if "One two " in board and not left:
                races.stop(tab("another"))
                races.leave(tab("another"))
                assert engine.status().running == 1
                races.leave(tab())
                left = True
        return board

    try:
        assert 'data-state="stopped"' in asyncio.run(run())
        assert engine.status().running == 0
    finally:
        engine.close()


def test_where_visitors_have_an_allowance_a_race_is_one_request_and_all_its_tokens_count(
    engine: ScriptedEngine,
) -> None:
    races = Races(engine, Allowance(requests_per_minute=2, tokens_per_hour=9))
    told = [raced(races, "Count", ["Beams 2"], 8, tab())[-1][0] for _ in range(3)]
    assert told[:2] == ["", ""], "three tokens a lane, two lanes: six of nine"
    assert "9 tokens for an hour are used up" in told[2]
    requests = Races(engine, Allowance(requests_per_minute=1))
    assert raced(requests, "Count", [], 8, tab())[-1][0] == ""
    assert "asked 1 times within a minute" in raced(requests, "Count", [], 8, tab("another"))[-1][0]


def test_a_browser_that_is_known_stays_who_it_is_and_another_is_given_a_name() -> None:
    races = Races(ScriptedEngine())
    kept = {**BROWSER, "conversation": "one", "seen": "two"}
    assert races.meet(kept, tab()) == kept
    given = races.meet({}, tab())
    assert len(given["owner"]) >= 16
    assert races.meet(given, tab()) == given


def test_what_a_model_writes_is_text_and_no_markup() -> None:
    sights = [
        Sight("Plain", "running", text=HOSTILE, tentative=HOSTILE),
        Sight("Beams 2", "done", text=HOSTILE, parts=[(HOSTILE, True)], same_text=False),
    ]
    html = lanes_html(sights, running=True)
    assert "<img" not in html
    assert html.count("</section>") == 2
    assert unescape(html).count(HOSTILE) == 3
    assert html.count("<mark>") == 1


@pytest.mark.parametrize(
    ("speed_ups", "words"),
    [
        ({}, "The race is over."),
        ({"Prompt lookup": 1.31, "Beams 2": 0.5}, "Prompt lookup won: 1.31 × as fast as plain decoding."),
        ({"Prompt lookup": 1.04, "Beams 2": 0.5}, "Nothing was faster than plain decoding here."),
    ],
)
def test_a_race_in_a_sentence(speed_ups: dict[str, float], words: str) -> None:
    others = [Sight(lane, "done", speed_up=speed_up) for lane, speed_up in speed_ups.items()]
    assert verdict([Sight("Plain", "done"), *others]) == words
    assert verdict([Sight("Plain", "stopped"), *others]) == "The race was stopped."


def test_only_what_is_quicker_than_plain_is_shown_as_a_gain() -> None:
    html = lanes_html(
        [Sight("Prompt lookup", "done", speed_up=2.5), Sight("Beams 2", "done", speed_up=0.5)], running=False
    )
    assert '<b class="quicker">2.50 × plain</b>' in html
    assert "<b>0.50 × plain</b>" in html


def test_examples_have_something_to_guess_from_and_nothing() -> None:
    assert [CODE in text for _, text in EXAMPLES] == [True, False, False, False]
    assert sum("nothing to guess" in name for name, _ in EXAMPLES) == 2
    assert Beam(4) in [lane.strategy for lane in lanes_of(ALL)]
