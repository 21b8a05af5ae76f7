"""Strategies as the drawer names them: what an engine can do is offered, and every name leads back."""

import pytest

from streaming.engines.base import Status
from streaming.errors import InvalidRequest
from streaming.messages import Assisted, Beam, PromptLookup, Strategy
from streaming.ui.ways import guesses, name_of, named, offered


@pytest.mark.parametrize(
    "strategy", [None, Beam(3), Beam(4), PromptLookup(), PromptLookup(7), Assisted("small/model"), Assisted("a\nb")]
)
def test_every_strategy_has_a_name_that_leads_back_to_it(strategy: Strategy | None) -> None:
    assert named(name_of(strategy)) == strategy


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Beams 99", "num_beams is 99"),
        ("Beams", "no strategy 'Beams'"),
        ("", "no strategy ''"),
        ("Assisted by ", "no strategy"),
        ("Assisted by  ", "needs the name of the model"),
        ("Plainly", "no strategy 'Plainly'"),
    ],
)
def test_a_strategy_that_there_is_not_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        named(name)


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        (Status("ready", "remote"), ["Plain"]),
        (Status("ready", "on a GPU", strategies=("prompt_lookup",)), ["Plain", "Prompt lookup"]),
        (
            Status("ready", "all", strategies=("beam", "prompt_lookup", "assisted"), draft="owner/small"),
            ["Plain", "Beams 2", "Beams 4", "Prompt lookup", "Assisted by small"],
        ),
    ],
)
def test_what_the_engine_can_do_is_offered_and_can_be_sent(engine: Status, names: list[str]) -> None:
    assert offered(engine) == names
    assert [name_of(named(name)) for name in names] == names


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [((), False), (("beam",), False), (("beam", "prompt_lookup"), True), (("assisted",), True)],
)
def test_beams_are_no_guesses(strategies: tuple[str, ...], expected: bool) -> None:
    assert guesses(Status("ready", "puppet", strategies=strategies)) is expected
