"""The requests that wait. Users take turns, one request each; within one user the first comes first.

Knows nothing of models. Thread-safe: anybody puts and removes, one worker takes. Events are emitted outside the lock
and by one thread at a time, so a listener may call back into the queue, and only the worker ever waits for one.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Generic, TypeVar

from streaming.engines.base import Generation
from streaming.errors import StreamingError
from streaming.events import Queued

Job = TypeVar("Job")


@dataclass(eq=False, slots=True)
class Request(Generic[Job]):
    """A job of a user, and the generation that its answer goes to. `arrived` is a time.monotonic()."""

    user: str
    job: Job
    generation: Generation
    arrived: float = field(default_factory=time.monotonic)


class FairQueue(Generic[Job]):
    """Tells every waiting request its position, from 1, as soon as and whenever that changes.

    A request that can be taken at once is told nothing.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Request[Job]]] = {}  # users in the order of their turns
        self._serving: Request[Job] | None = None
        self._taking = False
        self._detail = ""
        self._closed: StreamingError | None = None
        self._told: dict[Request[Job], Queued] = {}
        self._telling = False
        self._stale = False

    @property
    def serving(self) -> Request[Job] | None:
        """The request that was taken last and is still being worked on."""
        return self._serving

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def put(self, request: Request[Job]) -> None:
        """Raises the error that the queue was closed with, if it was."""
        with self._changed:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            self._waiting.setdefault(request.user, deque()).append(request)
            self._changed.notify_all()
        self._tell()

    def take(self) -> Request[Job] | None:
        """The next request, when there is one: the worker is done with the one before. None: the queue is closed."""
        with self._changed:
            self._end_turn()
            self._taking = True
            self._changed.wait_for(lambda: self._closed or (self._waiting and not self._telling))
            self._taking = False
            if self._closed:
                return None
            request = self._order()[0]
            self._drop(request)
            self._serving = request
        self._tell()
        return request

    def remove(self, request: Request[Job]) -> bool:
        """Take a request out of the line. False: it is not in it any more."""
        with self._changed:
            if request not in self._waiting.get(request.user, ()):
                return False
            self._drop(request)
        self._tell()
        return True

    def say(self, detail: str) -> None:
        """What everybody waits for, in words, if not for each other."""
        with self._changed:
            self._detail = detail
        self._tell()

    def close(self, error: StreamingError) -> None:
        """Refuse whoever waits, and whoever comes, with `error`."""
        with self._changed:
            self._closed = error
            refused = self._order()
            self._waiting.clear()
            self._changed.notify_all()
        for request in refused:
            request.generation.fail(error)

    # -- under the lock

    def _order(self) -> list[Request[Job]]:
        """All in the order they will be taken, if nobody else comes. Whose request runs has had this turn already."""
        serving = self._serving.user if self._serving else None
        lines = [line for user, line in self._waiting.items() if user != serving]
        if serving is not None and serving in self._waiting:
            lines.append(self._waiting[serving])
        return [request for turn in zip_longest(*lines) for request in turn if request is not None]

    def _end_turn(self) -> None:
        if self._serving is not None and self._serving.user in self._waiting:
            self._waiting[self._serving.user] = self._waiting.pop(self._serving.user)
        self._serving = None

    def _drop(self, request: Request[Job]) -> None:
        line = self._waiting[request.user]
        line.remove(request)
        if not line:
            del self._waiting[request.user]

    # -- outside the lock

    def _tell(self) -> None:
        with self._changed:
            self._stale = True
            if self._telling:  # whoever does it, this thread further up perhaps, looks again before it stops
                return
            self._telling = True
        try:
            while news := self._news():
                for request, event in news:
                    request.generation.emit(event)
        except BaseException:
            self._stop_telling()
            raise

    def _news(self) -> list[tuple[Request[Job], Queued]]:
        """What has not been told yet. Empty only when all has been, and then this thread tells no more."""
        with self._changed:
            while self._stale:
                self._stale = False
                first = 0 if self._taking else 1
                now = {request: Queued(place, self._detail) for place, request in enumerate(self._order(), first)}
                news = [
                    (request, event)
                    for request, event in now.items()
                    if event.position and event != self._told.get(request)
                ]
                self._told = now
                if news:
                    return news
            self._stop_telling()
            return []

    def _stop_telling(self) -> None:
        with self._changed:
            self._telling = False
            self._changed.notify_all()
