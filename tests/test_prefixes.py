"""A conversation's next turn computes only what is new, and says what it would have said from scratch."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from streaming.engines.prefixes import PrefixCaches
from tests.tiny import tiny_model
from tests.tokenizers import byte_level_bpe

MODEL: Any = tiny_model(byte_level_bpe())
PLENTY = 10**9
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4  # keys and values, 2 layers, 2 heads of 8 numbers, 4 bytes each


def computed(ids: list[int]) -> DynamicCache:
    cache = DynamicCache(config=MODEL.config)
    with torch.inference_mode():
        MODEL(input_ids=torch.tensor([ids]), cache=cache, use_cache=True)
    return cache


def same(cache: DynamicCache | None, ids: list[int]) -> bool:
    """Whether a cache holds what computing these ids from scratch gives."""
    assert cache is not None
    pairs = zip(cache.layers, computed(ids).layers, strict=True)
    return all(
        torch.allclose(ours.keys, fresh.keys, atol=1e-5) and torch.allclose(ours.values, fresh.values, atol=1e-5)
        for ours, fresh in pairs
    )


def test_the_longest_known_beginning_is_taken() -> None:
    caches = PrefixCaches(PLENTY)
    for ids in ([1, 2, 3, 4], [1, 2, 9], [5]):
        caches.put(ids, computed(ids))
    cache, length = caches.take([1, 2, 3, 4, 5, 6])
    assert length == 4
    assert same(cache, [1, 2, 3, 4])
    cache, length = caches.take([1, 2, 3, 4, 5, 6])  # the first is in use
    assert length == 2
    assert same(cache, [1, 2])
    assert caches.take([7, 5]) == (None, 0)
    assert caches.take([]) == (None, 0)


def test_never_more_than_was_asked_for() -> None:
    """A cache as long as the prompt gives wrong text, without an error: whoever takes it asks for one token less."""
    caches = PrefixCaches(PLENTY)
    caches.put([1, 2, 3, 4], computed([1, 2, 3, 4]))
    cache, length = caches.take([1, 2, 3])
    assert length == 3
    assert same(cache, [1, 2, 3])


def test_a_cache_holds_less_than_was_written() -> None:
    """The last token of an answer has not been through the model."""
    caches = PrefixCaches(PLENTY)
    caches.put([1, 2, 3, 4], computed([1, 2, 3]))
    assert caches.take([1, 2, 3, 4, 5])[1] == 3


def test_who_only_begins_alike_takes_a_copy() -> None:
    """One system prompt, many conversations: a newcomer must not cut an old conversation's cache down to it."""
    caches = PrefixCaches(PLENTY)
    long = list(range(20))
    caches.put(long, computed(long))
    cache, length = caches.take([0, 1, 2, 3, 50, 51])
    assert length == 4
    assert same(cache, [0, 1, 2, 3])
    assert caches.size_bytes == 20 * TOKEN_BYTES
    cache, length = caches.take([*long, 60])
    assert length == 20
    assert same(cache, long)
    assert caches.size_bytes == 0


def test_the_least_recently_used_go() -> None:
    caches = PrefixCaches(25 * TOKEN_BYTES)
    first, second, third = (list(range(start, start + 10)) for start in (0, 20, 40))
    caches.put(first, computed(first))
    caches.put(second, computed(second))
    cache, _ = caches.take(first)
    assert cache is not None
    caches.put(first, cache)
    caches.put(third, computed(third))
    assert caches.size_bytes == 20 * TOKEN_BYTES
    assert caches.take(second) == (None, 0)
    assert caches.take(first)[1] == caches.take(third)[1] == 10


def test_what_is_too_large_is_not_kept_and_evicts_nothing() -> None:
    caches = PrefixCaches(5 * TOKEN_BYTES)
    caches.put([1, 2], computed([1, 2]))
    caches.put(list(range(10, 20)), computed(list(range(10, 20))))
    assert caches.take([1, 2])[1] == 2
    caches.put([], DynamicCache(config=MODEL.config))
    assert PrefixCaches(0).take([1]) == (None, 0)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=6),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
def test_whatever_is_kept_what_is_taken_is_right(kept: list[list[int]], wanted: list[int]) -> None:
    caches = PrefixCaches(PLENTY)
    for ids in kept:
        caches.put(ids, computed(ids))
    for _ in range(3):
        cache, length = caches.take(wanted)
        assert length <= len(wanted)
        if cache is not None:
            assert same(cache, wanted[:length])
            caches.put(wanted, cache)


def test_a_copy_takes_no_more_memory_than_it_needs() -> None:
    caches = PrefixCaches(PLENTY)
    ids = list(range(20))
    caches.put(ids, computed(ids))
    cache, _ = caches.take([0, 1, 2, 99])
    assert cache is not None
    assert {layer.keys.untyped_storage().nbytes() for layer in cache.layers} == {3 * TOKEN_BYTES // 4}
