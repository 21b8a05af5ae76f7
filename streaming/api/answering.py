"""One request, one generation, whole or as server-sent events: what chats and texts have in common.

Runs on the event loop; prompts are rendered in a worker thread. A request has no other viewer than its client: when
that is gone, its generation is cancelled.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from streaming.api.answers import FinishReason, Usage
from streaming.api.errors import ApiError, from_streaming_error, not_ready
from streaming.api.follow import follow
from streaming.api.requests import Wishes
from streaming.engines.base import Engine, Generation, check_model
from streaming.errors import StreamingError
from streaming.events import Delta, Event, Finished, Prefill, Queued, ReasoningDelta, TextDelta
from streaming.messages import Message, Sampling

CLIENT_GONE = 499  # nobody reads it but the access log, which knows it from nginx

# Python's splitlines, and so many a client, takes these for ends of lines; JSON may as well have them escaped.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


async def begin(
    engine: Engine,
    request: Request,
    body: Wishes,
    prompt: str | Sequence[Message],
    sampling: Sampling,
    user: str | None,
) -> "Answer":
    """Start the answer to a request. Raises StreamingError while there still is a status to be chosen."""
    model = _ready_model(engine, body.model)
    user = user or (request.client.host if request.client else "")
    generation = await run_in_threadpool(engine.stream, prompt, sampling, user=f"api:{user}", model=body.model)
    return Answer(model, generation)


async def respond(form: "Form", request: Request, body: Wishes, *, keep_alive_s: float) -> Response:
    """Bring an answer to its client in the way that it asked for."""
    if body.stream:
        return _Stream(form, body.wants_usage, keep_alive_s)
    with form.answer.generation:
        return await _whole(form, request)


def _ready_model(engine: Engine, wanted: str | None) -> str:
    status = engine.status()
    check_model(wanted, status.model)
    if status.state == "loading":
        engine.start()
        raise not_ready(f"The model is still loading. {status.detail}".strip(), loading=True)
    if status.state != "ready":
        raise not_ready(status.detail or "The model was shut down.")
    return status.model


class Answer:
    """One answer on its way, and what it has been so far."""

    def __init__(self, model: str, generation: Generation) -> None:
        self.name = secrets.token_hex(12)
        self.created = int(time.time())
        self.model = model
        self.generation = generation
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.progress = ""
        self._reasoning_tokens = 0
        self._finished: Finished | None = None

    async def events(self) -> AsyncIterator[Event]:
        """Follow the generation up to its end. A generation that somebody else cancelled raises ApiError."""
        async for event in follow(self.generation):
            match event:
                case Queued(position):
                    self.progress = f"queued, position {position}"
                case Prefill(done, total):
                    self.progress = f"reading the prompt, {done} of {total} tokens"
                case ReasoningDelta(text, tokens):
                    self.reasoning.append(text)
                    self._reasoning_tokens = tokens
                case TextDelta(text):
                    self.text.append(text)
                case Finished("cancelled"):
                    raise ApiError(503, "The answer was stopped at the server.", kind="server_error", code="stopped")
                case Finished():
                    self._finished = event
                    self.model = event.model or self.model  # another one, where the one expected could not be loaded
            yield event

    @property
    def finish_reason(self) -> FinishReason:
        assert self._finished is not None
        return "stop" if self._finished.reason == "stop" else "length"

    @property
    def usage(self) -> Usage:
        assert self._finished is not None
        return Usage.of(self._finished, self._reasoning_tokens)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it, if one did; None as long as it goes on."""
        return self._finished.stopped_by if self._finished is not None else None


class Form(Protocol):
    """An answer as a kind of client reads it: whole, or piece by piece. A field that is not set is not sent."""

    answer: Answer

    def whole(self) -> BaseModel: ...

    def first(self) -> BaseModel | None:
        """What comes before the first piece."""

    def piece(self, delta: Delta) -> BaseModel: ...

    def last(self) -> BaseModel: ...

    def totals(self) -> BaseModel:
        """The usage, for who wants it after the last piece."""


async def _whole(form: Form, request: Request) -> Response:
    async def read() -> None:
        async for _ in form.answer.events():
            pass

    reading, leaving = asyncio.create_task(read()), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return Response(status_code=CLIENT_GONE)
        reading.result()
    finally:
        reading.cancel()
        leaving.cancel()
    return Response(form.whole().model_dump_json(exclude_unset=True), media_type="application/json")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Stream(EventSourceResponse):
    """The answer as server-sent events; a comment every `keep_alive_s` says how it goes."""

    def __init__(self, form: Form, with_usage: bool, keep_alive_s: float) -> None:
        self._generation = form.answer.generation
        super().__init__(
            _events(form, with_usage),
            sep="\n",
            ping=keep_alive_s,
            ping_message_factory=lambda: ServerSentEvent(comment=form.answer.progress or "waiting", sep="\n"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._generation:  # also where the client left before the first byte, and nothing was ever followed
            await super().__call__(scope, receive, send)


async def _events(form: Form, with_usage: bool) -> AsyncIterator[ServerSentEvent]:
    def event(chunk: BaseModel) -> ServerSentEvent:
        if with_usage:
            chunk = chunk.model_copy(update={"usage": None})  # as OpenAI does it: set, and null
        return _event(chunk.model_dump_json(exclude_unset=True))

    if (first := form.first()) is not None:
        yield event(first)
    try:
        async for item in form.answer.events():
            if isinstance(item, Delta):
                yield event(form.piece(item))
    except StreamingError as error:
        yield _event(from_streaming_error(error).body().model_dump_json())
        return
    yield event(form.last())
    if with_usage:
        yield _event(form.totals().model_dump_json(exclude_unset=True))
    yield _event("[DONE]")


def _event(data: str) -> ServerSentEvent:
    return ServerSentEvent(data.translate(_LINE_ENDS), sep="\n")
