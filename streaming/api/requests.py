"""What a completion request may say, for a chat or for a text.

Strict: a misspelt field, or a wish that cannot be met, is refused by name.

Fields that OpenAI knows and this server does not are here with the values that ask for nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from streaming.messages import (
    HOTTEST,
    LEAST_PENALTY,
    MOST_BEAMS,
    MOST_GUESSES,
    MOST_PENALTY,
    MOST_TOKENS,
    Message,
    Sampling,
    strategy_from_dict,
)

UNSUPPORTED = {
    "best_of": "There is one answer to a request: best_of can only be 1.",
    "suffix": "suffix is not supported: a text is gone on from, not filled in.",
    "audio": "Audio is not supported: this server writes text.",
    "frequency_penalty": "frequency_penalty is not supported. Use repetition_penalty.",
    "function_call": "Functions are not supported: this server writes text.",
    "functions": "Functions are not supported: this server writes text.",
    "logit_bias": "logit_bias is not supported.",
    "logprobs": "logprobs are not supported.",
    "modalities": "This server writes text alone: modalities can only be ['text'].",
    "n": "There is one answer to a request: n can only be 1.",
    "prediction": "prediction is not supported.",
    "presence_penalty": "presence_penalty is not supported. Use repetition_penalty.",
    "reasoning_effort": "reasoning_effort is not supported. Where the model's template has a switch, "
    'chat_template_kwargs={"enable_thinking": false} keeps it from thinking.',
    "response_format": "Answers in a given format are not supported: response_format can only be of the type 'text'.",
    "service_tier": "There is one tier of service: service_tier can only be 'auto' or 'default'.",
    "tool_choice": "Tools are not supported: tool_choice can only be 'none' or 'auto'.",
    "tools": "Tools are not supported: this server writes text.",
    "top_logprobs": "logprobs are not supported.",
    "verbosity": "verbosity is not supported.",
    "web_search_options": "Searching the web is not supported.",
}

COMPLETION_TOKENS = 16  # OpenAI's choice for a text, where the request makes none


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _is_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can carry a lone surrogate, and no tokenizer can
        raise PydanticCustomError("text_wanted", "holds half a character") from error
    return text


Text = Annotated[str, AfterValidator(_is_unicode)]


class TextPart(Strict):
    type: Literal["text"]
    text: Text


def _as_parts(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind != "text":
                raise PydanticCustomError(
                    "text_wanted", "has a part of the kind {kind}: only text can be read", {"kind": repr(kind)}
                )
        return content
    kind = "null" if content is None else type(content).__name__
    raise PydanticCustomError("text_wanted", "has no text: it is {kind}", {"kind": kind})


def _not_blank(parts: list[TextPart]) -> list[TextPart]:
    if not "".join(part.text for part in parts).strip():
        raise PydanticCustomError("nothing_to_answer", "is empty: there is nothing to answer")
    return parts


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_prompts(prompt: object) -> object:
    prompts = _as_list(prompt)
    if not isinstance(prompts, list) or not prompts or not all(isinstance(text, str) for text in prompts):
        raise PydanticCustomError("text_wanted", "must be a text: token ids are not read here")
    if len(prompts) > 1:
        raise PydanticCustomError("text_wanted", "must be one text: send a request for each")
    if not prompts[0]:
        raise PydanticCustomError("nothing_to_answer", "is empty: there is nothing to go on from")
    return prompts


def _is_no(value: bool) -> bool:
    if value:
        raise PydanticCustomError("not_supported", "can only be false")
    return value


def _as_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _with_whole_numbers(strategy: object) -> object:
    if not isinstance(strategy, dict):
        return strategy
    return {
        name: {key: _as_whole(value) for key, value in settings.items()} if isinstance(settings, dict) else settings
        for name, settings in strategy.items()
    }


def _one_of(**settings: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with exactly one of these names, and settings under it."""
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            name: {"type": "object", "additionalProperties": False} | schema for name, schema in settings.items()
        },
        "additionalProperties": False,
    }


# What only the schema says in this way; _not_blank and the engine check it, with words.
SomeText = Annotated[str, Field(pattern=r"\S")]
SOME_TEXT: dict[str, JsonValue] = {"properties": {"text": {"pattern": r"\S"}}}
SomeParts = Annotated[list[TextPart], Field(min_length=1, json_schema_extra={"contains": SOME_TEXT})]
FROM_USER: dict[str, JsonValue] = {"properties": {"role": {"const": "user"}}}

Content = Annotated[list[TextPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart])]
UserContent = Annotated[
    list[TextPart],
    BeforeValidator(_as_parts, json_schema_input_type=SomeText | SomeParts),
    AfterValidator(_not_blank),
]
PromptText = Annotated[str, Field(min_length=1)]
OnePrompt = Annotated[list[PromptText], Field(min_length=1, max_length=1)]
WHOLE = BeforeValidator(_as_whole)  # JSON has one kind of number: 8.0 is whole
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS), WHOLE]
Penalty = Annotated[float, Field(ge=LEAST_PENALTY, le=MOST_PENALTY, allow_inf_nan=False)]
Nothing = Annotated[list[Any], Field(max_length=0)]
No = Annotated[bool, AfterValidator(_is_no), WithJsonSchema({"type": "boolean", "const": False})]
Zero = Annotated[float, Field(ge=0, le=0)]
StopText = Annotated[str, Field(min_length=1), AfterValidator(_is_unicode)]
Stops = Annotated[
    list[StopText],
    BeforeValidator(_as_list, json_schema_input_type=StopText | list[StopText]),
]


StrategyWish = Annotated[  # strategy_from_dict checks it, with words
    dict[str, dict[str, Any]],
    BeforeValidator(_with_whole_numbers),
    WithJsonSchema(
        _one_of(
            beam={
                "properties": {
                    "num_beams": {"type": "integer", "minimum": 2, "maximum": MOST_BEAMS},
                    "length_penalty": {"type": "number", "minimum": -10, "maximum": 10},
                    "early_stopping": {"enum": [True, False, "never"]},
                }
            },
            prompt_lookup={"properties": {"num_tokens": {"type": "integer", "minimum": 1, "maximum": MOST_GUESSES}}},
            assisted={"properties": {"model": {"type": "string", "pattern": r"\S"}}, "required": ["model"]},
        )
    ),
]


class SystemMessage(Strict):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None

    def message(self) -> Message:
        return Message("system", _text(self.content))


class UserMessage(Strict):
    role: Literal["user"]
    content: UserContent
    name: str | None = None

    def message(self) -> Message:
        return Message("user", _text(self.content))


class AssistantMessage(Strict):
    """Everything that an answer of this server, or of OpenAI's, has in it, so that it can be sent back as it is."""

    role: Literal["assistant"]
    content: Content
    name: str | None = None
    reasoning_content: Text | None = None
    annotations: Nothing | None = None
    audio: None = None
    function_call: None = None
    refusal: None = None
    tool_calls: Nothing | None = None

    def message(self) -> Message:
        return Message("assistant", _text(self.content), self.reasoning_content or "")


def _text(parts: list[TextPart]) -> str:
    return "".join(part.text for part in parts)


ChatMessage = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: No | None = None


class TextFormat(Strict):
    type: Literal["text"]


class Wishes(Strict):
    """What a request for a chat's answer and one for a text's continuation have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=HOTTEST, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: Stops | None = None
    seed: Annotated[int, WHOLE] | None = None

    # extensions that other servers of open models have too
    top_k: Annotated[int, Field(ge=-1, le=MOST_TOKENS), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Penalty | None = None

    # an extension of this server alone: {"beam": {"num_beams": 4}} and the like
    strategy: StrategyWish | None = None

    # accepted, and without effect on an answer, but for whose turn it is
    user: str | None = None

    # not supported: only the values that ask for nothing
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    n: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None
    presence_penalty: Zero | None = None

    def _sampling(self, max_new_tokens: int | None, chat_template_kwargs: dict[str, Any] | None = None) -> Sampling:
        return Sampling(
            max_new_tokens=max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=0 if self.top_k == -1 else self.top_k,  # as vLLM and others say "off"
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            stop=tuple(self.stop or ()),
            seed=None if self.seed is None else self.seed % 2**63,  # any number may name a course of chance
            chat_template_kwargs=chat_template_kwargs or {},
            strategy=strategy_from_dict(self.strategy) if self.strategy is not None else None,
        )

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Wishes):
    """A conversation to be answered. Every field but `messages` may be left out, or be null."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, json_schema_extra={"contains": FROM_USER})]
    max_completion_tokens: Tokens | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # accepted, and without effect on an answer
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None

    # not supported: only the values that ask for nothing
    audio: None = None
    function_call: Literal["none", "auto"] | None = None
    functions: Nothing | None = None
    logprobs: No | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    prediction: None = None
    reasoning_effort: None = None
    response_format: TextFormat | None = None
    service_tier: Literal["auto", "default"] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    tools: Nothing | None = None
    top_logprobs: Zero | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None

    def conversation(self) -> list[Message]:
        return [message.message() for message in self.messages]

    def sampling(self) -> Sampling:
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return self._sampling(min(limits, default=None), self.chat_template_kwargs)


class CompletionRequest(Wishes):
    """A text to go on from, without a chat template. Every field but `prompt` may be left out, or be null."""

    prompt: Annotated[
        list[Annotated[Text, Field(min_length=1)]],
        BeforeValidator(_as_prompts, json_schema_input_type=PromptText | OnePrompt),
    ]
    echo: bool | None = None

    # not supported: only the values that ask for nothing
    best_of: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None
    logprobs: None = None
    suffix: None = None

    @property
    def text(self) -> str:
        return self.prompt[0]

    def sampling(self) -> Sampling:
        return self._sampling(self.max_tokens or COMPLETION_TOKENS)
