"""From an engine's thread to an event loop: the events of a generation as an async iteration, without a thread.

The engine's thread only leaves a note. What has come while the consumer was busy, a slow client perhaps, is merged.
"""

import asyncio
from collections.abc import AsyncIterator

from streaming.engines.base import Generation, Item
from streaming.errors import StreamingError
from streaming.events import Event, Finished, ReasoningDelta, TextDelta


async def follow(generation: Generation) -> AsyncIterator[Event]:
    """The events up to Finished, or raises the StreamingError. Leaving it cancels nothing."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Item] = asyncio.Queue()

    def hand_over(item: Item) -> None:
        if loop.is_closed():  # and the consumer gone with it
            generation.cancel()
        else:
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    generation.subscribe(hand_over)
    while True:
        items = [await arrived.get()]
        while not arrived.empty():
            items.append(arrived.get_nowait())
        for item in _merged(items):
            if isinstance(item, StreamingError):
                raise item
            yield item
            if isinstance(item, Finished):
                return


def _merged(items: list[Item]) -> list[Item]:
    merged: list[Item] = []
    for item in items:
        match merged[-1] if merged else None, item:
            case TextDelta(before), TextDelta(text, tokens):
                merged[-1] = TextDelta(before + text, tokens)
            case ReasoningDelta(before), ReasoningDelta(text, tokens):
                merged[-1] = ReasoningDelta(before + text, tokens)
            case _:
                merged.append(item)
    return merged
