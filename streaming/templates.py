"""Messages to token ids by the model's own chat template, fitted to the context by leaving out whole oldest turns.

An answer that goes on is written after the template's opening of an answer, as the model wrote it the first time. What
a template cannot do is found out once, when it is made, and worked around. What users write is never read as control
tokens. Any thread may render: nothing is changed, the shared tokenizer's truncation least of all.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from streaming.errors import ContextTooLong, InvalidRequest
from streaming.events import Kind
from streaming.messages import Message, check_messages, check_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ {'system': '', 'user': 'User: ', 'assistant': 'Assistant: '}[message['role']] + message['content'] + '\n\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PLAIN_STOPS = ("\nUser:",)
PLAIN_NOTICE = (
    "This model has no chat template, so it was probably not trained to chat: its prompts are written plainly "
    "as User and Assistant. A model with Instruct or Chat in its name answers better."
)
OPEN_REASONING, CLOSE_REASONING = "<think>", "</think>"
_TAIL_TOKENS = 32  # more than any spelling of the opening tag and the white space after it takes
_CHARACTERS_PER_TOKEN = 16  # no text of a conversation's length has more of them
_PROBE = "probe"
_OPEN, _CLOSE = "{{ '<think>\\n' }}", "{{ '\\n</think>\\n\\n' }}"  # strings: jinja trims plain text after a block
_END_OF_SOURCE = re.compile(r"(\r\n|\r|\n)\Z")  # jinja leaves out one, but only at the very end


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. `reasoning_opened`: the template has begun a reasoning block that the model goes on in.
    `within`: it ends in the middle of a text of this kind, and the answer goes on there."""

    ids: list[int]
    dropped_messages: int
    reasoning_opened: bool
    within: Kind | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """What was written of an answer already, to come after the opening of it. `template`: the tags, which are the
    template's, and the variables, whose text is the model's and so is never read as control tokens."""

    template: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    within: Kind | None = None


class ChatTemplate:
    """Renders conversations for one model. `context_tokens` is what prompt and answer share.

    `can_think`: the template reads `enable_thinking`. `notices` are remarks for the user. `stops` are the strings that
    end an answer where the template has no token for it.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._begin_ids = [tokenizer.bos_token_id] if _begins_texts(tokenizer) else []
        self._reserved = {"messages", *signature(tokenizer.apply_chat_template).parameters} - {"kwargs"}
        self._control_tokens = re.compile("|".join(map(re.escape, tokenizer.get_added_vocab())) or "(?!)")
        self.notices: tuple[str, ...] = ()
        self.stops: tuple[str, ...] = ()
        try:
            self._template = tokenizer.get_chat_template()
        except ValueError:  # none, or several and none of them the default
            self._template = ("{{ bos_token }}" if self._begin_ids else "") + PLAIN_TEMPLATE
            self.notices, self.stops = (PLAIN_NOTICE,), PLAIN_STOPS
        self.can_think = "enable_thinking" in self._template
        self._content_in_parts = False
        if not self._shows("user"):  # nor raised, as a rule: models that also see images read content in parts
            self._content_in_parts = True
            self._content_in_parts = self._shows("user")
        self._takes_system = self._shows("system", "user")
        self._takes_late_system = self._takes_system and self._shows("user", "assistant", "system", "user")
        self._takes_repetition = self._shows("user", "user") and self._shows("user", "assistant", "assistant", "user")

    def read(self, text: str) -> Prompt:
        """The prompt that is this text, as it stands. What would be a control token in a message is none here either.

        Raises InvalidRequest, and ContextTooLong.
        """
        check_prompt(text)
        # The template is not played, only looked at for its control tokens.
        alone = "{% if false %}" + self._template + "{% endif %}{{ begun }}"
        ids = self._begin_ids + self._encode([("user", _PROBE)], alone, {"begun": text})
        if len(ids) >= self._context_tokens:
            raise ContextTooLong(len(ids), self._context_tokens)
        return Prompt(ids, 0, reasoning_opened=False, within="text")

    def render(
        self,
        messages: Sequence[Message],
        *,
        reserve_tokens: int,
        chat_template_kwargs: Mapping[str, Any],
        continues: bool = False,
    ) -> Prompt:
        """The prompt for an answer to `messages`, with room for `reserve_tokens` of it (at most half of the context).

        With `continues` the last message is the beginning of that answer, and the prompt ends where it ends.
        Oldest turns are left out until that fits: never a system message, nor anything from the last user message on,
        which alone may also use the answer's room. Raises InvalidRequest, and ContextTooLong if even that is too long.
        """
        check_messages(messages, continues=continues)
        for name in chat_template_kwargs:
            if name in self._reserved:
                raise InvalidRequest(f"chat_template_kwargs may not set {name!r}.", "chat_template_kwargs")
        room = self._context_tokens - max(1, min(reserve_tokens, self._context_tokens // 2))
        begun, kwargs = _Begun(), chat_template_kwargs
        if continues:
            *messages, last = messages
            begun, kwargs = self._begun(last, chat_template_kwargs)
        ids, kept = self._fit(messages, room, begun, kwargs)
        if len(ids) >= self._context_tokens:
            raise ContextTooLong(len(ids), self._context_tokens)
        opened = begun.within is None and self._opens_reasoning(ids)
        return Prompt(ids, len(messages) - len(kept), opened, begun.within)

    def _begun(self, message: Message, kwargs: Mapping[str, Any]) -> tuple[_Begun, Mapping[str, Any]]:
        """How an answer that begins with this message is written, and the variables for what comes before it."""
        reasons = bool(message.reasoning.strip())
        if message.is_blank and not reasons:
            return _Begun(), kwargs
        if message.is_blank:
            kwargs = {**kwargs, "enable_thinking": True}  # it has begun to, whatever is wished of later answers
        opening = str(self._apply([("user", _PROBE)], tokenize=False, **kwargs)).rstrip()
        opened = opening.endswith(OPEN_REASONING)
        reasons = reasons and not opening.endswith(CLOSE_REASONING)
        template = "" if opened or not reasons else _OPEN
        template += "{{ begun_reasoning }}" if reasons else ""
        if message.is_blank:
            return _Begun(template, {"begun_reasoning": message.reasoning}, "reasoning"), kwargs
        template += _CLOSE if opened or reasons else ""
        variables = {"begun_reasoning": message.reasoning, "begun": message.content}
        return _Begun(template + "{{ begun }}", variables, "text"), kwargs

    def _fit(
        self, messages: Sequence[Message], room: int, begun: _Begun, kwargs: Mapping[str, Any]
    ) -> tuple[list[int], Sequence[Message]]:
        """The longest prompt of at most `room` tokens that a cut between turns gives, or else the shortest there is.

        Found by bisection, as prompts get shorter from cut to cut: a few renderings of about one context each.
        """
        prompts: dict[int, list[int]] = {}
        template = _END_OF_SOURCE.sub("", self._template) + begun.template if begun.template else self._template
        variables = {**kwargs, **begun.variables}

        def encode(kept: Sequence[Message]) -> list[int]:
            return self._encode(self._adapt(kept), template, variables)

        def fits(cut: int) -> bool:
            prompts[cut] = encode(_since(messages, cut))
            return len(prompts[cut]) <= room

        cuts = _cuts(messages, room * _CHARACTERS_PER_TOKEN)
        last = len(cuts) - 1
        cut = cuts[0] if last == 0 or fits(cuts[0]) else cuts[bisect_left(cuts, True, 1, last, key=fits)]
        kept = _since(messages, cut)
        return prompts.get(cut) or encode(kept), kept

    def _encode(self, turns: list[tuple[str, str]], template: str, variables: dict[str, Any]) -> list[int]:
        try:
            ids = self._apply(turns, template, tokenize=True, sanitize_control_tokens=True, **variables)
        except InvalidRequest:
            # A few tokenizers (word level, Unigram) make a control token even of its letters: write those apart.
            turns_apart = [(role, self._apart(text)) for role, text in turns]
            variables_apart = {name: self._apart(value) for name, value in variables.items()}
            if (turns_apart, variables_apart) == (turns, variables):
                raise
            ids = self._apply(turns_apart, template, tokenize=True, sanitize_control_tokens=True, **variables_apart)
        if not ids:
            raise InvalidRequest("The model's chat template makes an empty prompt of these messages.", "messages")
        return list(ids)

    def _apart(self, value: Any) -> Any:
        return self._control_tokens.sub(lambda token: " ".join(token[0]), value) if isinstance(value, str) else value

    def _apply(self, turns: Iterable[tuple[str, str]], template: str | None = None, **kwargs: Any) -> Any:
        conversation: list[Any] = [
            {"role": role, "content": [{"type": "text", "text": text}] if self._content_in_parts else text}
            for role, text in turns
        ]
        try:
            return self._tokenizer.apply_chat_template(
                conversation,
                chat_template=template or self._template,
                add_generation_prompt=True,
                return_dict=False,
                **kwargs,
            )
        # A template is a program by the model's author: besides refusing, it can fail in any way a program can.
        except (
            TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidRequest(f"The model's chat template refuses this conversation: {error}", "messages") from error

    def _adapt(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        """Bring the messages, as (role, text), into the form that the template takes."""
        turns: list[tuple[str, str]] = []
        folded: list[str] = []
        for message in messages:
            role, text = message.role, message.content
            if role == "assistant" and message.is_blank:
                continue  # an answer that was stopped before it began teaches the model only to be silent
            begins = not turns or turns[-1][0] == "system"
            if role == "system" and not (self._takes_system if begins else self._takes_late_system):
                folded.append(text)
                continue
            if role == "user" and folded:
                text = "\n\n".join([*folded, text])
                folded = []
            if turns and turns[-1][0] == role and not (self._takes_repetition and role != "system"):
                text = f"{turns.pop()[1]}\n\n{text}"
            turns.append((role, text))
        if folded:
            last = max(index for index, (role, _) in enumerate(turns) if role == "user")
            turns[last] = ("user", "\n\n".join([turns[last][1], *folded]))
        return turns

    def _shows(self, *roles: str) -> bool:
        """Whether the template takes these roles in a row, and shows the text of each."""
        turns = [(role, f"{_PROBE}{index}") for index, role in enumerate(roles)]
        try:
            text = self._apply(turns, tokenize=False)
        except InvalidRequest:
            return False
        return all(probe in text for _, probe in turns)

    def _opens_reasoning(self, ids: list[int]) -> bool:
        tail = self._tokenizer.decode(ids[-_TAIL_TOKENS:], skip_special_tokens=False)
        return str(tail).rstrip().endswith(OPEN_REASONING)


def _since(messages: Sequence[Message], cut: int) -> list[Message]:
    """The messages from `cut` on, and all system messages before it."""
    return [message for message in messages[:cut] if message.role == "system"] + list(messages[cut:])


def _cuts(messages: Sequence[Message], most_characters: int) -> list[int]:
    """Where a shortened conversation may begin: whole, or at any user message. The last of them always stays.

    Beginnings that leave more than `most_characters` are not worth rendering, so an endless history costs nothing.
    """
    cuts: list[int] = []
    characters = 0
    for index in reversed(range(len(messages))):
        characters += len(messages[index].content)
        if messages[index].role == "user" or (index == 0 and cuts):
            if cuts and characters > most_characters:
                break
            cuts.append(index)
    return cuts[::-1]


def _begins_texts(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether this tokenizer by itself begins texts with its begin token."""
    return tokenizer.bos_token_id is not None and tokenizer.bos_token_id in tokenizer("a")["input_ids"]
