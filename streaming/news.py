"""Whether anything has changed in what somebody would be shown: one growing number for each owner.

Knows not what has changed. Thread-safe; waiting takes no thread. What is remembered of owners is bounded.
"""

import threading
from collections import OrderedDict

from streaming.waiters import Waiters, wake

MOST_OWNERS = 10_000


class News:
    """The number grows with each `tell`. Of an owner who was forgotten it may have grown once more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0  # of all news: what is told last has the highest number
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0  # the highest number of those who are not remembered
        self._waiters: dict[str, Waiters] = {}

    def version(self, owner: str) -> int:
        with self._lock:
            return self._version(owner)

    def tell(self, owner: str) -> None:
        """Something has changed. Never blocks."""
        with self._lock:
            self._count += 1
            self._versions[owner] = self._count
            self._versions.move_to_end(owner)
            while len(self._versions) > MOST_OWNERS:
                self._forgotten = self._versions.popitem(last=False)[1]
            waiters = self._waiters.pop(owner, None)
            waiting = waiters.taken() if waiters is not None else set()
        wake(waiting)

    async def changed(self, owner: str, version: int) -> None:
        """Return as soon as the number is higher than `version`."""
        while True:
            with self._lock:
                if self._version(owner) > version:
                    return
                waiters = self._waiters.setdefault(owner, Waiters())
                waiter = waiters.join()
            try:
                await waiter
            finally:
                with self._lock:
                    waiters.leave(waiter)
                    if not len(waiters) and self._waiters.get(owner) is waiters:
                        del self._waiters[owner]

    def _version(self, owner: str) -> int:
        return self._versions.get(owner, self._forgotten)
