"""The units of a stream are values: they compare by what they say, not by when they came."""

from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from streaming.events import (
    Delta,
    Event,
    Finished,
    Prefill,
    Queued,
    ReasoningDelta,
    Tentative,
    TextDelta,
    Timings,
    Usage,
)

ONE_OF_EACH: tuple[Event, ...] = (
    Queued(2, "Loading the model"),
    Prefill(512, 1_024),
    ReasoningDelta("Hm.", tokens=2),
    TextDelta("Yes.", tokens=4),
    Tentative("But", "no"),
    Finished("stop", Usage(completion_tokens=4), Timings(ttft_s=0.1), stopped_by="END"),
)


def test_an_event_is_one_of_six() -> None:
    assert {type(event) for event in ONE_OF_EACH} == set(get_args(Event))
    assert set(get_args(Delta)) < set(get_args(Event))


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_events_are_frozen_and_can_be_kept_in_a_set(event: Event) -> None:
    name = type(event).__slots__[0]
    with pytest.raises(FrozenInstanceError):
        setattr(event, name, getattr(event, name))
    assert event in {event}


def test_how_many_tokens_a_text_took_does_not_make_it_another_text() -> None:
    """Two engines that say the same are equal in the contract suite, however their tokenizers cut it."""
    assert TextDelta("a", tokens=1) == TextDelta("a", tokens=2)
    assert TextDelta("a") != ReasoningDelta("a")


def test_an_answer_can_end_without_figures() -> None:
    assert Finished("cancelled") == Finished("cancelled", Usage(0, 0, 0, 0), Timings(0.0, 0.0, 0.0), None)


def test_an_empty_tentative_text_is_none() -> None:
    assert not Tentative()
    assert Tentative(" ")
    assert Tentative(reasoning="a")
