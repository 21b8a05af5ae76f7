"""What goes into an engine: messages and sampling. Pure frozen values, checked when they are made.

Knows no tokenizer, no template and no model, so it can say what is malformed but not what is too long.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, get_args

from streaming.errors import InvalidRequest

Role = Literal["system", "user", "assistant"]
ROLES: tuple[str, ...] = get_args(Role)
MOST_TOKENS = 2**31 - 1
HOTTEST = 100  # by then every token is about as likely as any other
LEAST_PENALTY, MOST_PENALTY = 0.01, 100  # beyond these a logit can become infinite, and the chances no numbers at all
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
            if not is_unicode(getattr(self, name)):
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


def is_unicode(text: str) -> bool:
    """False for a lone surrogate: JSON can carry one, and no tokenizer, file or database can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_prompt(prompt: str | Sequence[Message], *, continues: bool = False) -> None:
    """Raise InvalidRequest unless there is something to answer: a text, or messages, see check_messages."""
    if not isinstance(prompt, str):
        check_messages(prompt, continues=continues)
    elif not prompt:
        raise InvalidRequest("There is nothing to go on from: the prompt is empty.", "prompt")
    elif not is_unicode(prompt):
        raise InvalidRequest("The prompt holds half a character.", "prompt")


def check_messages(messages: Sequence[Message], *, continues: bool = False) -> None:
    """Raise InvalidRequest unless there is something to answer: the last user message must hold text.

    `continues`: what is to go on is the last message, so it must be an assistant's.
    """
    if not messages:
        raise InvalidRequest("There is nothing to answer: the conversation has no messages.", "messages")
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise InvalidRequest("There is nothing to answer: the conversation has no user message.", "messages")
    if users[-1].is_blank:
        raise InvalidRequest("There is nothing to answer: the last user message is empty.", "messages")
    if continues and messages[-1].role != "assistant":
        raise InvalidRequest(
            f"There is nothing to go on with: the last message is the {messages[-1].role}'s, not an assistant's.",
            "messages",
        )


def _check_number(owner: object, name: str, kind: type, valid: Callable[[Any], bool], wanted: str) -> None:
    """Raise InvalidRequest unless the field is a number of this kind that is `valid`."""
    value = getattr(owner, name)
    number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, float) and not math.isfinite(value)) or not valid(value):
        huge = isinstance(value, int) and value.bit_length() > 64  # Python refuses to write some of these out
        told = f"a whole number of {value.bit_length()} bits" if huge else repr(value)
        raise InvalidRequest(f"{name} is {told}: it must be {wanted}.", name)


@dataclass(frozen=True, slots=True)
class Beam:
    """Follow the `num_beams` most probable texts at once, and answer with the best of them (beam search).

    A text's score is its log-probability by the power `length_penalty` of its length: above 0 it favours long answers,
    below 0 short ones. `early_stopping`: True ends with as many finished texts as there are beams, False when a better
    one has become unlikely, "never" when it has become impossible.
    """

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        _check_number(self, "num_beams", int, lambda n: 2 <= n <= MOST_BEAMS, f"a whole number from 2 to {MOST_BEAMS}")
        _check_number(self, "length_penalty", float, lambda p: abs(p) <= 10, "a number from -10 to 10")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequest(
                f"early_stopping is {self.early_stopping!r}: it must be true, false or 'never'.", "early_stopping"
            )


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Guess up to `num_tokens` at a time from what followed the same words before; the model accepts or rejects them.

    The answer is the same as without, and comes sooner where it repeats its prompt.
    """

    num_tokens: int = 5

    def __post_init__(self) -> None:
        _check_number(self, "num_tokens", int, lambda n: 1 <= n <= MOST_GUESSES, f"a whole number to {MOST_GUESSES}")


@dataclass(frozen=True, slots=True)
class Assisted:
    """Let the small `model` guess a few tokens at a time, which the large one accepts or rejects. The answer is the
    same as without."""

    model: str

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model.strip():
            raise InvalidRequest("An assisted answer needs the name of the model that guesses.", "model")


Strategy = Beam | PromptLookup | Assisted
STRATEGIES: Mapping[str, type[Strategy]] = {"beam": Beam, "prompt_lookup": PromptLookup, "assisted": Assisted}
MOST_BEAMS = 8  # each has a cache of its own
MOST_GUESSES = 32  # all are computed, whether they are accepted or not


def strategy_from_dict(raw: object) -> Strategy:
    """A strategy from plain JSON, by its name: `{"beam": {"num_beams": 4}}`. Its settings may be left out."""
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise InvalidRequest(
            f"strategy must be one of {', '.join(STRATEGIES)} with its settings, as in {{'beam': {{'num_beams': 4}}}}.",
            "strategy",
        )
    name, settings = next(iter(raw.items()))
    if name not in STRATEGIES:
        raise InvalidRequest(f"There is no strategy {name!r}: it must be one of {', '.join(STRATEGIES)}.", "strategy")
    kind = STRATEGIES[name]
    if not isinstance(settings, Mapping):
        raise InvalidRequest(f"The settings of the strategy {name!r} must map names to values.", "strategy")
    known = {item.name for item in fields(kind)}
    for setting in settings:
        if setting not in known:
            raise InvalidRequest(f"The strategy {name!r} has no setting {setting!r}.", "strategy")
    try:
        return kind(**settings)
    except TypeError as error:
        raise InvalidRequest(f"The strategy {name!r} needs {', '.join(known)}.", "strategy") from error


def strategy_to_dict(strategy: Strategy) -> dict[str, Any]:
    """What `strategy_from_dict` reads."""
    name = next(name for name, kind in STRATEGIES.items() if isinstance(strategy, kind))
    return {name: asdict(strategy)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an answer is drawn. None leaves a choice to the model's own generation config; `temperature=0` is greedy.

    `max_new_tokens` and `top_k` count tokens, `seed` makes sampling repeatable, `stop` are strings that end the text
    (and are not part of it). `chat_template_kwargs` reach the chat template, as in `{"enable_thinking": False}`. With
    a `strategy` tokens are not made one by one, but by Beam search, or guessed by PromptLookup or an Assisted model.
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
    strategy: Strategy | None = None

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
        self._check("max_new_tokens", int, lambda n: 1 <= n <= MOST_TOKENS, f"a whole number from 1 to {MOST_TOKENS:,}")
        self._check("temperature", float, lambda t: 0 <= t <= HOTTEST, f"a number from 0 (greedy) to {HOTTEST}")
        self._check("top_p", float, lambda p: 0 < p <= 1, "a number above 0 and up to 1")
        self._check("top_k", int, lambda k: 0 <= k <= MOST_TOKENS, f"a whole number from 0 (off) to {MOST_TOKENS:,}")
        self._check("min_p", float, lambda p: 0 <= p <= 1, "a number from 0 to 1")
        self._check(
            "repetition_penalty",
            float,
            lambda r: LEAST_PENALTY <= r <= MOST_PENALTY,
            f"a number from {LEAST_PENALTY} to {MOST_PENALTY} (1 is off)",
        )
        self._check("seed", int, lambda s: 0 <= s < 2**63, "a whole number from 0 to 2**63 - 1")
        if not isinstance(self.chat_template_kwargs, Mapping):
            raise InvalidRequest("chat_template_kwargs must map names to values.", "chat_template_kwargs")
        if self.strategy is not None and not isinstance(self.strategy, Strategy):
            raise InvalidRequest("strategy must be a Beam, a PromptLookup or an Assisted.", "strategy")

    def _check(self, name: str, kind: type, valid: Callable[[Any], bool], wanted: str) -> None:
        if getattr(self, name) is not None:
            _check_number(self, name, kind, valid, wanted)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Sampling from plain JSON; an unknown name is refused, so that a misspelling is never swallowed."""
        known = {item.name for item in fields(cls)}
        for name in raw:
            if name not in known:
                raise InvalidRequest(f"There is no sampling setting {name!r}.", name)
        strategy = raw.get("strategy")
        return cls(**{**raw, "strategy": None if strategy is None else strategy_from_dict(strategy)})

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` reads: plain values, only of what is set."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        changes = {
            "stop": list(self.stop),
            "chat_template_kwargs": dict(self.chat_template_kwargs),
            "strategy": None if self.strategy is None else strategy_to_dict(self.strategy),
        }
        return {name: value for name, value in (plain | changes).items() if value not in (None, [], {})}
