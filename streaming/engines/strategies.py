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
from streaming.messages import Beam

Others = Callable[[], bool]


def decode(model: Any, answer: Answer, cache: DynamicCache | None, others: Others) -> list[int]:
    """Make an answer's tokens, going on from `cache`, which holds less than the prompt.

    `others` is called between any two steps. Returns the ids whose beginning `cache` holds after those of the prompt.
    """
    if isinstance(answer.strategy, Beam):
        return _by_beams(model, answer, cache, others, answer.strategy.num_beams)
    tap = _Tap(answer, others)
    _generate(model, answer, cache, stopping_criteria=StoppingCriteriaList([tap]))
    return tap.written


def _generate(model: Any, answer: Answer, cache: DynamicCache | None, **how: Any) -> None:
    ids = torch.tensor([answer.ids], device=model.device)
    # Left out, the mask is guessed from the ids, where one of them may be the padding's.
    mask = torch.ones_like(ids)
    if cache is not None:
        how["cache"] = cache
    model.generate(ids, attention_mask=mask, generation_config=answer.config, **how)


class _Tap(StoppingCriteria):
    """Sees each token in the decode step that made it, and ends the answer in that same step.

    A streamer gets the token only after the step has decided to go on: a stop string would cost one step more.
    """

    def __init__(self, answer: Answer, others: Others) -> None:
        self.written: list[int] = []
        self._answer = answer
        self._others = others

    def __call__(self, input_ids: torch.LongTensor, _scores: Any, **_: Any) -> Any:
        ids = input_ids[0, len(self._answer.ids) + len(self.written) :].tolist()
        self.written += ids
        done = self._answer.generation.cancelled or self._answer.read(ids)
        if not done:
            self._others()
        return torch.full((1,), done, dtype=torch.bool, device=input_ids.device)


def _by_beams(model: Any, answer: Answer, cache: DynamicCache | None, others: Others, num_beams: int) -> list[int]:
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
    _generate(model, answer, cache, custom_generate=search)
    if cache is not None:
        cache.batch_select_indices(torch.tensor([0], device=model.device))
    return search.written
