"""What the model has computed of earlier conversations, kept so that their next turn computes only what is new.

Imports transformers, so only the inference thread imports it, and everything here runs there. Knows no model: only
caches whose layers all keep every token (DynamicLayer) may be put in, since they must be cut to any length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from transformers import DynamicCache


@dataclass(slots=True)
class _Kept:
    ids: list[int]  # as many as the cache holds
    cache: DynamicCache
    size_bytes: int


class PrefixCaches:
    """Caches by the ids that they were computed from, at most `max_bytes` of them: the least recently used ones go."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: list[_Kept] = []  # the most recently used last

    @property
    def size_bytes(self) -> int:
        return sum(kept.size_bytes for kept in self._kept)

    def take(self, ids: Sequence[int]) -> tuple[DynamicCache | None, int]:
        """A cache of the longest known beginning of `ids`, no longer than that, and its length in tokens.

        The caller owns it. What it was taken from stays where most of it belongs to another conversation, one that
        only begins in the same way.
        """
        shared, best = max(
            ((_common(kept.ids, ids), kept) for kept in self._kept), key=lambda found: found[0], default=(0, None)
        )
        if best is None or not shared:
            return None, 0
        self._kept.remove(best)
        if 2 * shared >= len(best.ids):
            return _cut(best.cache, len(best.ids) - shared), shared
        self._kept.append(best)
        return _copy(best.cache, shared), shared

    def put(self, ids: Sequence[int], cache: DynamicCache) -> None:
        """Keep `cache`, which holds a beginning of `ids`."""
        length = cache.get_seq_length()
        size_bytes = sum(tensor.nbytes for layer in cache.layers for tensor in _tensors(layer))
        if not length or size_bytes > self._max_bytes:
            return
        self._kept.append(_Kept(list(ids[:length]), cache, size_bytes))
        while self.size_bytes > self._max_bytes:
            del self._kept[0]


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids two sequences begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _tensors(layer: Any) -> list[Any]:
    return [layer.keys, layer.values] if layer.is_initialized else []


def _cut(cache: DynamicCache, surplus: int) -> DynamicCache:
    cache.crop(-surplus)
    return cache


def _copy(cache: DynamicCache, length: int) -> DynamicCache:
    """A new cache of the first `length` tokens."""
    made = DynamicCache()
    for index, layer in enumerate(cache.layers):
        if tensors := _tensors(layer):  # layers that share their neighbour's have none
            keys, values = (tensor[..., :length, :] for tensor in tensors)
            made.update(keys, values, index)
    return made
