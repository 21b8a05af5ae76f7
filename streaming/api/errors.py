"""Errors as OpenAI's clients know them: a status, and `{"error": {"message", "type", "param", "code"}}`.

The one place that knows which error of ours, of FastAPI or of pydantic has which status and which words.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from streaming.api.requests import UNSUPPORTED, ChatRequest, CompletionRequest
from streaming.errors import (
    ContextTooLong,
    EngineBusy,
    EngineClosed,
    InvalidRequest,
    ModelError,
    NoDraft,
    StreamingError,
    WrongModel,
)

RETRY_BUSY_S = 5
RETRY_LOADING_S = 10


class Problem(BaseModel):
    """What is wrong, in words; of which kind; at which field; and by which name programs know it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: Problem


class ApiError(StreamingError):
    """An answer that is an error, with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> ErrorBody:
        # Half a character, quoted from the request, could not be sent.
        message = str(self).encode(errors="replace").decode()
        param = self.param.encode(errors="replace").decode() if self.param else None
        return ErrorBody(error=Problem(message=message, type=self.kind, param=param, code=self.code))


def as_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body().model_dump(), error.status, error.headers)


def from_streaming_error(error: StreamingError) -> ApiError:
    """The status of what an engine raises, at the call or later."""
    match error:
        case ApiError():
            return error
        case ContextTooLong():
            return ApiError(400, str(error), param=error.field, code="context_length_exceeded")
        case NoDraft() | WrongModel():
            return ApiError(404, str(error), param=error.field, code="model_not_found")
        case InvalidRequest():
            return ApiError(400, str(error), param=error.field, code="invalid_value")
        case EngineBusy():
            retry = {"Retry-After": str(RETRY_BUSY_S)}
            return ApiError(429, str(error), kind="rate_limit_error", code="engine_busy", headers=retry)
        case ModelError() | EngineClosed():
            return not_ready(str(error))
        case _:
            return ApiError(500, str(error), kind="server_error", code="generation_failed")


def not_ready(reason: str, *, loading: bool = False) -> ApiError:
    headers = {"Retry-After": str(RETRY_LOADING_S)} if loading else None
    return ApiError(503, reason, kind="server_error", code="model_not_ready", headers=headers)


def handle_errors(app: FastAPI) -> None:
    """Have `app` answer in this form whatever goes wrong."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return as_response(from_validation(error.errors()))

    @app.exception_handler(StreamingError)
    async def refused(_: Request, error: StreamingError) -> JSONResponse:
        return as_response(from_streaming_error(error))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        message, code = str(error.detail), None
        if error.status_code in (404, 405):
            message = f"There is no {request.method} {request.url.path} here: see /v1/openapi.json for what there is."
            code = "unknown_url"
        return as_response(ApiError(error.status_code, message, code=code, headers=error.headers))

    @app.exception_handler(Exception)
    async def broken(_: Request, __: Exception) -> JSONResponse:
        message = "The server failed at this request; its log says more."
        return as_response(ApiError(500, message, kind="server_error", code="internal_error"))


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first thing that is wrong with a request, in words."""
    error = errors[0]
    kind, place = error["type"], [part for part in error["loc"] if part != "body"]
    if kind == "json_invalid":
        return ApiError(400, f"The body is not JSON: {error['ctx']['error']}.", code="invalid_json")
    if not place:
        return ApiError(400, "The body must be a JSON object, sent as application/json.", code="invalid_json")
    field, param = str(place[0]), _path(place)
    match kind:
        case "extra_forbidden":
            close = get_close_matches(param, {**ChatRequest.model_fields, **CompletionRequest.model_fields}, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            return ApiError(400, f"There is no field {param!r}.{hint}", param=param, code="unknown_parameter")
        case "missing":
            return ApiError(400, f"{param} is missing.", param=param, code="missing_required_parameter")
        case "union_tag_invalid" | "union_tag_not_found":
            tag = error.get("ctx", {}).get("tag")
            told = f"has the role {tag!r}" if tag else "has no role that is a text"
            message = (
                f"{param} {told}: it must be one of {error['ctx'].get('expected_tags', 'system, user, assistant')}."
            )
            return ApiError(400, message, param=f"{param}.role", code="invalid_value")
        case _ if field in UNSUPPORTED:
            return ApiError(400, UNSUPPORTED[field], param=param, code="unsupported_value")
        case "text_wanted" | "nothing_to_answer" | "not_supported":
            return ApiError(400, f"{param} {error['msg']}.", param=param, code="invalid_value")
        case "too_short" if param == "messages":
            return ApiError(400, "There is nothing to answer: messages is empty.", param=param, code="invalid_value")
        case _:
            message = f"{param} is not valid: {error['msg'][:1].lower()}{error['msg'][1:]}."
            return ApiError(400, message, param=param, code="invalid_value")


def _path(place: Sequence[str | int]) -> str:
    """As in messages[0].content, without the role by which pydantic chose what a message must look like."""
    steps = [step for index, step in enumerate(place) if not (index == 2 and place[0] == "messages")]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
