"""What of a conversation is sent to a server. One that the server has found too long is made to fit: whole oldest turns
go, as with our own models.

Knows no tokenizer: it goes by the lengths that the server has told, and by characters between them. Pure.
"""

from collections.abc import Sequence

from streaming.errors import ContextTooLong, InvalidRequest
from streaming.messages import Message, check_messages


class Fitting:
    """What to ask for: `messages`, and at most `max_new_tokens`. `dropped` messages were left out."""

    def __init__(self, messages: Sequence[Message], max_new_tokens: int) -> None:
        self._all = len(messages)
        self.messages = list(messages)
        self.max_new_tokens = max_new_tokens

    @property
    def dropped(self) -> int:
        return self._all - len(self.messages)

    def tighten(self, error: ContextTooLong) -> bool:
        """Ask for less. False: what is left cannot be shortened, no system message nor the last turn.

        The answer may use half of the context; older turns go before it gets less than that.
        """
        context, prompt = error.context_tokens, error.prompt_tokens
        if self.max_new_tokens > context // 2 > 0:
            self.max_new_tokens = context // 2
            if prompt + self.max_new_tokens <= context:
                return True
        turns = [index for index, message in enumerate(self.messages) if message.role == "user"]
        if len(turns) > 1:
            self._drop(turns, share=max(0, context - self.max_new_tokens) / max(1, prompt))
            return True
        room = context - prompt
        if room < 1 or self.max_new_tokens == 1:
            return False
        # Some servers stop counting a prompt that is too long: they are told half as much the next time.
        self.max_new_tokens = room if room <= 0.9 * self.max_new_tokens else self.max_new_tokens // 2
        return True

    def _drop(self, turns: Sequence[int], share: float) -> None:
        """Leave out the oldest turn at least, and as many as bring the characters to `share` of what they are."""
        room = share * sum(len(message.content) for message in self.messages)
        kept = self.messages
        for cut in turns[1:]:
            kept = [message for message in self.messages[:cut] if message.role == "system"] + self.messages[cut:]
            if sum(len(message.content) for message in kept) <= room:
                break
        self.messages = kept


def sendable(prompt: str | Sequence[Message], continues: bool) -> tuple[str | tuple[Message, ...], bool]:
    """What to send for a prompt, and whether its last message is to go on: not one in which there is nothing yet to go
    on from. Raises InvalidRequest for what no server could do."""
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequest("There is nothing to go on from: the prompt is empty.", "prompt")
        return prompt, continues
    check_messages(prompt)
    last = prompt[-1]
    if not continues:
        return tuple(prompt), False
    if last.role != "assistant":
        raise InvalidRequest(f"There is nothing to go on with: the last message is the {last.role}'s.", "messages")
    if not last.is_blank:
        return tuple(prompt), True
    if last.reasoning.strip():
        raise InvalidRequest("A server cannot go on in the middle of reasoning: ask for a new answer.", "messages")
    return tuple(prompt[:-1]), False
