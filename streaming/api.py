"""HTTP beside the page, on the same server. For now GET /health: what the engine says of itself."""

from dataclasses import asdict

from fastapi import APIRouter, Response
from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streaming.engines.base import Engine

# Model text may hold an image or a form: its address could carry the chat away, so the browser must not ask for it.
POLICY = "img-src 'self' data: blob:; form-action 'self'; object-src 'none'"


class SafeHeaders:
    """Adds to every response what keeps model text harmless and event streams unbuffered by proxies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                headers["X-Accel-Buffering"] = "no"
            await send(message)

        await self._app(scope, receive, send_safely)


def routes(engine: Engine) -> list[BaseRoute]:
    """Routes to mount before Gradio's own."""
    router = APIRouter()

    @router.get("/health")
    def health(response: Response) -> dict[str, object]:
        """200 while the engine is ready, 503 while it is not; the body says why."""
        status = engine.status()
        response.status_code = 200 if status.state == "ready" else 503
        return {"status": "ok" if status.state == "ready" else status.state, **asdict(status)}

    return list(router.routes)
