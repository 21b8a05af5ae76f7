"""Makes a conversation fit a server that has found it too long: whole oldest turns go, as with our own models.

Knows no tokenizer: it goes by the lengths that the server has told, and by characters between them. Pure.
"""

from collections.abc import Sequence

from streaming.errors import ContextTooLong
from streaming.messages import Message


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
