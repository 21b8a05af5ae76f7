"""Attention of a batch whose sequences stand one after the other in it: each looks at its own keys, and at no other's.

The library computes all against all and masks what is not one's own: with eight sequences seven eighths of the work,
and more with each newcomer. Here every sequence is a call of its own; keys and values that several heads share are not
copied for each. Imports torch; everything here runs on the one inference thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "streaming_apart"


@contextmanager
def apart(config: Any) -> Iterator[None]:
    """Within, models of this config compute their attention so. `config` is the text model's own."""
    usual = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = usual


def attend_apart(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **batch: Any,
) -> tuple[torch.Tensor, None]:
    """Query [1, heads, tokens, size], key and value [1, kv_heads, tokens of all with their pasts, size], and a mask
    [1, 1, tokens, tokens of all] -> [1, tokens, heads, size].

    `batch` has `cu_seq_lens_q` and `cu_seq_lens_k`: where each sequence begins, and the last one ends. Whatever a model
    wants beside that is left to the library.
    """
    if attention_mask is None or any(batch.get(name) is not None for name in ("position_bias", "softcap", "s_aux")):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **batch)
    heads, size = query.shape[1], value.shape[-1]
    shared = heads // key.shape[1]  # heads that have keys and values in common
    windowed = getattr(module, "sliding_window", None) is not None
    ends, key_ends = batch["cu_seq_lens_q"].tolist(), batch["cu_seq_lens_k"].tolist()
    attended = query.new_empty(1, query.shape[2], heads, size)
    for start, end, key_start, key_end in zip(ends, ends[1:], key_ends, key_ends[1:], strict=False):
        count = end - start
        asked = query[:, :, start:end]
        mask = attention_mask[:, :, start:end, key_start:key_end] if count > 1 or windowed else None
        if count == 1:  # heads that share keys are rows of one product
            asked = asked.reshape(1, key.shape[1], shared, query.shape[-1])
        found = scaled_dot_product_attention(
            asked,
            key[:, :, key_start:key_end],
            value[:, :, key_start:key_end],
            attn_mask=mask,
            scale=scaling,
            enable_gqa=count > 1 and shared > 1,
        )
        attended[:, start:end] = found.reshape(1, heads, count, size).transpose(1, 2)
    return attended, None


AttentionInterface.register(NAME, attend_apart)
AttentionMaskInterface.register(NAME, sdpa_mask)
