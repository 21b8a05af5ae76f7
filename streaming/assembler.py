"""Ids in, events out: detokenizes, ends at a stop string, splits reasoning from answer.

Knows no model and no thread: one object for one answer, used by whoever produces its ids. EOS ids are the caller's to
leave out. The deltas joined are the parse of the whole text in one go, however the ids are cut.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from streaming.detokenizer import Detokenizer
from streaming.events import Delta, Kind, ReasoningDelta, Tentative, TextDelta, deltas_of
from streaming.reasoning import Part, ReasoningParser
from streaming.stops import StopMatcher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Assembler:
    """`tokens` counts the ids read, `accepted` those of them that were guessed, `stopped` is the stop string that ended
    the answer, if one did.

    `after` and `within`: the ids go on from those, in the middle of a text of that kind.
    Raises InvalidRequest for an empty stop.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        stops: Sequence[str] = (),
        reasoning_opened: bool = False,
        after: Sequence[int] = (),
        within: Kind | None = None,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, after=after)
        self._stops = StopMatcher(stops)
        self._reasoning = ReasoningParser(opened=reasoning_opened, within=within)
        self.tokens = self.accepted = 0

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    def add(self, ids: int | list[int], guessed: int = 0) -> list[Delta]:
        """The deltas that have become certain, adjacent ones of a kind merged. Ids after a stop are not read.

        The first `guessed` of the ids are counted as accepted.
        """
        parts: list[Part] = []
        by_guesses = 0
        for place, token_id in enumerate([ids] if isinstance(ids, int) else ids):
            if self.stopped is not None:
                break
            self.tokens += 1
            self.accepted += place < guessed
            if text := self._stops.add(self._detokenizer.add(token_id)):
                parts += self._reasoning.add(text)
            if place < guessed:
                by_guesses = len(parts)
        return deltas_of(parts, self.tokens, self.accepted, by_guesses)

    def finish(self) -> list[Delta]:
        """Everything that was withheld: half a character, half a stop, half a tag."""
        rest = "" if self.stopped is not None else self._stops.add(self._detokenizer.finish())
        rest += self._stops.finish()
        return deltas_of(self._reasoning.add(rest) + self._reasoning.finish(), self.tokens, self.accepted)

    def preview(self, ids: list[int]) -> Tentative:
        """What would be added if the answer ended with these ids, which are not read: half stops and half characters
        that are withheld now are in it."""
        trial = self._fork()
        deltas = trial.add(ids) + trial.finish()
        return Tentative(
            text="".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
            reasoning="".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        )

    def _fork(self) -> Self:
        made = copy.copy(self)
        made._detokenizer = self._detokenizer.fork()
        made._stops = self._stops.fork()
        made._reasoning = self._reasoning.fork()
        return made
