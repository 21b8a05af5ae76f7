"""The requests that wait. Users take turns, one request each; within one user the first comes first.

Knows nothing of models. Thread-safe: anybody puts and removes, one worker takes, or several at once. Events are
emitted outside the lock and by one thread at a time, so a listener may call back into the queue, and only the worker
ever waits for one.
"""

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Generic, TypeVar

from streaming.engines.base import Generation
from streaming.errors import EngineBusy, StreamingError
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

    A request that can be taken at once is told nothing. Where `max_waiting` wait, one more is refused, or in its stead
    the last of somebody who has more of them in the line.
    """

    def __init__(self, max_waiting: int | None = None) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Request[Job]]] = {}  # users in the order of their turns
        self._serving: list[Request[Job]] = []
        self._taking = False
        self._places = 0
        self._detail = ""
        self._closed: StreamingError | None = None
        self._told: dict[Request[Job], Queued] = {}
        self._telling = False
        self._stale = False

    @property
    def serving(self) -> tuple[Request[Job], ...]:
        """The requests that were taken and are still being worked on."""
        return tuple(self._serving)

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def put(self, request: Request[Job]) -> None:
        """Raises the error that the queue was closed with, if it was, or EngineBusy."""
        refused = None
        with self._changed:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            if self._max_waiting is not None and len(self) >= self._max_waiting:
                refused = self._make_room(request)
            self._waiting.setdefault(request.user, deque()).append(request)
            self._changed.notify_all()
        if refused is not None:
            refused.generation.fail(_busy(self._max_waiting))
        self._tell()

    def waiting(self) -> list[Request[Job]]:
        """All who wait, in the order they will be taken."""
        with self._changed:
            return self._order()

    def claim(self, request: Request[Job]) -> bool:
        """Take this one beside those that are being worked on. False: it is not in the line any more."""
        with self._changed:
            if request not in self._waiting.get(request.user, ()):
                return False
            self._begin_turn(request)
        self._tell()
        return True

    def done(self, request: Request[Job]) -> None:
        """One that was taken is not worked on any more."""
        with self._changed:
            self._end_turn(request)
        self._tell()

    def take(self) -> Request[Job] | None:
        """The next request, when there is one: the worker is done with those before. None: the queue is closed."""
        with self._changed:
            for served in self.serving:
                self._end_turn(served)
            self._taking = True
            self._changed.wait_for(lambda: self._closed or (self._waiting and not self._telling))
            self._taking = False
            if self._closed:
                return None
            request = self._order()[0]
            self._begin_turn(request)
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

    def allow(self, places: int) -> None:
        """For a worker that claims instead of taking: so many are served at once. Who is among them does not wait."""
        with self._changed:
            self._places = places
        self._tell()

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
        """All in the order they will be taken, if nobody else comes. Whose requests run has had these turns already."""
        running = Counter(request.user for request in self._serving)
        lines = [self._waiting[user] for user in sorted(self._waiting, key=lambda user: running[user])]
        return [request for turn in zip_longest(*lines) for request in turn if request is not None]

    def _begin_turn(self, request: Request[Job]) -> None:
        self._drop(request)
        self._serving.append(request)

    def _end_turn(self, request: Request[Job]) -> None:
        self._serving.remove(request)
        if request.user in self._waiting:  # behind the others
            self._waiting[request.user] = self._waiting.pop(request.user)

    def _make_room(self, newcomer: Request[Job]) -> Request[Job]:
        """Nobody can fill the line to shut the others out: of those who have most in it, the last to come has to go."""
        longest = max(self._waiting.values(), key=len)
        if len(longest) <= len(self._waiting.get(newcomer.user, ())) + 1:
            raise _busy(self._max_waiting)
        refused = longest[-1]
        self._drop(refused)
        return refused

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
                first = 0 if self._taking else 1 - max(0, self._places - len(self._serving))
                now = {request: Queued(place, self._detail) for place, request in enumerate(self._order(), first)}
                news = [
                    (request, event)
                    for request, event in now.items()
                    if event.position > 0 and event != self._told.get(request)
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


def _busy(waiting: int | None) -> EngineBusy:
    return EngineBusy(
        f"The model is busy: {waiting} requests wait already, this one would be number {(waiting or 0) + 1}. "
        "Try again in a moment."
    )
