"""Which handler shows a run in which browser tab: the newest one. An older one ends before anything else is shown.

Only for one event loop. Gradio's own `cancels=` would do, but it can take the newer event's stream down with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Followers:
    """Tabs by Gradio's session hash; a tab without a follower is not kept."""

    def __init__(self) -> None:
        self._latest: dict[str, asyncio.Event] = {}  # set when that follower has ended

    async def dismiss(self, tab: str) -> None:
        """Have the tab's follower end, and wait until it has."""
        follower = self._latest.pop(tab, None)
        if follower is not None:
            await follower.wait()

    @asynccontextmanager
    async def follow(self, tab: str) -> AsyncIterator[Callable[[], bool]]:
        """Be the tab's follower. Yields a function that tells whether to go on."""
        earlier, ended = self._latest.get(tab), asyncio.Event()
        self._latest[tab] = ended
        try:
            if earlier is not None:
                await earlier.wait()
            yield lambda: self._latest.get(tab) is ended
        finally:
            ended.set()
            if self._latest.get(tab) is ended:
                del self._latest[tab]
