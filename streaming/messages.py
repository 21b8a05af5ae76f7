"""What goes into an engine: messages and sampling. Pure frozen values, checked when they are made.

Knows no tokenizer, no template and no model, so it can say what is malformed but not what is too long.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

from streaming.errors import InvalidRequest

Role = Literal["system", "user", "assistant"]
ROLES: tuple[str, ...] = get_args(Role)
MOST_STOP_CHARACTERS = 20_000  # looking for a million of them takes seconds to prepare, in which nobody is answered


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat: who speaks, and the text. `reasoning` is what an assistant thought before it answered."""

    role: Role
    content: str
    reasoning: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidRequest(f"There is no role {self.role!r}: a message is from {', '.join(ROLES)}.", "role")
        for name in ("content", "reasoning"):
            if not isinstance(getattr(self, name), str):
                raise InvalidRequest(f"The {name} of the {self.role} message is not a text.", name)
            if not _is_unicode(getattr(self, name)):
                raise InvalidRequest(f"The {name} of the {self.role} message holds half a character.", name)

    @property
    def is_blank(self) -> bool:
        return not self.content.strip()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], index: int = 0) -> Self:
        """A message in OpenAI's form: `content` is a text or a list of `{"type": "text", "text": ...}` parts.

        Raises InvalidRequest naming the message by its `index`.
        """
        where = f"messages[{index}]"
        role, content = raw.get("role"), raw.get("content")
        if role not in ROLES:
            raise InvalidRequest(
                f"{where} has the role {role!r}: it must be one of {', '.join(ROLES)}.", f"{where}.role"
            )
        if isinstance(content, list | tuple):
            content = "".join(_text_of_part(part, where) for part in content)
        if not isinstance(content, str):
            raise InvalidRequest(f"{where} has no text: its content is {content!r}.", f"{where}.content")
        return cls(role, content, raw.get("reasoning_content") or "")


def _text_of_part(part: object, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InvalidRequest(f"{where} has a part of the kind {kind!r}: only text can be read.", f"{where}.content")


def _is_unicode(text: str) -> bool:
    """False for a lone surrogate: JSON can carry one, and no tokenizer, file or database can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_messages(messages: Sequence[Message]) -> None:
    """Raise InvalidRequest unless there is something to answer: the last user message must hold text."""
    if not messages:
        raise InvalidRequest("There is nothing to answer: the conversation has no messages.", "messages")
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise InvalidRequest("There is nothing to answer: the conversation has no user message.", "messages")
    if users[-1].is_blank:
        raise InvalidRequest("There is nothing to answer: the last user message is empty.", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an answer is drawn. None leaves a choice to the model's own generation config; `temperature=0` is greedy.

    `max_new_tokens` and `top_k` count tokens, `seed` makes sampling repeatable, `stop` are strings that end the text
    (and are not part of it). `chat_template_kwargs` reach the chat template, as in `{"enable_thinking": False}`.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, Sequence):
            raise InvalidRequest("stop must be a list of texts.", "stop")
        object.__setattr__(self, "stop", tuple(stop))
        if not all(isinstance(text, str) and text for text in stop):
            raise InvalidRequest("A stop string must be a text that is not empty.", "stop")
        if (characters := sum(map(len, stop))) > MOST_STOP_CHARACTERS:
            raise InvalidRequest(
                f"The stop strings have {characters:,} characters: {MOST_STOP_CHARACTERS:,} is the most.", "stop"
            )
        self._check("max_new_tokens", int, lambda n: n >= 1, "a whole number of at least 1")
        self._check("temperature", float, lambda t: t >= 0, "a number of at least 0 (0 is greedy)")
        self._check("top_p", float, lambda p: 0 < p <= 1, "a number above 0 and up to 1")
        self._check("top_k", int, lambda k: k >= 0, "a whole number of at least 0 (0 is off)")
        self._check("min_p", float, lambda p: 0 <= p <= 1, "a number from 0 to 1")
        self._check("repetition_penalty", float, lambda r: r > 0, "a number above 0 (1 is off)")
        self._check("seed", int, lambda s: 0 <= s < 2**63, "a whole number of at least 0")
        if not isinstance(self.chat_template_kwargs, Mapping):
            raise InvalidRequest("chat_template_kwargs must map names to values.", "chat_template_kwargs")

    def _check(self, name: str, kind: type, valid: Any, wanted: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if not number or (isinstance(value, float) and not math.isfinite(value)) or not valid(value):
            raise InvalidRequest(f"{name} is {value!r}: it must be {wanted}.", name)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Sampling from plain JSON; an unknown name is refused, so that a misspelling is never swallowed."""
        known = {item.name for item in fields(cls)}
        for name in raw:
            if name not in known:
                raise InvalidRequest(f"There is no sampling setting {name!r}.", name)
        return cls(**raw)
