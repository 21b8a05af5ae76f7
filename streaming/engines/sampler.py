"""Draws the next token of each row of a batch, every row by its own settings and its own chance.

Imports torch, so only the inference thread imports it. Knows no model and no request. The candidates are the few best
first, and only then weighed: sorting a whole vocabulary for each row costs a quarter of a batch's speed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

FIRST_LOOK = 1024  # candidates among which the best nearly always lie that `top_p` asks for
# What a request may set, or a model's makers, and a Draw takes care of or a batch has no need of.
_KNOWN = {
    *("do_sample", "temperature", "top_k", "top_p", "min_p"),
    *("max_new_tokens", "max_length", "eos_token_id", "pad_token_id", "bos_token_id"),
    *("num_return_sequences", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("transformers_version", "_from_model_config"),
}
_NEUTRAL = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "typical_p": 1.0,
    "diversity_penalty": 0.0,
}


def beyond(config: GenerationConfig) -> list[str]:
    """The settings of a request that no Draw can express."""
    said: dict[str, Any] = config.to_diff_dict()
    return [name for name, value in said.items() if name not in _KNOWN and value and value != _NEUTRAL.get(name)]


class Draw:
    """One request's way to choose. With a seed, the same logits give the same tokens, whatever else is drawn."""

    def __init__(self, config: GenerationConfig, seed: int | None = None) -> None:
        settings: Any = config
        self.greedy = not settings.do_sample
        self._temperature = float(settings.temperature or 1.0)
        self._top_k = int(settings.top_k or 0)
        self._top_p = float(1.0 if settings.top_p is None else settings.top_p)
        self._min_p = float(settings.min_p or 0.0)
        self._chance = torch.Generator()  # on the CPU wherever the model is: a seed means the same everywhere
        if seed is None:
            self._chance.seed()
        else:
            self._chance.manual_seed(seed)

    def pick(self, logits: torch.Tensor) -> int:
        """The next token for one row of logits, shape [vocabulary], in 32 bits."""
        if self.greedy:
            return int(logits.argmax())
        ids, weights = self.candidates(logits)
        if not bool(weights[0].isfinite()):
            raise ValueError("the model gave no number for any token: its logits are not finite")
        bounds = weights.cpu().double().cumsum(0)
        point = torch.rand((), generator=self._chance, dtype=torch.float64).item() * bounds[-1].item()
        place = int(torch.searchsorted(bounds, point, right=True))
        return int(ids[min(place, len(ids) - 1)])

    def candidates(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids that may be drawn, and their weights; the most probable come first where some are left out.

        Temperature, then top-k, top-p (nucleus sampling, Holtzman et al. 2019) and min-p (Nguyen et al. 2024), each of
        what the one before has left, as in transformers.
        """
        logits = logits / self._temperature
        width = len(logits)
        if self._top_k:
            best, ids = torch.topk(logits, min(self._top_k, width))
            weights = best.softmax(0)
        elif self._top_p == 1 and not self._min_p:
            return torch.arange(width, device=logits.device), logits.softmax(0)
        else:
            best, ids = torch.topk(logits, min(FIRST_LOOK, width))
            weights = (best - torch.logsumexp(logits, 0)).exp()
            if self._count(weights) == len(ids) < width:
                best, ids = logits.sort(descending=True)
                weights = best.softmax(0)
        kept = self._count(weights)
        return ids[:kept], weights[:kept]

    def _count(self, weights: torch.Tensor) -> int:
        """How many of the sorted candidates are left, at least one."""
        kept = len(weights)
        if self._top_p < 1:
            kept = min(kept, int((weights.cumsum(0) < self._top_p).sum()) + 1)
        if self._min_p:
            kept = min(kept, int((weights >= self._min_p * weights[0]).sum()))
        return max(1, kept)


def pick_all(draws: Sequence[Draw], logits: torch.Tensor) -> list[int]:
    """The next token of each row of logits, shape [rows, vocabulary]: one pass for all that are greedy."""
    if all(draw.greedy for draw in draws):
        tokens: list[int] = logits.argmax(-1).tolist()
        return tokens
    return [draw.pick(row) for draw, row in zip(draws, logits, strict=True)]
