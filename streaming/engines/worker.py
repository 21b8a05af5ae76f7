"""One long-lived thread that loads, then serves the waiting requests, and survives what they do to it.

Knows neither models nor scripts: an engine gives it `load` and `serve`. Whatever happens in the thread, nobody is left
waiting: each request ends, and `close` ends all of them. `submit`, `cancel` and `close` may come from any thread.
"""

import atexit
import threading
import traceback
from collections.abc import Callable
from typing import Generic, Literal

from streaming.engines.base import Generation
from streaming.engines.queue import FairQueue, Job, Request
from streaming.engines.stopwatch import Stopwatch
from streaming.errors import EngineClosed, GenerationFailed, ModelError, StreamingError
from streaming.events import Finished

CLOSED = "The model was shut down before this answer was finished."


class Worker(Generic[Job]):
    """`load` and `serve` run in the thread. `serve` must end its request's generation, or raise.

    Before it returns it may take `another`, and end that as well, or say that it is `done` with one.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], None],
        serve: Callable[[Request[Job]], None],
        *,
        max_waiting: int | None = None,
    ) -> None:
        self._load = load
        self._serve = serve
        self._queue: FairQueue[Job] = FairQueue(max_waiting)
        self._lock = threading.Lock()
        self._loaded = threading.Event()
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
        return "ready" if self._loaded.is_set() else "loading"

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
        self._loaded.wait(timeout)

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
        """Have a job served. Raises EngineClosed, EngineBusy, or the ModelError that loading ended in."""
        self.start()
        generation = Generation(lambda: self._cancel(request))
        request = Request(user, job, generation)
        self._queue.put(request)
        return generation

    def _cancel(self, request: Request[Job]) -> None:
        if self._queue.remove(request):  # nobody has begun it, so nobody else will end it
            request.generation.emit(Finished("cancelled", timings=Stopwatch(request.arrived).timings()))

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
        self._queue.close(error)
        running = self._queue.serving
        for request in running:
            request.generation.cancel()
        if self._started and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        for request in running:
            request.generation.fail(error)  # to no effect, unless the model is stuck
        self._loaded.set()

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
            self._load()
            self._detail = ""
            self._queue.say("")
            self._loaded.set()
            while request := self._queue.take():
                self._supervise(request)
        except StreamingError as error:
            self._fail(error)
        except BaseException as error:
            failure = ModelError(f"The model could not be started: {str(error) or type(error).__name__}")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self._loaded.set()

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

    def _fail(self, error: StreamingError) -> None:
        _forget_frames(error)
        self._failure = error
        self._detail = str(error)
        self._queue.close(error)


def _forget_frames(error: BaseException) -> None:
    """An error is kept as long as its answer, and its frames would keep what they worked on: gigabytes, for a model."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
