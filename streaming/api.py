"""HTTP beside the page, on the same server. For now GET /health: what the engine says of itself."""

from dataclasses import asdict

from fastapi import APIRouter, Response
from starlette.routing import BaseRoute

from streaming.engines.base import Engine


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
