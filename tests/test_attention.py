"""Attention sequence by sequence gives what the library gives for all at once, where the others are masked."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from streaming.engines.attention import NAME, apart, attend_apart
from tests.tiny import tiny_model
from tests.tokenizers import byte_level_bpe

SIZE = 16


def batch_of(lengths: list[tuple[int, int]], heads: int, kv_heads: int, window: int | None = None) -> dict[str, Any]:
    """What a layer hands over for sequences of (new tokens, tokens known before)."""
    torch.manual_seed(0)
    tokens = sum(new for new, _ in lengths)
    keys = sum(new + known for new, known in lengths)
    mask = torch.full((1, 1, tokens, keys), torch.finfo(torch.float32).min)
    ends, key_ends = [0], [0]
    for new, known in lengths:
        for place in range(new):
            last = key_ends[-1] + known + place
            first = key_ends[-1] if window is None else max(key_ends[-1], last - window + 1)
            mask[0, 0, ends[-1] + place, first : last + 1] = 0
        ends.append(ends[-1] + new)
        key_ends.append(key_ends[-1] + new + known)
    return {
        "module": SimpleNamespace(num_key_value_groups=heads // kv_heads, sliding_window=window, is_causal=True),
        "query": torch.randn(1, heads, tokens, SIZE),
        "key": torch.randn(1, kv_heads, keys, SIZE),
        "value": torch.randn(1, kv_heads, keys, SIZE),
        "attention_mask": mask,
        "scaling": 0.3,
        "cu_seq_lens_q": torch.tensor(ends, dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor(key_ends, dtype=torch.int32),
    }


@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), min_size=1, max_size=5),
    heads=st.sampled_from([(4, 4), (6, 2), (9, 3), (4, 1)]),
    window=st.sampled_from([None, 3, 30]),
)
def test_it_is_what_the_library_computes(
    lengths: list[tuple[int, int]], heads: tuple[int, int], window: int | None
) -> None:
    batch = batch_of(lengths, *heads, window)
    expected, _ = sdpa_attention_forward(**batch)
    found, weights = attend_apart(**batch)
    assert weights is None
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_neighbour_changes_no_bit_of_an_answer() -> None:
    """Masked, a neighbour's keys are in the same sums; apart, in none: a seed means the same beside others."""
    alone = batch_of([(1, 30)], 9, 3)
    crowd = batch_of([(1, 30), (4, 12), (1, 7)], 9, 3)
    crowd["query"][:, :, :1], crowd["key"][:, :, :31], crowd["value"][:, :, :31] = (
        alone[name] for name in ("query", "key", "value")
    )
    assert torch.equal(attend_apart(**alone)[0], attend_apart(**crowd)[0][:, :1])


@pytest.mark.parametrize("wish", ["softcap", "s_aux", "position_bias"])
def test_what_a_model_wants_beside_is_left_to_the_library(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def library(*_: Any, **batch: Any) -> tuple[str, None]:
        asked.append(batch)
        return "the library's", None

    monkeypatch.setattr("streaming.engines.attention.sdpa_attention_forward", library)
    batch = batch_of([(1, 3)], 4, 2)
    assert attend_apart(**batch, **{wish: torch.ones(1)})[0] == "the library's"
    assert asked[0][wish] is not None


def test_a_model_is_as_it_was_afterwards_even_after_an_error() -> None:
    config = tiny_model(byte_level_bpe()).config
    seen = []
    with suppress(ZeroDivisionError), apart(config):
        seen.append(config._attn_implementation)
        raise ZeroDivisionError
    assert seen == [NAME]
    assert config._attn_implementation == "sdpa"
