"""What servers say when something is wrong, in their own forms, and what a person is told then."""

from typing import Any

import httpx2
import openai
import pytest

from streaming.engines.refusals import from_openai
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

WHERE = "http://gpu:8000/v1"
VLLM = (
    "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096 tokens "
    "and your request has 2778 input tokens (8000 > 4096 - 2778)."
)
VLLM_NEWER = (
    "This model's maximum context length is 16384 tokens. However, you requested 8192 output tokens and your prompt "
    "contains at least 8193 input tokens, for a total of at least 16385 tokens."
)
OPENAI = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."
OURS = "This message is too long for the model: the prompt has 9,001 tokens, the model's context holds 8,192."


def status_error(status: int, body: Any) -> openai.APIStatusError:
    """As the client makes it of a response."""
    response = httpx2.Response(status, request=httpx2.Request("POST", WHERE))
    inner = body.get("error", body) if isinstance(body, dict) else body
    return openai.APIStatusError(f"Error code: {status}", response=response, body=inner)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (
            400,
            {"error": {"message": "temperature is -1", "param": "temperature"}},
            InvalidRequest,
            "temper",
        ),
        (401, {"error": {"message": "Bad key"}}, ServerRefused, "--api-key-env.*Bad key"),
        (403, {"error": {"message": "Not for you"}}, ServerRefused, "does not let us in: Not for you"),
        (
            404,
            {"error": {"message": "There is no model x", "code": 404}},
            ModelNotFound,
            "no model x",
        ),
        (404, {"error": {"message": "nothing here", "code": "model_not_found"}}, ModelNotFound, "nothing here"),
        (404, {"detail": "Not Found"}, ServerRefused, "is --base-url right"),
        (405, {"detail": "Method Not Allowed"}, ServerRefused, "is --base-url right"),
        (422, {"detail": "Unexpected fields in the request: {'top_k'}"}, InvalidRequest, "top_k"),
        (429, {"error": {"message": "64 requests wait already"}}, EngineBusy, "64 requests"),
        (500, {"error": {"message": "CUDA out of memory"}}, GenerationFailed, "CUDA out of memory"),
        (502, "<html><h1>Bad Gateway</h1></html>", ServerUnavailable, "a web page instead of an answer.*502"),
        (503, {"error": {"message": "The model is still loading."}}, ServerUnavailable, "still loading"),
        (418, None, InvalidRequest, "418"),
        (500, "x" * 9999, GenerationFailed, r"x{500}\.\.\.$"),
        (400, {"error": ["odd"]}, InvalidRequest, "odd"),
    ],
)
def test_a_status(status: int, body: Any, kind: type[StreamingError], words: str) -> None:
    error = from_openai(status_error(status, body), WHERE)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error


def test_the_field_at_fault_is_named() -> None:
    error = from_openai(status_error(400, {"error": {"message": "no", "param": "top_p"}}), WHERE)
    assert isinstance(error, InvalidRequest)
    assert error.field == "top_p"


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "context_tokens"),
    [
        ({"message": VLLM, "type": "BadRequestError", "code": 400}, 2778, 4096),
        ({"message": VLLM_NEWER, "type": "BadRequestError", "code": 400}, 8193, 16384),
        ({"message": OPENAI, "code": "context_length_exceeded"}, 9001, 8192),
        ({"message": OURS, "code": "context_length_exceeded", "param": "messages"}, 9001, 8192),
        (
            {
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 9001,
                "n_ctx": 8192,
            },
            9001,
            8192,
        ),
    ],
)
def test_too_long_with_both_lengths(body: dict[str, Any], prompt_tokens: int, context_tokens: int) -> None:
    error = from_openai(status_error(400, {"error": body}), WHERE)
    assert isinstance(error, ContextTooLong)
    assert (error.prompt_tokens, error.context_tokens) == (prompt_tokens, context_tokens)


def test_too_long_without_them() -> None:
    error = from_openai(status_error(400, {"error": {"message": "Maximum context length reached."}}), WHERE)
    assert type(error) is InvalidRequest
    assert error.field == "messages"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"message": "too many", "code": "engine_busy"}, EngineBusy),
        ({"message": OURS, "code": "context_length_exceeded"}, ContextTooLong),
        ({"message": "bad", "code": 400}, InvalidRequest),
        ({"message": "boom", "code": "generation_failed"}, GenerationFailed),
        ("boom", GenerationFailed),  # as transformers serve has it: {"error": "boom"}
    ],
)
def test_an_error_within_a_stream_has_no_status(body: Any, kind: type[StreamingError]) -> None:
    error = openai.APIError("An error occurred during streaming", httpx2.Request("POST", WHERE), body=body)
    told = from_openai(error, WHERE)
    assert type(told) is kind
    assert "An error occurred" not in str(told)


def test_a_connection_that_cannot_be_had() -> None:
    request = httpx2.Request("POST", WHERE)
    refused = openai.APIConnectionError(request=request)
    refused.__cause__ = httpx2.ConnectError("Connection refused")
    assert str(from_openai(refused, WHERE)) == f"The server at {WHERE} cannot be reached: Connection refused."
    late = from_openai(openai.APITimeoutError(request), WHERE)
    assert isinstance(late, ServerUnavailable)
    assert "does not answer in time" in str(late)
