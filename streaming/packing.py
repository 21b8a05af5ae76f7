"""Weights in the layout that oneDNN multiplies by, made once when a model is loaded on a CPU.

torch's own product of a few rows, which is what decoding is, runs on one core on many processors, and lays the weights
out again each time. The op used here is the one that torch.compile's freezing uses; tests/test_packing.py guards it.
Imports torch, so only the thread that loads imports it. A packed model cannot be trained, moved or saved.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from streaming import layers

TOLERANCE, COARSE_TOLERANCE = 0.001, 0.1  # of the logits, in 32 bits and in fewer


class PackedLinear(nn.Module):
    """A linear layer of packed weights, [out_features, in_features]: the same sums, in another order."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        count = rows.numel() // self.in_features
        surplus = few_counts(count) - count
        if not surplus:
            return self._multiply(rows)
        filled = nn.functional.pad(rows.reshape(count, self.in_features), (0, 0, 0, surplus))
        return self._multiply(filled)[:count].reshape(*rows.shape[:-1], self.out_features)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product


def few_counts(rows: int) -> int:
    """The least number of rows, of the few that are computed, with room for so many.

    The library keeps a compiled product, with its buffers, of every number of rows that it ever saw: without this, each
    length of a prompt would cost about a megabyte for good. A step of one answer, or of a small batch, stays as it is;
    a chunk of a prompt with the next tokens of a batch, 128 rows and some, is filled up by a few.
    """
    step = 1 if rows <= 16 else 8 if rows <= 192 else 32
    return -(-rows // step) * step


def available(dtype: torch.dtype) -> bool:
    """Whether packing pays on this processor: half precision has to be emulated on most."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(model: nn.Module) -> int:
    """Pack the large linear layers of a language model in place, one after the other; says how many.

    Raises layers.Unfit if the model is not the same afterwards: it is of no use then.
    """
    found = layers.all_large(model)
    if not found:
        return 0
    within = TOLERANCE if found[0].weight.dtype == torch.float32 else COARSE_TOLERANCE
    del found  # it would keep the weights until all are packed
    return layers.checked(model, partial(layers.exchange, model, _packed), within=within, so="packed")


def copied(model: nn.Module) -> int:
    """How many weights there will be twice: those of a head that are the embedding's too."""
    embedded = {id(child.weight) for child in model.modules() if isinstance(child, nn.Embedding)}
    return sum(linear.weight.numel() for linear in layers.all_large(model) if id(linear.weight) in embedded)


def _packed(linears: Sequence[nn.Linear]) -> PackedLinear:
    weights = [linear.weight.detach() for linear in linears]
    return PackedLinear(weights[0] if len(weights) == 1 else torch.cat(weights), layers.joined_bias(linears))
