"""The lane of one answer at a time, by transformers' `model.generate`: the prompt in chunks, then its tokens.

Imports torch, so only the inference thread imports it, and everything here runs there. Knows neither the queue nor the
chat template. A cancel is effective within one decode step, or one chunk of the prompt.
"""

import inspect
import traceback
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from streaming.engines.answers import Answer, Answers
from streaming.engines.prefixes import PrefixCaches
from streaming.engines.strategies import Others, decode
from streaming.errors import GenerationFailed
from streaming.messages import Sampling
from streaming.models import Model

CHUNK_TOKENS = 512  # 256 would halve what a cancel waits for in the prompt, and make the prompt a tenth slower
SMALL_CHUNK_TOKENS = 128  # while others wait for their next token
WARM_UP_TOKENS = 2


def nobody() -> bool:
    """Nobody else is being answered."""
    return False


class GenerateLane:
    """Answers with one model, one request at a time. `cache_bytes` bounds what it keeps of earlier conversations."""

    def __init__(self, model: Model, answers: Answers, *, cache_bytes: int = 0) -> None:
        self._model: Any = model.model  # typed as a module, whose attributes may all be tensors
        self._answers = answers
        layers = _cache_layers(self._model)
        self._chunks = _takes_chunks(self._model, layers)
        # What has left a sliding window cannot be brought back when a conversation takes another turn.
        self._kept = PrefixCaches(cache_bytes if self._chunks and layers == {DynamicLayer} else 0)

    def warm_up(self) -> None:
        """The first answer of a process pays for what it sets up: let it be this one."""
        ids = torch.zeros((1, 8), dtype=torch.long, device=self._model.device)
        config = self._answers.config(Sampling(), WARM_UP_TOKENS)
        self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)

    def answer(self, answer: Answer, *, others: Others = nobody) -> None:
        """Emit an answer from Prefill to Finished. What is known of the prompt is not computed again.

        `others` is called between any two tokens or chunks: it makes one step for whoever else is being answered, and
        says whether there is anybody. Whatever the model raises is raised, after everything that it had written was
        emitted.
        """
        cached_tokens = 0
        try:
            cached_tokens = self._generate(answer, others)
        finally:
            answer.flush()
        answer.finish(cached_tokens)

    def _generate(self, answer: Answer, others: Others) -> int:
        answer.prefilled(0)
        exact = answer.seed is not None and not rounds_finely(self._model.dtype)
        cache, cached_tokens = (None, 0) if exact else self._kept.take(answer.ids[:-1])
        if cache is None and self._chunks:
            cache = DynamicCache(config=_text_config(self._model))
        if cached_tokens:
            answer.prefilled(cached_tokens)
        if cache is not None:
            ids = torch.tensor([answer.ids], device=self._model.device)
            self._prefill(answer, ids, cache, cached_tokens, others, exact)
        written: list[int] = []
        if not answer.generation.cancelled:
            # An unseeded request gets fresh chance: without, a seeded one would make all that follow it repeatable.
            if answer.seed is None:
                torch.seed()
            else:
                torch.manual_seed(answer.seed)
            written = decode(self._model, answer, cache, others)
        if cache is not None:
            self._kept.put(answer.ids + written, cache)
        return cached_tokens

    def _prefill(
        self, answer: Answer, ids: torch.Tensor, cache: DynamicCache, done: int, others: Others, exact: bool
    ) -> None:
        """Read a long prompt in chunks, and leave the rest, at least its last token, to `generate`.

        A cache as long as the prompt would give wrong text, without an error.
        """
        while not answer.generation.cancelled:
            chunk = SMALL_CHUNK_TOKENS if others() and not exact else CHUNK_TOKENS
            if ids.shape[1] - 1 - done <= chunk:
                return
            with torch.inference_mode():
                self._model(input_ids=ids[:, done : done + chunk], cache=cache, use_cache=True, logits_to_keep=1)
            done += chunk
            answer.prefilled(done)


def rounds_finely(dtype: torch.dtype) -> bool:
    """Whether a seed gives the same text although sums are rounded otherwise, in other chunks or beside others."""
    return dtype in (torch.float32, torch.float64)


def _cache_layers(model: Any) -> set[type]:
    return {type(layer) for layer in DynamicCache(config=_text_config(model)).layers}


def _text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def _takes_chunks(model: Any, layers: set[type]) -> bool:
    """Only attention can be continued by several tokens at once; recurrent layers take all or one."""
    parameters = inspect.signature(model.forward).parameters
    return (
        {"cache", "logits_to_keep"} <= parameters.keys()
        and model._supports_default_dynamic_cache()
        and layers <= {DynamicLayer, DynamicSlidingWindowLayer}
    )


def explained(error: BaseException) -> GenerationFailed:
    """What the model raised, in words for a person."""
    # The error may live as long as its conversation, and its frames hold the cache of the answer.
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return GenerationFailed(
            "The memory ran out in the middle of this answer. Start a new conversation or ask for a shorter answer; "
            "if it happens again, choose a smaller model."
        )
    return GenerationFailed(
        f"The model failed in the middle of this answer: {str(error) or type(error).__name__}. You can try again."
    )
