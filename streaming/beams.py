"""Beam search, watched while it runs: which ids are settled, and what leads beyond them.

A token is settled when every hypothesis that can still win has it, running or finished: it stays whatever follows.
Knows no text. Works in the thread of its `generate` call, which takes a BeamSearch as its `custom_generate`; the loop
itself is the library's, so that the answer is the one that it gives without us.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from streaming.standin import StandIn

OnStep = Callable[[list[int], list[int]], bool]


class BeamSearch:
    """One beam search over one prompt. `on_step` gets the ids that a step has settled, and those of the leading
    hypothesis beyond all that is settled; its True ends the search at once.

    In the last step all of the answer is settled and nothing leads. `written` are then the ids that the first row of
    the cache has been computed from, and the one that comes next. Raises ValueError for a batch, for less than two
    beams, and for beams in groups or under constraints, before anything is computed.
    """

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self.written: list[int] = []

    def __call__(self, model: Any, input_ids: torch.Tensor, **settings: Any) -> Any:
        _check(input_ids, settings["generation_config"])
        search = _Watched(model, self._on_step)
        try:
            return type(model)._beam_search(search, input_ids, **settings)
        finally:
            self.written = search.written


def _check(input_ids: torch.Tensor, config: Any) -> None:
    beams = config.num_beams or 1
    if beams < 2:
        raise ValueError("Beam search needs num_beams of at least 2.")
    if len(input_ids) != beams:
        raise ValueError("Only one prompt can be streamed: generate a batch one by one.")
    if (config.num_beam_groups or 1) > 1 or config.diversity_penalty:
        raise ValueError("Beams in groups (num_beam_groups, diversity_penalty) cannot be streamed.")
    if config.constraints is not None or config.force_words_ids is not None:
        raise ValueError("Beams under constraints (constraints, force_words_ids) cannot be streamed.")


class _Finished(NamedTuple):
    """A hypothesis that has ended: its ids beyond what is settled, and its score by its length."""

    ids: list[int]
    score: float


class _Watched(StandIn):
    """Runs the library's loop, and looks at what three of its steps come to.

    Of the finished hypotheses only the best can win, since a score never changes, or another with just its score.
    """

    def __init__(self, model: Any, on_step: OnStep) -> None:
        super().__init__(model)
        self._on_step = on_step
        self._settled = 0
        self._rows: torch.Tensor | None = None  # running hypotheses with their prompt, the leading one first
        self._running_scores: torch.Tensor | None = None
        self._place = slice(0)  # of an answer within a row
        self._best: list[_Finished] = []  # what would win if the search ended here; a search may end without any
        self._leading_score = 0.0

    @property
    def written(self) -> list[int]:
        return [] if self._rows is None else self._rows[0, self._place].tolist()

    def _get_running_beams_for_next_iteration(self, *args: Any, **kwargs: Any) -> Any:
        made = self.model_behind._get_running_beams_for_next_iteration(*args, **kwargs)
        self._rows, self._running_scores = made[0][0], made[1][0]
        return made

    def _update_finished_beams(self, *args: Any, **kwargs: Any) -> Any:
        made = self.model_behind._update_finished_beams(*args, **kwargs)
        sequences, scores, indices, finished = (tensor[0] for tensor in made)
        start, end = kwargs["decoder_prompt_len"], kwargs["cur_len"] + 1
        self._place = slice(start, end)
        best = finished & (scores == scores[0])
        lengths = (indices[best] >= 0).sum(-1).tolist()
        self._best = [
            _Finished(ids[: length - self._settled], scores[0].item())
            for ids, length in zip(sequences[best, start + self._settled : end].tolist(), lengths, strict=True)
        ]
        assert self._running_scores is not None  # the loop has asked for the running beams before
        self._leading_score = self._running_scores[0].item() / (end - start) ** kwargs["length_penalty"]
        return made

    def _beam_search_has_unfinished_sequences(self, *args: Any, **kwargs: Any) -> Any:
        unfinished = self.model_behind._beam_search_has_unfinished_sequences(*args, **kwargs)
        running = self._running()
        if not unfinished:
            self._on_step(self._best[0].ids if self._best else running[0], [])
        elif self._settle(running):
            return torch.zeros_like(unfinished)
        return unfinished

    def _running(self) -> list[list[int]]:
        assert self._rows is not None
        start, end = self._place.start + self._settled, self._place.stop
        rows: list[list[int]] = self._rows[:, start:end].tolist()
        return rows

    def _settle(self, running: list[list[int]]) -> bool:
        leading = running[0]
        if self._best and self._best[0].score >= self._leading_score:
            leading = self._best[0].ids
        settled = _agreed([*running, *(hypothesis.ids for hypothesis in self._best)])
        self._settled += len(settled)
        return self._on_step(settled, leading[len(settled) :])


def _agreed(hypotheses: list[list[int]]) -> list[int]:
    """The ids that all begin with."""
    columns = zip(*hypotheses, strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
