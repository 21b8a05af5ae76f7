"""Any OpenAI-compatible server as an engine: vLLM, llama.cpp, transformers serve, another app of this kind.

Knows neither torch nor templates: the server has the model. One event loop in one long-lived thread serves all
requests; a cancel closes the request's connection. The same loop asks now and then whether the server is there: while
it is not, requests wait, and after a while are refused; when it is back, all goes on by itself.
"""

import asyncio
import atexit
import threading
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Literal

from streaming.engines.base import Generation, Status, check_model
from streaming.engines.fitting import Fitting, sendable
from streaming.engines.queue import FairQueue, Request
from streaming.engines.relay import Relay
from streaming.engines.server import Patience, ServedModel, Server
from streaming.engines.stopwatch import Stopwatch
from streaming.engines.worker import CLOSED, Done
from streaming.errors import (
    ContextTooLong,
    EngineClosed,
    GenerationFailed,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    ServerUnavailable,
    StreamingError,
)
from streaming.events import Finished, Queued
from streaming.messages import Message, Sampling

MAX_RUNNING = 64  # answers at once; a server has a queue of its own, but its turns are not fair
TRIES = 3
SHORTENED = 12  # times that a conversation is made shorter for one answer
WAIT_S = 20.0  # for a server that is not there, until requests are refused
AGAIN_S = 1.0  # until a server that was not there is asked again
CHECK_S = 15.0  # until one that was there is


@dataclass(frozen=True, slots=True)
class _Job:
    prompt: str | tuple[Message, ...]
    sampling: Sampling
    max_new_tokens: int
    continues: bool
    only: str | None  # no other model may answer


@dataclass(frozen=True, slots=True)
class _View:
    """What was last seen of the server. Replaced as a whole, so any thread may read it."""

    state: Literal["loading", "ready", "failed"] = "loading"
    detail: str = ""
    model: ServedModel | None = None
    models: tuple[ServedModel, ...] = ()
    notices: tuple[str, ...] = ()


class RemoteEngine:
    """Answers by the server's `model`, or where that is None by the first that it lists.

    `wait_s` is how long requests wait for a server that is not there.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        model: str | None = None,
        *,
        max_new_tokens: int = 1024,
        max_waiting: int | None = None,
        max_running: int = MAX_RUNNING,
        patience: Patience | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._wanted = model
        self._max_new_tokens = max_new_tokens
        self._max_running = max_running
        self._patience = patience
        self._wait_s = wait_s
        self._queue: FairQueue[_Job] = FairQueue(max_waiting)
        self._view = _View(detail=f"Looking for the server at {base_url}")
        self._queue.say(self._view.detail)
        self._lock = threading.Lock()
        self._closing = False
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote", daemon=True)
        self._runner: asyncio.Runner | None = None
        # what follows belongs to the loop
        self._answers: dict[Request[_Job], asyncio.Task[None]] = {}
        self._ready = asyncio.Event()
        self._doubt = asyncio.Event()
        self._end = asyncio.Event()

    # -- from any thread

    def start(self) -> None:
        """Start the thread, once. It never keeps the interpreter from ending, which closes it."""
        with self._lock:
            if self._runner is None and not self._closing:
                self._runner = asyncio.Runner()
                self._runner.get_loop()
                self._thread.start()
                atexit.register(self.close)

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
        model: str | None = None,
    ) -> Generation:
        if self._view.model is not None:
            check_model(model, self.status().model)
        sampling = sampling or Sampling()
        if sampling.strategy is not None:
            raise InvalidRequest(
                "Only --engine local knows strategies: a server makes its tokens its own way.", "strategy"
            )
        prompt, continues = sendable(prompt, continues)
        self.start()
        generation = Generation(lambda: self._cancel(request))
        job = _Job(prompt, sampling, sampling.max_new_tokens or self._max_new_tokens, continues, model)
        request = Request(user, job, generation)
        self._queue.put(request)
        self._call(self._admit)
        return generation

    def _cancel(self, request: Request[_Job]) -> None:
        if self._queue.remove(request):
            request.generation.emit(Finished("cancelled", timings=Stopwatch(request.arrived).timings()))
        else:
            self._call(self._hang_up, request)

    def status(self) -> Status:
        view = self._view
        return Status(
            "closed" if self._closing else view.state,
            self._wanted or (view.model.name if view.model else self._base_url),  # a switch shows at once
            view.detail,
            context_tokens=view.model.context_tokens if view.model else 0,
            notices=view.notices,
            running=len(self._queue.serving),
            waiting=len(self._queue),
        )

    def models(self) -> tuple[str, ...]:
        """The names that the server listed when it was last asked."""
        return tuple(model.name for model in self._view.models)

    def switch(self, name: str, done: Done) -> None:
        """Ask another of the server's models from now on. Answers that have begun go on."""
        self.start()
        with self._lock:
            if self._closing:
                raise EngineClosed(CLOSED)
            view = self._view
            model = next((model for model in view.models if model.name == name), None)
            if model is not None:
                self._wanted = name
                self._call(self._choose, model, done)
            elif view.state == "ready":
                listed = ", ".join(self.models()) or "no model"
                self._call(done, ModelNotFound(f"The server does not list {name}. It lists {listed}."))
            else:
                self._call(done, ServerUnavailable(view.detail))

    def call_off(self) -> bool:
        return False  # a switch waits for nothing

    def wait_ready(self, timeout: float | None = None) -> Status:
        self.start()
        self._settled.wait(timeout)
        return self.status()

    def close(self, timeout: float = 10.0) -> None:
        with self._lock:
            self._closing = True
            atexit.unregister(self.close)
        error = EngineClosed(CLOSED)
        self._queue.close(error)
        running = self._queue.serving
        for request in running:
            request.generation.cancel()
        self._call(self._end.set)
        if self._runner is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        for request in running:
            request.generation.fail(error)  # to no effect, unless a listener is stuck
        self._settled.set()

    def _call(self, function: object, *arguments: object) -> None:
        """Have the loop call something, if it still runs."""
        if self._runner is not None:
            with suppress(RuntimeError):  # it is closed, and has ended every answer before
                self._runner.get_loop().call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]

    # -- the thread

    def _run(self) -> None:
        assert self._runner is not None
        with self._runner:
            self._runner.run(self._main())

    async def _main(self) -> None:
        async with Server(self._base_url, self._api_key, self._patience) as server:
            watching = asyncio.create_task(self._watch(server))
            self._server = server
            await self._end.wait()
            watching.cancel()
            await asyncio.gather(watching, *self._answers.values(), return_exceptions=True)

    # -- whether the server is there

    async def _watch(self, server: Server) -> None:
        clock = asyncio.get_running_loop().time
        missed: float | None = None  # since when
        while True:
            try:
                self._found(await server.models())
                missed, pause = None, CHECK_S
            except ModelError as error:
                missed, pause = missed or clock(), AGAIN_S
                waiting_helps = isinstance(error, ServerUnavailable) and clock() - missed < self._wait_s
                self._miss(error, given_up=not waiting_helps)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), pause)
            self._doubt.clear()

    def _found(self, models: tuple[ServedModel, ...]) -> None:
        """Let requests in. Raises ServerUnavailable if there is no model to ask."""
        names = [model.name for model in models]
        notices: tuple[str, ...] = ()
        model = next((model for model in models if self._wanted in (None, model.name)), None)
        if model is None and self._wanted is None:
            raise ServerUnavailable(f"The server at {self._base_url} lists no model: name one with --model.")
        if model is None:  # which need not mean that it has not got it
            notices = (f"The server does not list {self._wanted}. It lists {', '.join(names) or 'no model'}.",)
            model = ServedModel(self._wanted or "")
        self._view = _View("ready", "", model, models, notices)
        self._settled.set()
        self._ready.set()
        self._queue.say("")
        self._queue.allow(self._max_running)
        self._admit()

    def _miss(self, error: ModelError, given_up: bool) -> None:
        view = self._view
        self._view = _View("failed" if given_up else "loading", str(error), view.model, view.models)
        self._ready.clear()
        self._queue.allow(0)
        if given_up:
            self._settled.set()
            for request in self._queue.waiting():
                if self._queue.remove(request):
                    request.generation.fail(error)
        else:
            self._settled.clear()
            self._queue.say(str(error))

    def _choose(self, model: ServedModel, done: Done) -> None:
        self._view = replace(self._view, model=model, notices=())
        done(None)

    # -- the answers

    def _admit(self) -> None:
        """Let in who is next, while there are places. A server that is not there is asked at once whether it is."""
        if not self._ready.is_set():
            self._doubt.set()
            return
        while len(self._answers) < self._max_running and (waiting := self._queue.waiting()):
            if self._queue.claim(waiting[0]):
                task = asyncio.create_task(self._serve(waiting[0]))
                self._answers[waiting[0]] = task
                task.add_done_callback(lambda _, request=waiting[0]: self._done(request))  # type: ignore[misc]

    def _done(self, request: Request[_Job]) -> None:
        del self._answers[request]
        request.generation.emit(Finished("cancelled"))  # to no effect, unless it was cancelled before its first step
        self._queue.done(request)
        self._admit()

    def _hang_up(self, request: Request[_Job]) -> None:
        if request in self._answers:
            self._answers[request].cancel()

    async def _serve(self, request: Request[_Job]) -> None:
        job = request.job
        goes_on = job.continues or isinstance(job.prompt, str)
        relay = Relay(job.sampling, request.generation, Stopwatch(request.arrived), goes_on=goes_on)
        try:
            with suppress(asyncio.CancelledError):  # what was said stays, and the end says that it was cancelled
                await self._converse(relay, request)
            relay.flush()
            relay.finish()
        except StreamingError as error:
            relay.flush()
            request.generation.fail(error)
        except Exception as error:
            failure = GenerationFailed(f"This answer failed: {str(error) or type(error).__name__}")
            failure.__cause__ = error
            relay.flush()
            request.generation.fail(failure)

    async def _converse(self, relay: Relay, request: Request[_Job]) -> None:
        """Try until the answer has begun: after that a second try would say something else."""
        job = request.job
        fitting = Fitting(() if isinstance(job.prompt, str) else job.prompt, job.max_new_tokens)
        tries = shortened = 0
        while True:
            try:
                await self._try(relay, fitting, job)
                return
            except ContextTooLong as error:
                shortened += 1
                if relay.begun or shortened > SHORTENED or not fitting.tighten(error):
                    raise
            except ModelNotFound:
                self._doubt.set()  # it may have another one now
                raise
            except ServerUnavailable as error:
                self._ready.clear()
                self._doubt.set()
                if relay.ended:
                    return
                if relay.begun:
                    raise GenerationFailed(f"The connection broke in the middle of this answer. {error}") from error
                tries += 1
                if tries == TRIES:
                    raise
                request.generation.emit(Queued(1, str(error)))
                await self._wait_ready(error)

    async def _wait_ready(self, error: ServerUnavailable) -> None:
        try:
            await asyncio.sleep(AGAIN_S)
            await asyncio.wait_for(self._ready.wait(), self._wait_s)
        except TimeoutError:
            raise error from error.__cause__

    async def _try(self, relay: Relay, fitting: Fitting, job: _Job) -> None:
        model = self._view.model
        assert model is not None  # nobody is let in before the server has been seen
        check_model(job.only, model.name)
        relay.model = model.name
        relay.dropped_messages = fitting.dropped
        prompt = job.prompt if isinstance(job.prompt, str) else fitting.messages
        pieces = self._server.answer(model.name, prompt, job.sampling, fitting.max_new_tokens, continues=job.continues)
        async with aclosing(pieces):
            async for piece in pieces:
                if not relay.read(piece):
                    return
