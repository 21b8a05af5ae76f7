"""POST /v1/chat/completions: one request, one generation, whole or as server-sent events.

Runs on the event loop; templates are rendered in a worker thread. A request has no other viewer than its client: when
that is gone, its generation is cancelled.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from streaming.api.answers import (
    AnswerMessage,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Delta,
    FinishReason,
    Usage,
)
from streaming.api.errors import ApiError, from_streaming_error, not_ready
from streaming.api.follow import follow
from streaming.api.requests import ChatRequest
from streaming.engines.base import Engine, Generation
from streaming.errors import StreamingError
from streaming.events import Event, Finished, Prefill, Queued, ReasoningDelta, TextDelta

CLIENT_GONE = 499  # nobody reads it but the access log, which knows it from nginx

# Python's splitlines, and so many a client, takes these for ends of lines; JSON may as well have them escaped.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


async def complete(engine: Engine, request: Request, body: ChatRequest, *, keep_alive_s: float) -> Response:
    """Answer a chat request. Raises StreamingError while there still is a status to be chosen."""
    model = _ready_model(engine, body.model)
    user = body.user or body.safety_identifier or (request.client.host if request.client else "")
    generation = await run_in_threadpool(engine.stream, body.conversation(), body.sampling(), user=f"api:{user}")
    answer = _Answer(model, generation)
    if body.stream:
        return _Stream(answer, body.wants_usage, keep_alive_s)
    with generation:
        return await _whole(answer, request)


def _ready_model(engine: Engine, wanted: str | None) -> str:
    status = engine.status()
    if wanted not in (None, status.model):
        message = f"There is no model {wanted!r} here: this server has {status.model!r}."
        raise ApiError(404, message, param="model", code="model_not_found")
    if status.state == "loading":
        engine.start()
        raise not_ready(f"The model is still loading. {status.detail}".strip(), loading=True)
    if status.state != "ready":
        raise not_ready(status.detail or "The model was shut down.")
    return status.model


class _Answer:
    """One answer on its way, and what it has been so far."""

    def __init__(self, model: str, generation: Generation) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
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
            yield event

    @property
    def finish_reason(self) -> FinishReason:
        assert self._finished is not None
        return "stop" if self._finished.reason == "stop" else "length"

    @property
    def usage(self) -> Usage:
        assert self._finished is not None
        return Usage.of(self._finished, self._reasoning_tokens)

    def completion(self) -> ChatCompletion:
        message = AnswerMessage(role="assistant", content="".join(self.text))
        if self.reasoning:
            message.reasoning_content = "".join(self.reasoning)
        choice = Choice(index=0, message=message, finish_reason=self.finish_reason, logprobs=None)
        self._name_stop(choice)
        return ChatCompletion(
            id=self.id,
            object="chat.completion",
            created=self.created,
            model=self.model,
            choices=[choice],
            usage=self.usage,
        )

    def chunk(self, delta: Delta | None, finish_reason: FinishReason | None = None) -> ChatChunk:
        """None: a chunk without a choice."""
        choices = [ChunkChoice(index=0, delta=delta, finish_reason=finish_reason)] if delta is not None else []
        for choice in choices:
            self._name_stop(choice)
        return ChatChunk(
            id=self.id, object="chat.completion.chunk", created=self.created, model=self.model, choices=choices
        )

    def _name_stop(self, choice: Choice | ChunkChoice) -> None:
        if self._finished is not None and self._finished.stopped_by is not None:
            choice.stop_reason = self._finished.stopped_by


async def _whole(answer: _Answer, request: Request) -> Response:
    async def read() -> None:
        async for _ in answer.events():
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
    return Response(answer.completion().model_dump_json(exclude_unset=True), media_type="application/json")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Stream(EventSourceResponse):
    """The answer as server-sent events; a comment every `keep_alive_s` says how it goes."""

    def __init__(self, answer: _Answer, with_usage: bool, keep_alive_s: float) -> None:
        self._generation = answer.generation
        super().__init__(
            _events(answer, with_usage),
            sep="\n",
            ping=keep_alive_s,
            ping_message_factory=lambda: ServerSentEvent(comment=answer.progress or "waiting", sep="\n"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._generation:  # also where the client left before the first byte, and nothing was ever followed
            await super().__call__(scope, receive, send)


async def _events(answer: _Answer, with_usage: bool) -> AsyncIterator[ServerSentEvent]:
    def event(chunk: ChatChunk) -> ServerSentEvent:
        if with_usage and chunk.choices:
            chunk.usage = None  # as OpenAI does it: set, and null
        return _event(chunk.model_dump_json(exclude_unset=True))

    yield event(answer.chunk(Delta(role="assistant", content="")))
    try:
        async for item in answer.events():
            match item:
                case ReasoningDelta(text):
                    yield event(answer.chunk(Delta(reasoning_content=text)))
                case TextDelta(text):
                    yield event(answer.chunk(Delta(content=text)))
    except StreamingError as error:
        yield _event(from_streaming_error(error).body().model_dump_json())
        return
    yield event(answer.chunk(Delta(), answer.finish_reason))
    if with_usage:
        last = answer.chunk(None)
        last.usage = answer.usage
        yield event(last)
    yield _event("[DONE]")


def _event(data: str) -> ServerSentEvent:
    return ServerSentEvent(data.translate(_LINE_ENDS), sep="\n")
