"""The requests that wait. Users take turns, one request each; within one user the first comes first.

Knows nothing of models. There may be a barrier: who comes after it is held in a second line, until it is lifted.
Thread-safe: anybody puts and removes, one worker takes, or several at once. Events are emitted outside the lock and by
one thread at a time, so a listener may call back into the queue, and only the worker ever waits for one.
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
_Line = dict[str, deque["Request[Job]"]]  # users in the order of their turns


@dataclass(eq=False, slots=True)
class Request(Generic[Job]):
    """A job of a user, and the generation that its answer goes to. `arrived` is a time.monotonic()."""

    user: str
    job: Job
    generation: Generation
    arrived: float = field(default_factory=time.monotonic)


@dataclass(eq=False, slots=True)
class Barrier:
    """Parts those who came before it from those who come after. `detail` says what these wait for; `reached`: nobody is
    left before it, and what it is there for is being done."""

    detail: str
    reached: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """Nobody came, for as long as was waited."""


class FairQueue(Generic[Job]):
    """Tells every waiting request its position, from 1, as soon as and whenever that changes.

    A request that can be taken at once is told nothing. Where `max_waiting` wait, one more is refused, or in its stead
    the last of somebody who has more of them in the line.
    """

    def __init__(self, max_waiting: int | None = None) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._lines: list[_Line[Job]] = [{}]  # the front; and behind a barrier, those who are held
        self._barrier: Barrier | None = None
        self._refusal: StreamingError | None = None
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

    @property
    def barrier(self) -> Barrier | None:
        """The one that those who come now are held by."""
        return self._barrier

    def __len__(self) -> int:
        with self._changed:
            return sum(len(waiting) for line in self._lines for waiting in line.values())

    def put(self, request: Request[Job]) -> None:
        """Raises EngineBusy, or the error that the queue was closed with, or that it refuses everybody with."""
        refused = None
        with self._changed:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            if self._refusal is not None and self._barrier is None:
                raise self._refusal.with_traceback(None)
            if self._max_waiting is not None and len(self) >= self._max_waiting:
                refused = self._make_room(request)
            self._lines[-1].setdefault(request.user, deque()).append(request)
            self._changed.notify_all()
        if refused is not None:
            refused.generation.fail(_busy(self._max_waiting))
        self._tell()

    def waiting(self) -> list[Request[Job]]:
        """All who wait before the barrier, in the order they will be taken."""
        with self._changed:
            return self._order(self._lines[0])

    def claim(self, request: Request[Job]) -> bool:
        """Take this one beside those that are being worked on. False: it is not before the barrier any more."""
        with self._changed:
            if request not in self._lines[0].get(request.user, ()):
                return False
            self._begin_turn(request)
        self._tell()
        return True

    def done(self, request: Request[Job]) -> None:
        """One that was taken is not worked on any more."""
        with self._changed:
            self._end_turn(request)
        self._tell()

    def take(self, patience_s: float | None = None, *, leave: bool = False) -> Request[Job] | Barrier | Idle | None:
        """The next request, when there is one: the worker is done with those before. None: the queue is closed.

        The barrier, once, where nobody is left before it: the worker does what it is there for, and lifts it. Idle,
        where nothing has come for `patience_s`. With `leave` the request stays in the line, and is told that it waits.
        """
        with self._changed:
            for served in self.serving:
                self._end_turn(served)
            self._taking = not leave
            come = self._changed.wait_for(self._something, patience_s)
            self._taking = False
            if self._closed:
                return None
            if not come:
                return Idle()
            if not self._lines[0]:
                assert self._barrier is not None  # what else has come?
                self._barrier.reached = True
                return self._barrier
            request = self._order(self._lines[0])[0]
            if leave:
                return request
            self._begin_turn(request)
        self._tell()
        return request

    def remove(self, request: Request[Job]) -> bool:
        """Take a request out of the line. False: it is not in it any more."""
        with self._changed:
            if not self._drop(request):
                return False
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

    # -- a barrier, and refusals

    def bar(self, barrier: Barrier) -> bool:
        """Hold whoever comes from now on. False: there is a barrier already. Raises what the queue was closed with."""
        with self._changed:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            if self._barrier is not None:
                return False
            self._barrier = barrier
            self._lines.append({})
            self._changed.notify_all()
            return True

    def call_off(self) -> Barrier | None:
        """Take the barrier away before it is reached: all is as if it had not been there. None: it is too late."""
        with self._changed:
            barrier = self._barrier
            if barrier is None or barrier.reached:
                return None
            refusal = self._refusal
            refused = self._lift(refusal)
        self._refuse(refused, refusal)
        return barrier

    def lift(self, refusal: StreamingError | None = None) -> None:
        """Let those in who were held. With a `refusal`, they get that, and so does whoever comes."""
        with self._changed:
            refused = self._lift(refusal)
        self._refuse(refused, refusal)

    def refuse(self, error: StreamingError) -> None:
        """Refuse whoever waits before the barrier, and whoever comes while there is none, with `error`."""
        with self._changed:
            self._refusal = error
            refused = self._order(self._lines[0])
            self._lines[0].clear()
        self._refuse(refused, error)

    def close(self, error: StreamingError) -> Barrier | None:
        """Refuse whoever waits, and whoever comes, with `error`. Returns a barrier that is never reached now."""
        with self._changed:
            self._closed = self._refusal = error
            barrier, refused = self._barrier, [request for line in self._lines for request in self._order(line)]
            self._barrier, self._lines = None, [{}]
            self._changed.notify_all()
        self._refuse(refused, error)
        return barrier if barrier is not None and not barrier.reached else None

    # -- under the lock

    def _something(self) -> bool:
        """Whether there is anything for who takes."""
        if self._closed:
            return True
        if self._lines[0]:
            return not self._telling
        return self._barrier is not None and not self._barrier.reached

    def _order(self, line: "_Line[Job]") -> list[Request[Job]]:
        """All in the order they will be taken, if nobody else comes. Whose requests run has had these turns already."""
        running = Counter(request.user for request in self._serving)
        queues = [line[user] for user in sorted(line, key=lambda user: running[user])]
        return [request for turn in zip_longest(*queues) for request in turn if request is not None]

    def _begin_turn(self, request: Request[Job]) -> None:
        self._drop(request)
        self._serving.append(request)

    def _end_turn(self, request: Request[Job]) -> None:
        self._serving.remove(request)
        for line in self._lines:
            if request.user in line:  # behind the others
                line[request.user] = line.pop(request.user)

    def _make_room(self, newcomer: Request[Job]) -> Request[Job]:
        """Nobody can fill the line to shut the others out: of those who have most in it, the last to come has to go."""
        own: dict[str, list[Request[Job]]] = {}
        for line in self._lines:
            for user, waiting in line.items():
                own.setdefault(user, []).extend(waiting)
        longest = max(own.values(), key=len)
        if len(longest) <= len(own.get(newcomer.user, ())) + 1:
            raise _busy(self._max_waiting)
        refused = longest[-1]
        self._drop(refused)
        return refused

    def _drop(self, request: Request[Job]) -> bool:
        for line in self._lines:
            if request in line.get(request.user, ()):
                line[request.user].remove(request)
                if not line[request.user]:
                    del line[request.user]
                self._changed.notify_all()  # nobody may be left before the barrier
                return True
        return False

    def _lift(self, refusal: StreamingError | None) -> list[Request[Job]]:
        """Make one line of both. Returns those in it, no longer, who are refused."""
        if self._closed is not None:
            return []
        self._barrier, self._refusal = None, refusal
        held = self._lines.pop() if len(self._lines) > 1 else {}
        for user, waiting in held.items():
            self._lines[0].setdefault(user, deque()).extend(waiting)
        refused = self._order(self._lines[0]) if refusal is not None else []
        if refused:
            self._lines[0].clear()
        self._changed.notify_all()
        return refused

    @property
    def _held_by(self) -> str:
        return self._barrier.detail if self._barrier is not None else ""

    # -- outside the lock

    def _refuse(self, refused: list[Request[Job]], error: StreamingError | None) -> None:
        for request in refused:
            assert error is not None  # or nobody is
            request.generation.fail(error)
        self._tell()

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
                at_once = self._taking and bool(self._lines[0])
                first = 0 if at_once else 1 - max(0, self._places - len(self._serving))
                front = self._order(self._lines[0])
                held = self._order(self._lines[1]) if self._barrier is not None else []
                details = [self._detail] * len(front) + [self._detail or self._held_by] * len(held)
                now = {
                    request: Queued(place, detail)
                    for place, (request, detail) in enumerate(zip([*front, *held], details, strict=True), first)
                }
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
