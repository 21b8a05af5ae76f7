"""Which handler keeps which browser tab up to date: the newest one. An older one ends before anything else is shown.

Only for one event loop. Gradio's own `cancels=` would do, but it can take the newer event's stream down with it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


class Follower:
    """One handler that goes on as long as it is `wanted`."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._dismissed = asyncio.Event()

    @property
    def wanted(self) -> bool:
        return not self._dismissed.is_set()

    def dismiss(self) -> None:
        self._dismissed.set()

    async def wait(self, news: Coroutine[Any, Any, None]) -> None:
        """Wait for news, or for not being wanted any more."""
        waiting = {asyncio.create_task(news), asyncio.create_task(self._dismissed.wait())}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        for task in done:
            task.result()  # an error of the news is the handler's


class Followers:
    """Tabs by Gradio's session hash; a tab without a follower is not kept."""

    def __init__(self) -> None:
        self._latest: dict[str, Follower] = {}

    def __len__(self) -> int:
        return len(self._latest)

    async def dismiss(self, tab: str) -> None:
        """Have the tab's follower end, and wait until it has."""
        follower = self._latest.pop(tab, None)
        if follower is not None:
            follower.dismiss()
            await follower.ended.wait()

    @asynccontextmanager
    async def follow(self, tab: str) -> AsyncIterator[Follower]:
        """Be the tab's follower, once an earlier one has ended."""
        earlier, latest = self._latest.get(tab), Follower()
        self._latest[tab] = latest
        try:
            if earlier is not None:
                earlier.dismiss()
                await earlier.ended.wait()
            yield latest
        finally:
            latest.ended.set()
            if self._latest.get(tab) is latest:
                del self._latest[tab]
