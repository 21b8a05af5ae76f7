"""Events from another thread on an event loop: all of them, in order, and no piece for a reader who is late."""

import asyncio
import threading

import pytest

from streaming.api.follow import follow
from streaming.engines.base import Generation
from streaming.errors import GenerationFailed
from streaming.events import Event, Finished, Prefill, ReasoningDelta, TextDelta

END = Finished("stop")


async def read(generation: Generation) -> list[Event]:
    return [event async for event in follow(generation)]


def test_what_came_before_the_reader_is_merged() -> None:
    generation = Generation()
    said = [Prefill(0, 2), ReasoningDelta("a", 1), ReasoningDelta("b", 2), TextDelta("c", 3), TextDelta("d", 4), END]
    for event in said:
        generation.emit(event)
    got = asyncio.run(read(generation))
    assert got == [Prefill(0, 2), ReasoningDelta("ab"), TextDelta("cd"), END]
    assert [event.tokens for event in got if isinstance(event, ReasoningDelta | TextDelta)] == [2, 4]


def test_events_of_another_thread_arrive_in_order_and_whole() -> None:
    generation = Generation()

    def write() -> None:
        for number in range(2000):
            generation.emit(TextDelta(f"{number} ", number))
        generation.emit(END)

    thread = threading.Thread(target=write)

    async def scenario() -> list[Event]:
        thread.start()
        return await read(generation)

    got = asyncio.run(scenario())
    thread.join()
    assert "".join(event.text for event in got if isinstance(event, TextDelta)).split() == [*map(str, range(2000))]
    assert got[-1] == END


def test_an_error_comes_after_what_was_said() -> None:
    async def scenario() -> None:
        async for event in follow(generation):
            got.append(event)

    generation, got = Generation(), list[Event]()
    generation.emit(TextDelta("a"))
    generation.fail(GenerationFailed("broken"))
    with pytest.raises(GenerationFailed, match="broken"):
        asyncio.run(scenario())
    assert got == [TextDelta("a")]


def test_a_loop_that_has_ended_ends_the_answer() -> None:
    async def scenario() -> None:
        async for _ in follow(generation):
            return

    generation = Generation()
    generation.emit(TextDelta("a"))
    asyncio.run(scenario())
    assert not generation.cancelled
    generation.emit(TextDelta("b"))
    assert generation.cancelled
