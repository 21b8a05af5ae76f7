"""The lane of many answers at once: each step makes the next token of all of them, by one forward pass.

Everything here runs on the one inference thread, which imports it. A cancel is effective within one step, and so is a
newcomer. An answer is let in when the cache can hold it and all others at their full length, so none is ever paused.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from transformers import GenerationConfig

from streaming.engines.answers import Answer
from streaming.engines.generate import CHUNK_TOKENS, SMALL_CHUNK_TOKENS, explained, rounds_finely
from streaming.engines.paged import PAGE_TOKENS, PagedBatch, Step, disagreement, page_bytes, pages_for
from streaming.engines.sampler import Draw, beyond, pick_all
from streaming.models import Model

MAX_ROWS = 32  # answers at once; beyond, each becomes slower than people read
ENOUGH_TOKENS = 65_536  # in the cache, unless the model's context is longer: 2,000 for each of 32
_TOLERANCE, _COARSE_TOLERANCE = 0.001, 0.1

LOG = logging.getLogger(__name__)


class NotBatchable(Exception):
    """Why a model cannot be answered in batches, in words that go on after "because"."""


@dataclass(slots=True)
class _Row:
    answer: Answer
    draw: Draw
    pages: int
    ended: Callable[[], None]
    cached_tokens: int | None = None  # unknown before its first step
    writing: bool = False


class BatchLane:
    """Answers with one model, up to MAX_ROWS at once, with caches of `cache_bytes` in all.

    Raises NotBatchable for a model that the library's continuous batching cannot run, or not rightly.
    """

    def __init__(self, model: Model, *, cache_bytes: int) -> None:
        loaded: Any = model.model
        pages = min(cache_bytes // _page_bytes(loaded), pages_for(max(model.context_tokens, ENOUGH_TOKENS)))
        self._repeatable = rounds_finely(model)
        self._rows: dict[str, _Row] = {}
        self._reserved = 0
        self._names = (f"answer-{number}" for number in count())
        self._paged = _open(loaded, pages, _TOLERANCE if self._repeatable else _COARSE_TOLERANCE)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def room_tokens(self) -> int:
        return self._paged.pages * PAGE_TOKENS

    def pages(self, prompt_tokens: int, config: GenerationConfig, seed: int | None) -> int:
        """What an answer takes at its full length; 0 for one that cannot be here at all."""
        settings: Any = config
        pages = pages_for(prompt_tokens + settings.max_new_tokens - 1)
        if unknown := beyond(config):
            reason = f"of its {', '.join(unknown)}"
        elif seed is not None and not self._repeatable:
            reason = "in this precision its seed holds only alone"
        elif pages > self._paged.pages:
            reason = f"it takes {pages} of {self._paged.pages} pages"
        else:
            return pages
        LOG.info("A request is answered outside the batch, because %s.", reason)
        return 0

    def fits(self, pages: int) -> bool:
        return len(self._rows) < MAX_ROWS and self._reserved + pages <= self._paged.pages

    def add(self, answer: Answer, pages: int, ended: Callable[[], None]) -> None:
        """Let an answer in that fits. `ended` is called when its place is free again, before its last event."""
        row = _Row(answer, Draw(answer.config, answer.seed), pages, ended)
        self._paged.forget(self._paged.pages - self._reserved - pages, answer.ids)
        name = next(self._names)
        self._paged.add(name, answer.ids)
        self._rows[name] = row
        self._reserved += pages
        answer.prefilled(0)

    def step(self, *, alone: bool) -> bool:
        """The next token of everybody. `alone`: nobody waits elsewhere. Says whether there was anything to do.

        Never raises for what the model raises: the answers that are here end with it, and the next ones work.
        """
        for name in [name for name, row in self._rows.items() if row.answer.generation.cancelled]:
            self._carefully(name, partial(self._end, name))
        if not self._rows:
            return False
        writing = sum(row.writing for row in self._rows.values())
        chunk = CHUNK_TOKENS if alone and not writing else SMALL_CHUNK_TOKENS
        try:
            steps = self._paged.step(writing + chunk, self._choose)
        except BaseException as error:  # SystemExit too: a model's code may not end everybody's thread
            self._fail(error)
            return True
        for step in steps:
            self._carefully(step.name, partial(self._advance, step))
        return True

    def _carefully(self, name: str, act: Callable[[], None]) -> None:
        """What goes wrong with one text is no concern of the others."""
        try:
            act()
        except Exception as error:
            self._paged.end(name)
            self._end_badly(name, error)

    def _choose(self, names: list[str], logits: torch.Tensor) -> list[int]:
        return pick_all([self._rows[name].draw for name in names], logits)

    def _advance(self, step: Step) -> None:
        row = self._rows[step.name]
        if row.cached_tokens is None:
            row.cached_tokens = step.position - step.computed
            if row.cached_tokens:
                row.answer.prefilled(row.cached_tokens)
        if step.token is None:
            row.answer.prefilled(step.position)
        else:
            row.writing = True
            if row.answer.read([step.token]):
                self._end(step.name)

    def _end(self, name: str) -> None:
        self._rows[name].answer.flush()
        self._paged.end(name)
        row = self._leave(name)
        row.answer.finish(row.cached_tokens or 0)

    def _fail(self, error: BaseException) -> None:
        LOG.error("A step of the batch failed: %d answers end with it.", len(self._rows), exc_info=error)
        for name in list(self._rows):
            self._rows[name].answer.flush()
            self._end_badly(name, error)
        self._paged.clear()

    def _end_badly(self, name: str, error: BaseException) -> None:
        failure = explained(error)
        failure.__cause__ = error
        self._leave(name).answer.generation.fail(failure)

    def _leave(self, name: str) -> _Row:
        row = self._rows.pop(name)
        self._reserved -= row.pages
        row.ended()
        return row


def _page_bytes(model: Any) -> int:
    try:
        return page_bytes(model, CHUNK_TOKENS + MAX_ROWS)
    except AttributeError as error:  # a recurrent model's config speaks of no heads
        raise NotBatchable("it has no keys and values to be kept in pages") from error


def _open(model: Any, pages: int, tolerance: float) -> PagedBatch:
    """Build the batch, and see that it computes what the model computes alone."""
    if model.config._attn_implementation != "sdpa":
        raise NotBatchable(f"its attention is computed by {model.config._attn_implementation!r}, not by sdpa")
    if pages < 1:
        raise NotBatchable("there is no memory for its cache")
    try:
        paged = PagedBatch(model, pages=pages, max_tokens=CHUNK_TOKENS + MAX_ROWS, max_rows=MAX_ROWS)
        size = min(48, PAGE_TOKENS * pages - 4)
        error = disagreement(paged, model, [7 * place % 101 for place in range(size)])
    except Exception as raised:
        raise NotBatchable(f"the library cannot batch it: {raised}") from raised
    if not error < tolerance:
        raise NotBatchable(f"in batches it computes something else than alone (by {error:.1%})")
    return paged
