"""Weights in the layout that oneDNN multiplies by, made once when a model is loaded on a CPU.

torch's own product of a few rows, which is what decoding is, runs on one core on many processors, and lays the weights
out again each time. The op used here is the one that torch.compile's freezing uses; tests/test_packing.py guards it.
Imports torch, so only the thread that loads imports it. A packed model cannot be trained, moved or saved.
"""

import torch
from torch import nn

FEWEST_WEIGHTS = 100_000  # below, a product costs less than calling the op


class PackedLinear(nn.Module):
    """A linear layer of packed weights, [out_features, in_features]: the same sums, in another order."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach(), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product


def available(dtype: torch.dtype) -> bool:
    """Whether packing pays on this processor: half precision has to be emulated on most."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(model: nn.Module) -> int:
    """Pack the large linear layers of a model in place, one after the other; says how many."""
    large = _large(model)
    for parent, name, linear in large:
        setattr(parent, name, PackedLinear(linear))
    return len(large)


def copied(model: nn.Module) -> int:
    """How many weights there will be twice: those of a head that are the embedding's too."""
    embedded = {id(child.weight) for child in model.modules() if isinstance(child, nn.Embedding)}
    return sum(linear.weight.numel() for _, _, linear in _large(model) if id(linear.weight) in embedded)


def _large(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Each with its parent and its name there. Layers of a kind of their own may read their weights themselves."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= FEWEST_WEIGHTS
    ]
