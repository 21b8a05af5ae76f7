"""A server that says, chunk by chunk, what the test wrote down: for what real ones do only when something is wrong.

It lists one model. Requests are kept as they came.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


def chunk(text: str | None = None, *, finish: str | None = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    """One chunk of an answer in OpenAI's form."""
    said = delta if text is None else {"content": text} | delta
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]} | (
        {"usage": usage} if usage else {}
    )


@dataclass
class FakeServer:
    """`answers` are given one after the other, the last one for ever: chunks (a text is sent as it stands, a number is
    a pause in seconds), or a whole response."""

    answers: list[Sequence[dict[str, Any] | str | float] | Response] = field(default_factory=list)
    models: Any = field(default_factory=lambda: {"object": "list", "data": [{"id": "m", "object": "model"}]})
    done: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._list),
                Route("/v1/chat/completions", self._answer, methods=["POST"]),
                Route("/v1/completions", self._answer, methods=["POST"]),
            ]
        )

    async def _list(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        return self.models if isinstance(self.models, Response) else JSONResponse(self.models)

    async def _answer(self, request: Request) -> Response:
        self.asked.append(await request.json())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return (
            answer
            if isinstance(answer, Response)
            else StreamingResponse(self._send(answer), 200, {}, "text/event-stream")
        )

    async def _send(self, chunks: Sequence[dict[str, Any] | str | float]) -> Any:
        try:
            for item in chunks:
                if isinstance(item, float):
                    await asyncio.sleep(item)
                else:
                    yield item if isinstance(item, str) else f"data: {json.dumps(item)}\n\n"
            if self.done:
                yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.left += 1
            raise
