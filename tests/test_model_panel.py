"""What the page shows of the model, and the panel's questions: the handlers, with an engine and a picker that obey."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.engines.base import Status
from streaming.errors import InvalidRequest, ModelNotFound, StreamingError
from streaming.picker import Choice, Picking
from streaming.ui.models import ModelPanel
from tests.puppet import Puppet

STARTER = Choice("starter", "SmolLM2-135M", "loaded", 270_000_000, 135_000_000, 600_000_000, True)
SMALL = Choice("HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2-360M-Instruct", "suggested", 0, 0, 0, None)
LARGE = Choice("big/Large", "Large", "asked", 160_000_000_000, 80_000_000_000, 350_000_000_000, False)


class Picks:
    """A picker that notes what it is asked for."""

    def __init__(self) -> None:
        self.offered = self.hub = True
        self.going = Picking("idle")
        self.asked: list[str] = []
        self.refusal: StreamingError | None = None

    def choices(self) -> list[Choice]:
        return [SMALL, STARTER]

    def look_up(self, name: str) -> Choice:
        if self.refusal:
            raise self.refusal
        return LARGE

    def choose(self, name: str) -> None:
        if self.refusal:
            raise self.refusal
        self.asked.append(name)

    def cancel(self) -> None:
        self.asked.append("cancel")

    def picking(self) -> Picking:
        return self.going


@pytest.fixture
def engine() -> Puppet:
    return Puppet()


@pytest.fixture
def picks() -> Picks:
    return Picks()


@pytest.fixture
def panel(engine: Puppet, picks: Picks) -> ModelPanel:
    return ModelPanel(engine, picks)  # type: ignore[arg-type]


def tab(name: str = "tab") -> Any:
    return SimpleNamespace(session_hash=name)


def told(panel: ModelPanel, *changes: Callable[[], None]) -> list[tuple[Any, ...]]:
    """What a tab is told at first, and after each change."""

    async def follow() -> list[tuple[Any, ...]]:
        heard = []
        following = panel.follow(tab())
        for change in (lambda: None, *changes):
            change()
            heard.append(await anext(following))
        await following.aclose()
        return heard

    return asyncio.run(follow())


def skipped(value: Any) -> bool:
    return bool(value == {"__type__": "update"})


def test_a_tab_is_told_what_the_engine_can_do(panel: ModelPanel, engine: Puppet) -> None:
    engine.state = Status("ready", "puppet", strategies=("beam",), can_think=True)
    ((shown, banner, thinking, ways, marks),) = told(panel)
    assert (shown["name"], shown["title"], banner) == ("puppet", "puppet", "")
    assert (shown["offered"], shown["hub"]) == (True, True)
    assert thinking["visible"] is True
    assert (ways["choices"], ways["visible"]) == (["Plain", "Beams 2", "Beams 4"], True)
    assert skipped(marks), "beams do not guess"
    engine.state = Status("ready", "puppet", strategies=("beam", "prompt_lookup"))
    ((*_, marks),) = told(panel)
    assert marks["visible"] is True
    engine.state = Status("ready", "puppet")
    ((*_, ways, marks),) = told(panel)
    assert skipped(ways), "what an old conversation brings is to be seen, and given up"
    assert skipped(marks)


def test_only_what_has_changed_is_told_again(panel: ModelPanel, engine: Puppet) -> None:
    engine.state = Status("loading", "owner/one", "Loading owner/one into memory")

    def ready() -> None:
        engine.state = Status("ready", "owner/one", strategies=("beam",))

    def other() -> None:
        engine.state = Status("ready", "owner/two")

    loading, loaded, switched = told(panel, ready, other)
    assert "Loading owner/one into memory" in loading[1]
    assert skipped(loaded[0])
    assert loaded[1] == ""
    assert loaded[3]["visible"] is True
    assert (switched[0]["name"], switched[0]["title"]) == ("owner/two", "two")
    assert skipped(switched[1])
    assert switched[3]["visible"] is False, "the other model has no strategies"


def test_what_goes_on_reaches_every_tab(panel: ModelPanel, picks: Picks) -> None:
    def fetch() -> None:
        picks.going = Picking("fetching", "owner/two", "Downloading owner/two: 1 of 2 MB", 0.5)

    _, fetching = told(panel, fetch)
    assert fetching[0]["picking"] == {
        "state": "fetching",
        "name": "owner/two",
        "title": "two",
        "detail": "Downloading owner/two: 1 of 2 MB",
        "fraction": 0.5,
    }


def test_a_newer_follower_of_a_tab_ends_the_older(panel: ModelPanel) -> None:
    async def both() -> tuple[Any, ...]:
        older = panel.follow(tab())
        await anext(older)
        last = asyncio.ensure_future(anext(older))
        await asyncio.sleep(0)
        newer = panel.follow(tab())
        await anext(newer)
        told = await last
        await newer.aclose()
        return told

    assert all(map(skipped, asyncio.run(both())))


def test_the_choices_are_under_their_headings_with_size_and_fit(panel: ModelPanel) -> None:
    reply = asyncio.run(panel.ask({"op": "list"}))
    assert [group["heading"] for group in reply["groups"]] == ["In use", "Suggestions for this machine"]
    ((used,), (suggested,)) = (group["choices"] for group in reply["groups"])
    assert used["about"] == "135M parameters · 270 MB on disk · 600 MB memory"
    assert suggested["about"] == "", "nothing is made up"


def test_one_that_is_asked_for_is_looked_up_before_anything_is_fetched(panel: ModelPanel, picks: Picks) -> None:
    reply = asyncio.run(panel.ask({"op": "look-up", "text": " big/Large "}))
    assert reply["found"]["fits"] is False
    assert reply["found"]["about"] == (
        "80.0B parameters · 160.0 GB download · needs 350.0 GB of memory, more than is free here"
    )
    assert picks.asked == []


def test_a_choice_and_a_cancel_reach_the_picker(panel: ModelPanel, picks: Picks) -> None:
    assert asyncio.run(panel.ask({"op": "choose", "text": "big/Large"}))["problem"] == ""
    asyncio.run(panel.ask({"op": "cancel"}))
    assert picks.asked == ["big/Large", "cancel"]


@pytest.mark.parametrize(
    "refusal",
    [ModelNotFound("There is no model big/Large."), InvalidRequest("Another model is being fetched: wait for it.")],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_is_said_in_words_each_time(panel: ModelPanel, picks: Picks, refusal: StreamingError) -> None:
    picks.refusal = refusal
    replies = [asyncio.run(panel.ask({"op": op, "text": "big/Large"})) for op in ("look-up", "choose", "choose")]
    assert {reply["problem"] for reply in replies} == {str(refusal)}
    assert len({reply["number"] for reply in replies}) == 3, "the page shows what is new"


@pytest.mark.parametrize("action", [None, 7, {"op": "run"}, {"op": ["list"]}, {}])
def test_what_no_page_asks_for_does_nothing(panel: ModelPanel, picks: Picks, action: Any) -> None:
    reply = asyncio.run(panel.ask(action))
    assert set(reply) == {"number", "problem"}
    assert picks.asked == []


def test_where_it_is_off_nothing_can_be_chosen(engine: Puppet, picks: Picks) -> None:
    picks.offered = False
    panel = ModelPanel(engine, picks)  # type: ignore[arg-type]
    reply = asyncio.run(panel.ask({"op": "choose", "text": "big/Large"}))
    assert "--allow-model" in reply["problem"]
    assert picks.asked == []
    ((shown, *_),) = told(panel)
    assert shown["offered"] is False
