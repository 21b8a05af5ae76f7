"""What comes out of an engine: the typed, frozen units of a stream. Page, API, terminal and benchmarks all read these.

An answer is `Queued*, Prefill*, (ReasoningDelta | TextDelta | Tentative)*, Finished`, or it ends in one raised
StreamingError. The deltas alone are the answer.
Positions count from 1, durations are seconds, everything else counts tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]
Kind = Literal["reasoning", "text"]  # of what a model writes: what it thinks first, and what it answers
Span = tuple[int, int]  # of a text: from which character on, and up to which


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; `position` 1 is the next to run. `detail` says what for, if not for other requests."""

    position: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The model has read `done` of the prompt's `total` tokens."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer. `tokens` counts all completion tokens up to here, those of the reasoning included, and
    `accepted` those of them that had been guessed: what one step has made is one delta, or two where a thought ends.
    Its first `guessed` characters are what the guesses brought, the others what the model added."""

    text: str
    tokens: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)
    guessed: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers. The rest as in TextDelta."""

    text: str
    tokens: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)
    guessed: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Tentative:
    """How the best beam goes on after all deltas so far, which another may still overtake: first `reasoning`, then
    `text`. It stands until the next delta, the next Tentative (an empty one takes it back), or the end."""

    text: str = ""
    reasoning: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. `cached_tokens` of the prompt were not computed again; whole oldest messages may have
    been left out so that the rest fits the context (`dropped_messages`). Under speculation `proposed_tokens` were
    guessed, and `accepted_tokens` of the completion were among them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    dropped_messages: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds in the queue, seconds from the request to its first token, tokens per second after the first."""

    queued_s: float = 0.0
    ttft_s: float = 0.0
    decode_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer; `stopped_by` is the stop string that ended it, if one did, and `model` the one that
    gave it, where one has begun to."""

    reason: FinishReason
    usage: Usage = Usage()
    timings: Timings = Timings()
    stopped_by: str | None = None
    model: str = ""


Delta = TextDelta | ReasoningDelta
Event = Queued | Prefill | TextDelta | ReasoningDelta | Tentative | Finished


def deltas_of(parts: Sequence[tuple[Kind, str]], tokens: int, accepted: int, by_guesses: int = 0) -> list[Delta]:
    """The parts as deltas, adjacent ones of a kind merged. Guesses have brought the first `by_guesses` parts."""
    deltas: list[Delta] = []
    for kind, adjacent in groupby(enumerate(parts), key=lambda numbered: numbered[1][0]):
        texts = [(text, place < by_guesses) for place, (_, text) in adjacent]
        guessed = sum(len(text) for text, is_guessed in texts if is_guessed)
        delta = ReasoningDelta if kind == "reasoning" else TextDelta
        deltas.append(delta("".join(text for text, _ in texts), tokens, accepted, guessed))
    return deltas
