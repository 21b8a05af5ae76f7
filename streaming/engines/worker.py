"""One long-lived thread that loads, then serves the waiting requests, and survives what they do to it.

Knows of models the names alone: an engine gives it `load` and `serve`. Whatever happens in the thread, nobody is left
waiting: each request ends, and `close` ends all of them. `submit`, `switch`, a cancel and `close` may come from any
thread. A switch is a barrier in the line: who came before it is answered by the old model, who comes after by the new.
"""

import atexit
import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal

from streaming.engines.base import Generation
from streaming.engines.queue import Barrier, FairQueue, Idle, Job, Request
from streaming.engines.stopwatch import Stopwatch
from streaming.errors import EngineClosed, GenerationFailed, InvalidRequest, ModelError, StreamingError
from streaming.events import Finished

CLOSED = "The model was shut down before this answer was finished."
RESTING = "Resting: the next message loads it."
Done = Callable[[StreamingError | None], None]

LOG = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Switch(Barrier):
    model: str = ""
    done: Done = lambda _: None
    failed: bool = False  # so the old model is being brought back


def _nothing() -> None: ...


class Worker(Generic[Job]):
    """`load`, `unload` and `serve` run in the thread. `load` gets the name of the model to be answered by from now on,
    in the place of the one before, and raises where that cannot be.

    `serve` must end its request's generation, or raise. Before it returns it may take `another`, and end that as well,
    or say that it is `done` with one. After `idle_s` without a request `unload` frees the memory until the next one.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[str], None],
        serve: Callable[[Request[Job]], None],
        *,
        model: str = "",
        unload: Callable[[], None] = _nothing,
        idle_s: float | None = None,
        max_waiting: int | None = None,
    ) -> None:
        self._load = load
        self._unload = unload
        self._serve = serve
        self._model = model
        self._idle_s = idle_s
        self._resting = False
        self._queue: FairQueue[Job] = FairQueue(max_waiting)
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._closing = threading.Event()
        self._failure: StreamingError | None = None
        self._detail = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    # -- what an engine says of itself

    @property
    def state(self) -> Literal["loading", "ready", "failed", "closed"]:
        if self._closing.is_set():
            return "closed"
        if self._failure is not None:
            return "failed"
        return "ready" if self._settled.is_set() else "loading"

    @property
    def model(self) -> str:
        """The one that answers who comes now: the new one from a switch on, the old one again if that fails."""
        barrier = self._queue.barrier
        return barrier.model if isinstance(barrier, _Switch) and not barrier.failed else self._model

    @property
    def switching(self) -> bool:
        return self._queue.barrier is not None

    @property
    def detail(self) -> str:
        return self._detail

    @property
    def running(self) -> int:
        return len(self._queue.serving)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def wait_loaded(self, timeout: float | None) -> None:
        self._settled.wait(timeout)

    # -- from any thread

    def start(self) -> None:
        """Start the thread, once. It never keeps the interpreter from ending, which closes it."""
        with self._lock:
            if self._started or self._closing.is_set():
                return
            self._started = True
            self._thread.start()
            atexit.register(self.close)

    def submit(self, user: str, job: Job) -> Generation:
        """Have a job served. Raises EngineClosed, EngineBusy, or the error that loading ended in."""
        self.start()
        generation = Generation(lambda: self._cancel(request))
        request = Request(user, job, generation)
        self._queue.put(request)
        return generation

    def _cancel(self, request: Request[Job]) -> None:
        if self._queue.remove(request):  # nobody has begun it, so nobody else will end it
            request.generation.emit(Finished("cancelled", timings=Stopwatch(request.arrived).timings()))

    def switch(self, model: str, done: Done) -> None:
        """Load another model as soon as all who are here have been answered; who comes from now on is answered by it.

        `done` is called once, by the thread or by `close`: with None when it answers, else with why it cannot, and then
        the old one answers those who have come meanwhile. Raises InvalidRequest where another switch is under way.
        """
        words = f"Waiting for the answers under way, then loading {model}"
        if not self._queue.bar(_Switch(words, model=model, done=done)):
            raise InvalidRequest("Another model is being loaded: wait until it has been.", "model")
        self.start()

    def call_off(self) -> bool:
        """Take back a switch that still waits for the answers under way; its `done` is never called then. False: there
        is none, or it loads already."""
        return self._queue.call_off() is not None

    def say(self, detail: str) -> None:
        """Tell how loading goes. Raises EngineClosed when there is no use in going on."""
        if self._closing.is_set():
            raise EngineClosed(CLOSED)
        self._detail = detail
        self._queue.say(detail)

    def close(self, timeout: float = 10.0) -> None:
        """Cancel what runs, refuse what waits, end the thread. Waits for it, but not for ever. Idempotent."""
        with self._lock:
            self._closing.set()
            atexit.unregister(self.close)
        error = EngineClosed(CLOSED)
        barrier = self._queue.close(error)
        running = self._queue.serving
        for request in running:
            request.generation.cancel()
        if self._started and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        for request in running:
            request.generation.fail(error)  # to no effect, unless the model is stuck
        self._settled.set()
        if isinstance(barrier, _Switch):
            _report(barrier, error)

    # -- the thread

    def another(self, choose: Callable[[list[Request[Job]]], Request[Job] | None]) -> Request[Job] | None:
        """The one that `choose` finds among those that wait, in their order; without waiting for any to come."""
        while waiting := self._queue.waiting():
            request = choose(waiting)
            if request is None or self._queue.claim(request):
                return request
        return None

    def done(self, request: Request[Job]) -> None:
        """A request that was taken is not worked on any more; the next one may be before `serve` returns."""
        self._queue.done(request)

    def _run(self) -> None:
        try:
            failure = self._try(self._model)
            if failure is not None:
                self._queue.refuse(failure)
            self._settle(failure)
            while self._next():
                pass
        except BaseException as error:  # a listener's SystemExit, say: nobody is left waiting for this thread
            failure = GenerationFailed(f"The model has stopped answering: {str(error) or type(error).__name__}")
            failure.__cause__ = error
            _forget_frames(failure)
            self._settle(failure)
            barrier = self._queue.close(failure)
            if isinstance(barrier, _Switch):
                _report(barrier, failure)
        finally:
            self._settled.set()

    def _next(self) -> bool:
        """Do the next thing that there is to do. False: the worker was closed."""
        patient = self._resting or self._failure is not None
        match self._queue.take(None if patient else self._idle_s, leave=self._resting):
            case None:
                return False
            case Idle():
                self._rest()
            case Request() if self._resting:
                self._wake()
            case Request() as request:
                self._supervise(request)
            case Barrier() as barrier:
                assert isinstance(barrier, _Switch)
                self._change(barrier)
        return True

    def _try(self, model: str) -> StreamingError | None:
        """Load a model. Returns why it could not be."""
        self._settled.clear()
        self._failure = None
        self._resting = False
        failure: StreamingError | None = None
        try:
            self._load(model)
        except StreamingError as error:
            failure = error
        except BaseException as error:  # SystemExit too, out of a library
            failure = ModelError(f"The model could not be started: {str(error) or type(error).__name__}")
            failure.__cause__ = error
        if failure is not None:
            _forget_frames(failure)  # before the next one is loaded: they may hold half a model
        return failure

    def _settle(self, failure: StreamingError | None) -> None:
        self._failure = failure
        self._detail = str(failure or "")
        self._queue.say("")
        self._settled.set()

    def _change(self, switch: _Switch) -> None:
        had_one = self._failure is None
        error = lasting = self._try(switch.model)
        if error is None:
            self._model = switch.model
        elif had_one and not self._closing.is_set():
            switch.failed = True
            again = self._try(self._model)
            lasting = None
            if again is not None:
                error = lasting = ModelError(f"{error} Nor could {self._model} be loaded again: {again}")
        self._settle(lasting)
        self._queue.lift(lasting)
        _report(switch, error)

    def _rest(self) -> None:
        self._unload()
        self._resting = True
        self._detail = RESTING

    def _wake(self) -> None:
        """Somebody waits: load again what was put away."""
        failure = self._try(self._model)
        if failure is not None:
            self._queue.refuse(failure)
        self._settle(failure)

    def _supervise(self, request: Request[Job]) -> None:
        try:
            self._serve(request)
        except StreamingError as error:
            self._end(request, error)
        except BaseException as error:  # SystemExit too: a model's code may not end everybody's thread
            failure = GenerationFailed(
                f"The model failed in the middle of this answer: {str(error) or type(error).__name__}"
            )
            failure.__cause__ = error
            self._end(request, failure)

    def _end(self, request: Request[Job], error: StreamingError) -> None:
        _forget_frames(error)
        request.generation.fail(error)


def _report(switch: _Switch, error: StreamingError | None) -> None:
    try:
        switch.done(error)
    except Exception:  # it is no fault of those who are to be answered next
        LOG.exception("What was to hear of a switch to %s raised.", switch.model)


def _forget_frames(error: BaseException) -> None:
    """An error is kept as long as its answer, and its frames would keep what they worked on: gigabytes, for a model."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
