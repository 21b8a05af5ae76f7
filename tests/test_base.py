"""The hand-over of events: in order, once each, one end, whoever comes first."""

import threading

import pytest

from streaming.engines.base import Generation, Item
from streaming.errors import GenerationFailed
from streaming.events import Event, Finished, Queued, TextDelta


def test_events_from_before_and_after_the_consumer_came_arrive_in_order() -> None:
    generation = Generation()
    generation.emit(TextDelta("a"))
    seen: list[Item] = []
    generation.subscribe(seen.append)
    generation.emit(TextDelta("b"))
    generation.emit(Finished("stop"))
    assert seen == [TextDelta("a"), TextDelta("b"), Finished("stop")]


def test_iterating_ends_with_finished() -> None:
    generation = Generation()
    generation.emit(TextDelta("a"))
    generation.emit(Finished("length"))
    assert list(generation) == [TextDelta("a"), Finished("length")]


def test_iterating_raises_the_error_after_what_came_before_it() -> None:
    generation = Generation()
    generation.emit(TextDelta("a"))
    generation.fail(GenerationFailed("broken"))
    seen: list[Event] = []
    with pytest.raises(GenerationFailed, match="broken"):
        seen.extend(generation)
    assert seen == [TextDelta("a")]


def test_nothing_follows_the_end() -> None:
    generation = Generation()
    generation.emit(Finished("stop"))
    generation.emit(TextDelta("late"))
    generation.fail(GenerationFailed("late"))
    generation.emit(Finished("cancelled"))
    assert generation.ended
    assert list(generation) == [Finished("stop")]


def test_there_is_one_consumer() -> None:
    generation = Generation()
    iter(generation)
    with pytest.raises(RuntimeError, match="one consumer"):
        generation.subscribe(print)


def test_who_observes_gets_everything_and_takes_nothing() -> None:
    generation = Generation()
    generation.emit(TextDelta("a"))
    seen: list[Item] = []
    generation.observe(seen.append)
    generation.emit(Finished("stop"))
    assert seen == [TextDelta("a"), Finished("stop")]
    assert list(generation) == seen
    with pytest.raises(RuntimeError, match="consumer already"):
        generation.observe(print)


def test_an_error_is_observed_before_it_is_raised() -> None:
    generation = Generation()
    seen: list[Item] = []
    generation.observe(seen.append)
    generation.subscribe(lambda _: seen.append(Queued(1)))
    generation.fail(error := GenerationFailed("broken"))
    assert seen == [error, Queued(1)]


def test_cancelling_is_told_once_and_never_too_late() -> None:
    told: list[int] = []
    generation = Generation(lambda: told.append(1))
    assert not generation.wait_cancelled(0)
    for _ in range(10):
        generation.cancel()
    assert told == [1]
    assert generation.wait_cancelled(60)


def test_leaving_the_block_cancels() -> None:
    with Generation() as generation:
        assert not generation.cancelled
    assert generation.cancelled


def test_a_listener_may_cancel_what_it_listens_to() -> None:
    """A waiting request ends in the very call that cancels it: with a plain lock, that thread would wait for itself."""
    generation = Generation(lambda: generation.emit(Finished("cancelled")))
    seen: list[Item] = []

    def listener(item: Item) -> None:
        seen.append(item)
        generation.cancel()

    generation.emit(Queued(2))
    generation.emit(Queued(1))
    generation.subscribe(listener)
    assert seen == [Queued(2), Queued(1), Finished("cancelled")]


def test_a_listener_that_raises_loses_its_answer_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    generation = Generation()
    seen: list[Item] = []

    def listener(item: Item) -> None:
        seen.append(item)
        raise ValueError("of no use to the producer")

    generation.subscribe(listener)
    generation.emit(TextDelta("a"))
    generation.emit(TextDelta("b"))
    assert seen == [TextDelta("a")]
    assert generation.cancelled
    assert generation.ended
    assert "of no use to the producer" in caplog.text


def test_many_threads_end_it_once() -> None:
    generation = Generation(lambda: generation.emit(Finished("cancelled")))
    threads = [threading.Thread(target=generation.cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(generation) == [Finished("cancelled")]
