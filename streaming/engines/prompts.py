"""Reads prompts into caches, in chunks, and keeps what was read for the next turn of a conversation.

Imports torch, so only the inference thread imports it, and everything here runs there. Knows no answer: whoever has a
prompt read says when it is to stop, and how large the next chunk may be.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from streaming.engines.prefixes import PrefixCaches


class PromptReader:
    """The prompts of one model. What it keeps takes at most `cache_bytes`."""

    def __init__(self, model: Any, *, cache_bytes: int = 0) -> None:
        self._model = model
        layers = {type(layer) for layer in self._new_cache().layers}
        self.in_chunks = _takes_chunks(model, layers)
        # What has left a sliding window cannot be brought back when a conversation takes another turn.
        self._kept = PrefixCaches(cache_bytes if self.in_chunks and layers == {DynamicLayer} else 0)

    def open(
        self, ids: Sequence[int], *, reuse: bool = True, recording: bool = False
    ) -> tuple[DynamicCache | None, int]:
        """A cache of the longest beginning of a prompt that is known, and its length: always less than the prompt's.

        None for a model that reads a prompt in one go, into a cache of its own. Without `reuse` nothing is known. With
        `recording` its last tokens can be taken back, where they might have left a sliding window.
        """
        cache, known = self._kept.take(ids[:-1]) if reuse else (None, 0)
        if cache is None and self.in_chunks:
            cache = self._new_cache()
            if recording:
                cache.activate_past_recording()  # type: ignore[no-untyped-call]
        return cache, known

    def read(
        self,
        ids: Sequence[int],
        cache: DynamicCache,
        done: int,
        *,
        chunk: Callable[[], int],
        told: Callable[[int], None],
    ) -> None:
        """Read on from `done`, a chunk at a time, and leave the last one, at least a token, to `generate`.

        A cache as long as the prompt would give wrong text, without an error. `chunk` says how large the next may be, 0
        to stop; `told` is how much has been read after each.
        """
        tensor = torch.tensor([ids], device=self._model.device)
        while 0 < (size := chunk()) < len(ids) - 1 - done:
            with torch.inference_mode():
                self._model(input_ids=tensor[:, done : done + size], cache=cache, use_cache=True, logits_to_keep=1)
            done += size
            told(done)

    def keep(self, ids: Sequence[int], cache: DynamicCache) -> None:
        """Keep `cache`, which holds a beginning of `ids`."""
        self._kept.put(ids, cache)

    def _new_cache(self) -> DynamicCache:
        return DynamicCache(config=self._model.config.get_text_config(decoder=True))


def _takes_chunks(model: Any, layers: set[type]) -> bool:
    """Only attention can be continued by several tokens at once; recurrent layers take all or one."""
    parameters = inspect.signature(model.forward).parameters
    return (
        {"cache", "logits_to_keep"} <= parameters.keys()
        and model._supports_default_dynamic_cache()
        and layers <= {DynamicLayer, DynamicSlidingWindowLayer}
    )
