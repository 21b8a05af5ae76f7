"""Weights in the layout that oneDNN multiplies by, made once when a model is loaded on a CPU.

torch's own product of a few rows, which is what decoding is, runs on one core on many processors, and lays the weights
out again each time. The op used here is the one that torch.compile's freezing uses; tests/test_packing.py guards it.
Imports torch, so only the thread that loads imports it. A packed model cannot be trained, moved or saved.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

FEWEST_WEIGHTS = 100_000  # below, a product costs less than calling the op
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers that get the same rows, by their names
TOLERANCE, COARSE_TOLERANCE = 0.001, 0.1  # of the logits, in 32 bits and in fewer


class Unpackable(Exception):
    """A model that computes something else with packed weights, or nothing: it reads them in a way of its own."""


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


class Together:
    """Layers that a model gives the same rows one after the other: one product, made for the first, for all of them."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        biases = [linear.bias for linear in linears]
        bias = None if any(bias is None for bias in biases) else torch.cat([bias.detach() for bias in biases])
        self._whole = PackedLinear(torch.cat([linear.weight.detach() for linear in linears]), bias)
        self._sizes = [linear.out_features for linear in linears]
        self._rows: torch.Tensor | None = None
        self._products: list[torch.Tensor] = []

    def part(self, place: int, rows: torch.Tensor) -> torch.Tensor:
        """The product of the layer at `place`. Whatever the order of the calls and their rows are, it is right."""
        if self._rows is not rows:
            self._rows, self._products = rows, list(self._whole(rows).split(self._sizes, dim=-1))
        product = self._products[place]
        if place == len(self._sizes) - 1:
            self._rows, self._products = None, []  # nothing is kept beyond its use
        return product


class PackedPart(nn.Module):
    """One of the layers that are computed together."""

    def __init__(self, together: Together, place: int, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._together, self._place = together, place

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        return self._together.part(self._place, rows)


def available(dtype: torch.dtype) -> bool:
    """Whether packing pays on this processor: half precision has to be emulated on most."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(model: nn.Module) -> int:
    """Pack the large linear layers of a language model in place, one after the other; says how many.

    Raises Unpackable if the model is not the same afterwards: it is of no use then.
    """
    if not any(_large(parent) for parent in model.modules()):
        return 0
    expected = _probe(model)
    packed = sum(_pack_children(parent) for parent in list(model.modules()))
    try:
        error = float((_probe(model) - expected).float().norm() / expected.float().norm())
    except Exception as raised:
        raise Unpackable(f"it fails with packed weights: {raised}") from raised
    if not error < (TOLERANCE if expected.dtype == torch.float32 else COARSE_TOLERANCE):
        raise Unpackable(f"it computes something else with packed weights (by {error:.1%})")
    return packed


def copied(model: nn.Module) -> int:
    """How many weights there will be twice: those of a head that are the embedding's too."""
    embedded = {id(child.weight) for child in model.modules() if isinstance(child, nn.Embedding)}
    layers = [linear for parent in model.modules() for linear in _large(parent).values()]
    return sum(linear.weight.numel() for linear in layers if id(linear.weight) in embedded)


def _probe(model: Any) -> torch.Tensor:
    ids = torch.arange(8) % model.get_input_embeddings().num_embeddings
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids[None], use_cache=False).logits
    return logits


def _pack_children(parent: nn.Module) -> int:
    layers = _large(parent)
    packed = len(layers)
    for names in SIBLINGS:
        siblings = [layers[name] for name in names if name in layers]
        if len(siblings) == len(names) and len({(one.in_features, one.bias is None) for one in siblings}) == 1:
            together = Together(siblings)
            for place, name in enumerate(names):
                setattr(parent, name, PackedPart(together, place, layers.pop(name)))
    for name, linear in layers.items():
        setattr(parent, name, PackedLinear(linear.weight, linear.bias))
    return packed


def _large(parent: nn.Module) -> dict[str, nn.Linear]:
    """Its large linear layers by name. Layers of a kind of their own may read their weights themselves."""
    return {
        name: child
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= FEWEST_WEIGHTS
    }
