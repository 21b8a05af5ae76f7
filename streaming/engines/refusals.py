"""What a server or its connection says when something goes wrong, as errors of ours, in words for a person.

The one place that knows which status, code or phrase of OpenAI-compatible servers means what. Pure.
"""

import re
from typing import Any

import openai

from streaming.errors import (
    ContextTooLong,
    EngineBusy,
    GenerationFailed,
    InvalidRequest,
    ModelNotFound,
    ServerRefused,
    ServerUnavailable,
    StreamingError,
)

_LONGEST = 500  # characters of a server's words that are shown
_CODES = {  # in the middle of a stream there is no status
    "context_length_exceeded": 400,
    "invalid_value": 400,
    "engine_busy": 429,
    "rate_limit_exceeded": 429,
    "model_not_ready": 503,
}
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum (context|model) length|context (length|size|window)|"
    r"too long for the model",
    re.I,
)
_NUMBER = r"(\d[\d,]*)"
_CONTEXT = re.compile(rf"(?:context length is|context holds|context size \()\s*{_NUMBER}", re.I)
_PROMPT = re.compile(rf"(?:prompt has|resulted in)\s+{_NUMBER} tokens|{_NUMBER} (?:input tokens|in the messages)", re.I)


def from_openai(error: openai.APIError, server: str) -> StreamingError:
    """The error of ours that an error of the client means; `server` is its address."""
    if isinstance(error, openai.APIConnectionError):
        late = isinstance(error, openai.APITimeoutError)
        reason = "it does not answer in time" if late else str(error.__cause__ or error).rstrip(".")
        return ServerUnavailable(f"The server at {server} cannot be reached: {reason}.")
    words, status = _words(error), _status(error)
    match status:
        case 401:
            return ServerRefused(f"The server at {server} wants a key, or another one (--api-key-env): {words}")
        case 403:
            return ServerRefused(f"The server at {server} does not let us in: {words}")
        case 404 if "model" in f"{error.code} {words}".lower():
            return ModelNotFound(f"The server at {server} does not have this model: {words}")
        case 404 | 405:
            return ServerRefused(
                f"There is no chat at {server}: is --base-url right? It ends in /v1 as a rule. The server says: {words}"
            )
        case 429:
            return EngineBusy(f"The server is busy: {words}")
        case 502 | 503 | 504:
            return ServerUnavailable(f"The server at {server} cannot answer now: {words}")
        case status if 400 <= status < 500:
            return _too_long(error, words) or InvalidRequest(f"The server refuses this request: {words}", error.param)
    return GenerationFailed(f"The server failed at this answer: {words}")


def _status(error: openai.APIError) -> int:
    if isinstance(error, openai.APIStatusError):
        return error.status_code
    code = error.code or ""
    return int(code) if code.isdecimal() else _CODES.get(code, 500)


def _words(error: openai.APIError) -> str:
    """What the server says: OpenAI's form has it at `message`, FastAPI's at `detail`, a proxy sends a page."""
    body: Any = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or body.get("error") or str(body)
    status = getattr(error, "status_code", "")
    if not isinstance(body, str):
        body = str(body) if body else error.message
    if body.lstrip().startswith("<"):
        body = f"it sent a web page instead of an answer, with the status {status}."
    return body if len(body) <= _LONGEST else f"{body[:_LONGEST]}..."


def _too_long(error: openai.APIError, words: str) -> StreamingError | None:
    if not _TOO_LONG.search(f"{error.code} {error.type} {words}"):
        return None
    body = error.body if isinstance(error.body, dict) else {}
    prompt = body.get("n_prompt_tokens") or _number(_PROMPT, words)
    context = body.get("n_ctx") or _number(_CONTEXT, words)
    if isinstance(prompt, int) and isinstance(context, int):
        return ContextTooLong(prompt, context)
    return InvalidRequest(f"This conversation is too long for the model: {words}", "messages")


def _number(pattern: re.Pattern[str], words: str) -> int | None:
    found = pattern.search(words)
    return int(next(group for group in found.groups() if group).replace(",", "")) if found else None
