"""What the API answers, in OpenAI's form: completions whole and in chunks, and the list of models.

Pure values. A field that is not set is not sent.
"""

from typing import Literal

from pydantic import BaseModel

from streaming.events import Finished

FinishReason = Literal["stop", "length"]


class PromptTokens(BaseModel):
    cached_tokens: int


class CompletionTokens(BaseModel):
    """Of the completion: thought, guessed and accepted. What was guessed in vain is not part of it."""

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(BaseModel):
    """`dropped_messages`, an extension: so many of the oldest were left out to fit the model's context."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens | None = None
    dropped_messages: int | None = None

    @classmethod
    def of(cls, finished: Finished, reasoning_tokens: int) -> "Usage":
        """`reasoning_tokens`: how many had been written when the reasoning ended, 0 if there was none."""
        usage = finished.usage
        answer = cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=PromptTokens(cached_tokens=usage.cached_tokens),
        )
        details = {"reasoning_tokens": reasoning_tokens} if reasoning_tokens else {}
        if usage.proposed_tokens:
            details["accepted_prediction_tokens"] = usage.accepted_tokens
            details["rejected_prediction_tokens"] = usage.proposed_tokens - usage.accepted_tokens
        if details:
            answer.completion_tokens_details = CompletionTokens(**details)
        if usage.dropped_messages:
            answer.dropped_messages = usage.dropped_messages
        return answer


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    reasoning_content: str | None = None


class Choice(BaseModel):
    """`stop_reason`, an extension: the stop string that ended the answer, if one did."""

    index: int
    message: AnswerMessage
    finish_reason: FinishReason
    logprobs: None
    stop_reason: str | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: Delta
    finish_reason: FinishReason | None
    stop_reason: str | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class TextChoice(BaseModel):
    """`stop_reason` as in Choice. Whole, or a piece of it: then `finish_reason` is null until the last."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: None
    stop_reason: str | None = None


class TextCompletion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """`max_model_len`, an extension: the context in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]
