"""The ways in which one `generate` call finds the tokens of an answer: one by one, by beams, by guesses.

Imports torch, so only the inference thread imports it, and everything here runs there. Knows nothing of a prompt but
its ids: what was read of them before lies in the cache. Each way ends within one decode step of a cancel.
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList

from streaming.beams import BeamSearch
from streaming.engines.answers import Answer
from streaming.engines.speculation import Draft, Speculation
from streaming.messages import Assisted, Beam, PromptLookup

Others = Callable[[], bool]
Chunk = Callable[[], int]


class Decoder:
    """Makes the tokens of one model's answers. `draft` guesses for those that ask for it."""

    def __init__(self, model: Any, draft: Draft | None = None) -> None:
        self._model = model
        self._draft = draft

    @property
    def drafts(self) -> bool:
        """Whether there is a model that guesses."""
        return self._draft is not None

    def decode(
        self, answer: Answer, cache: DynamicCache | None, *, others: Others, chunk: Chunk, reuse: bool
    ) -> list[int]:
        """Go on from `cache`, which holds less than the prompt. Returns the ids whose beginning it holds after that.

        `others` is called between any two steps. A draft reads the prompt too: as much at a time as `chunk` says, and
        with `reuse` only what it has not read before. An answer that is too long for it is made without.
        """
        match answer.strategy:
            case Beam(num_beams):
                return self._by_beams(answer, cache, others, num_beams)
            case PromptLookup():
                return self._one_by_one(answer, cache, others, custom_generate=Speculation(answer.propose))
            case Assisted() if self._draft is not None and self._draft.fits(len(answer.ids) + answer.max_new_tokens):
                return self._with_draft(answer, cache, others, self._draft, chunk=chunk, reuse=reuse)
        return self._one_by_one(answer, cache, others)

    def _one_by_one(self, answer: Answer, cache: DynamicCache | None, others: Others, **how: Any) -> list[int]:
        tap = _Tap(answer, others)
        self._generate(answer, cache, stopping_criteria=StoppingCriteriaList([tap]), **how)
        return tap.written

    def _by_beams(self, answer: Answer, cache: DynamicCache | None, others: Others, num_beams: int) -> list[int]:
        """Only what no beam can change any more is part of the answer; how the best one goes on is shown meanwhile."""

        def on_step(settled: list[int], leading: list[int]) -> bool:
            if answer.generation.cancelled or answer.read(settled):
                return True
            answer.lean(leading)
            others()
            return False

        search = BeamSearch(on_step)
        if cache is not None:
            cache.batch_repeat_interleave(num_beams)
        self._generate(answer, cache, custom_generate=search)
        if cache is not None:
            cache.batch_select_indices(torch.tensor([0], device=self._model.device))
        return search.written

    def _with_draft(
        self,
        answer: Answer,
        cache: DynamicCache | None,
        others: Others,
        draft: Draft,
        *,
        chunk: Chunk,
        reuse: bool,
    ) -> list[int]:
        draft_cache = draft.read(answer.ids, chunk=chunk, reuse=reuse)
        if answer.generation.cancelled:
            return []
        speculation = Speculation(answer.propose, draft.model, draft_cache)
        written = self._one_by_one(answer, cache, others, custom_generate=speculation, assistant_model=draft.model)
        draft.keep(answer.ids + written, speculation)
        return written

    def _generate(self, answer: Answer, cache: DynamicCache | None, **how: Any) -> None:
        ids = torch.tensor([answer.ids], device=self._model.device)
        # Left out, the mask is guessed from the ids, where one of them may be the padding's.
        mask = torch.ones_like(ids)
        if cache is not None:
            how["cache"] = cache
        self._model.generate(ids, attention_mask=mask, generation_config=answer.config, **how)


class _Tap(StoppingCriteria):
    """Sees the tokens of each decode step in that step, and ends the answer in it. Only the last one is the model's
    own, those before it were guessed.

    A streamer gets the token only after the step has decided to go on: a stop string would cost one step more.
    """

    def __init__(self, answer: Answer, others: Others) -> None:
        self.written: list[int] = []
        self._answer = answer
        self._others = others

    def __call__(self, input_ids: torch.LongTensor, _scores: Any, **_: Any) -> Any:
        ids = input_ids[0, len(self._answer.ids) + len(self.written) :].tolist()
        self.written += ids
        done = self._answer.generation.cancelled or self._answer.read(ids, guessed=len(ids) - 1)
        if not done:
            self._others()
        return torch.full((1,), done, dtype=torch.bool, device=input_ids.device)
