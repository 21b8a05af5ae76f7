"""Which path leads where. /v1 is an app of its own within Gradio's: its own schema, its own form of errors."""

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Route

from streaming.api.access import Access, Guard
from streaming.api.answers import ChatCompletion, ModelCard, ModelList, TextCompletion
from streaming.api.chat import complete_chat
from streaming.api.errors import ApiError, ErrorBody, handle_errors
from streaming.api.metrics import Metrics
from streaming.api.requests import ChatRequest, CompletionRequest
from streaming.api.text import complete_text
from streaming.engines.base import Engine

KEEP_ALIVE_S = 15.0
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
STREAM: dict[str, Any] = {  # each event; the last one's data is [DONE]
    "content": {
        "text/event-stream": {
            "schema": {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
        }
    }
}


def routes(
    engine: Engine, *, access: Access | None = None, metrics: Metrics | None = None, keep_alive_s: float = KEEP_ALIVE_S
) -> list[BaseRoute]:
    """Routes to mount before Gradio's own. Without `access`, programs of this machine may use them all."""
    access, metrics = access or Access(), metrics or Metrics()
    guarded = [Middleware(Guard, access)]

    def read_metrics(_: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return [
        *_health(engine),
        Route("/metrics", read_metrics, middleware=guarded),
        Mount("/v1", _v1(engine, access, keep_alive_s), middleware=guarded),
    ]


def _health(engine: Engine) -> list[BaseRoute]:
    router = APIRouter()

    @router.get("/health")
    def health(response: Response) -> dict[str, object]:
        """200 while the engine is ready, 503 while it is not; the body says why."""
        status = engine.status()
        response.status_code = 200 if status.state == "ready" else 503
        return {"status": "ok" if status.state == "ready" else status.state, **asdict(status)}

    return list(router.routes)


def _v1(engine: Engine, access: Access, keep_alive_s: float) -> FastAPI:
    # The guard has done its work by then; this is how the schema says that there is one.
    told = [Depends(HTTPBearer(auto_error=False))] if access.needs_key else []
    app = FastAPI(
        title="Streaming",
        summary="Chat completions in OpenAI's form.",
        docs_url=None,  # they would load their scripts from elsewhere
        redoc_url=None,
        dependencies=told,
        responses=ERRORS,
        generate_unique_id_function=lambda route: route.name,
        servers=[{"url": "/v1"}],
    )
    handle_errors(app)
    started = int(time.time())

    def card() -> ModelCard:
        status = engine.status()
        return ModelCard(
            id=status.model,
            object="model",
            created=started,
            owned_by="local",
            max_model_len=status.context_tokens,
        )

    @app.post("/chat/completions", response_model=ChatCompletion, responses={200: STREAM})
    async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation, at once or, with `stream`, as it is written."""
        return await complete_chat(engine, request, body, keep_alive_s=keep_alive_s)

    @app.post("/completions", response_model=TextCompletion, responses={200: STREAM})
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Go on from a text, which is read as it stands."""
        return await complete_text(engine, request, body, keep_alive_s=keep_alive_s)

    @app.get("/models")
    def list_models() -> ModelList:
        return ModelList(object="list", data=[card()])

    @app.get("/models/{model:path}")
    def retrieve_model(model: str) -> ModelCard:
        name = engine.status().model
        if model != name:
            raise ApiError(404, f"There is no model {model!r} here: this server has {name!r}.", code="model_not_found")
        return card()

    return app
