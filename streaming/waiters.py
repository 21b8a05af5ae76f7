"""Who waits for news, on whatever event loop: woken from any thread, without a thread each.

Knows not what the news is. The owner guards it with the lock that guards the news itself; `wake` belongs outside it.
"""

import asyncio
from contextlib import suppress


class Waiters:
    """Futures of those who wait. A new one is handed out by `join`; `leave` takes it back, whatever became of it."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self) -> "asyncio.Future[None]":
        """Wait on the running event loop."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        return waiter

    def leave(self, waiter: "asyncio.Future[None]") -> None:
        self._waiting.discard(waiter)

    def taken(self) -> "set[asyncio.Future[None]]":
        """All who wait, to be woken: from now on they do not wait any more."""
        waiting, self._waiting = self._waiting, set()
        return waiting


def wake(waiting: "set[asyncio.Future[None]]") -> None:
    """Have each of them go on, on its own event loop."""
    for waiter in waiting:
        with suppress(RuntimeError):  # the loop is closed, and its viewers are gone with it
            waiter.get_loop().call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
