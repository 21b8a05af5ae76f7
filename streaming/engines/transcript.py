"""What a server writes, read as our own models' text is: stop strings end it, reasoning and answer are told apart.

Servers ignore stops, leave <think> in the text, or send reasoning apart with its white space: what comes out is the
same. Knows no HTTP and counts no tokens. One object for one answer, one thread.
"""

from collections.abc import Sequence

from streaming.events import Delta, ReasoningDelta, TextDelta
from streaming.reasoning import Part, ReasoningParser
from streaming.stops import StopMatcher

_NEVER = "\ufdd0"  # in no text: no character
_OPEN, _CLOSE = "<think>", "</think>"


class Transcript:
    """`stopped` is the stop string that ended the text, if one did; `tokens` is what its deltas are to say.

    `begun`: the text goes on from one that has begun, so that nothing in it can open a block of reasoning.
    """

    def __init__(self, stops: Sequence[str] = (), *, begun: bool = False) -> None:
        self._stops = StopMatcher(stops)
        self._halves = _Halves()
        self._answer = ReasoningParser(open=_NEVER if begun else _OPEN, close=_CLOSE)
        self._thought = ReasoningParser(close=_NEVER, opened=True)
        self._thinking = False
        self._answering = False
        self.tokens = 0

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    def add(self, text: str, *, reasoning: bool = False) -> list[Delta]:
        """More text; `reasoning` says that the server itself calls it so. Nothing after a stop is read."""
        parts: list[Part] = []
        if reasoning != self._thinking:
            parts = self._parser.add(self._rest())
            self._thinking = reasoning
            if reasoning and not self._answering:  # then what follows is the answer, whatever it begins with
                self._answer = ReasoningParser(close=_CLOSE, opened=True)
                self._answer.add(_CLOSE)
        parts += self._parser.add(self._stops.add(self._halves.add(text)))
        return self._deltas(parts)

    def finish(self) -> list[Delta]:
        """Everything that was withheld: half a character, half a stop, half a tag."""
        return self._deltas(self._parser.add(self._rest()) + self._parser.finish())

    @property
    def _parser(self) -> ReasoningParser:
        return self._thought if self._thinking else self._answer

    def _rest(self) -> str:
        rest = self._stops.add(self._halves.finish())
        return rest + self._stops.finish()

    def _deltas(self, parts: list[Part]) -> list[Delta]:
        self._answering |= any(kind == "text" for kind, _ in parts)
        return [
            ReasoningDelta(text, self.tokens) if kind == "reasoning" else TextDelta(text, self.tokens)
            for kind, text in parts
        ]


class _Halves:
    """Joins the halves of a character that JSON has carried in two pieces. A half that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, text: str) -> str:
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        whole = text.removesuffix(self._half)
        return whole if whole.isascii() else whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def finish(self) -> str:
        half, self._half = self._half, ""
        return "\ufffd" if half else ""
