"""Weights of 8 bits on a CPU: each row of a layer as whole numbers from -127 to 127, and what they are multiplied by.

A few rows of a decode step are bound by reading the weights, and these are a quarter of them: torch's own op multiplies
by them as they are. For many rows, which are bound by computing, a layer is written out in full precision first, into
memory that all layers share. Imports torch, so only the thread that loads imports it, and one thread at a time computes
with a converted model. docs/precision.md has the figures; tests/test_int8.py guards the op.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from streaming import layers

FEW_ROWS = 16  # the op is quicker up to here: docs/precision.md
BLOCK_WEIGHTS = 4_000_000  # written out at a time: 16 MB, more than a layer of a small model, less than any head
STEP = 32  # the op reads beyond the end of rows of other lengths, and the process dies of it
TOLERANCE = 0.2  # of the logits: 8 bits a weight move them by some percent, another computation by all of them


class Scratch:
    """Memory for a part of a layer in full precision. What was in it is gone with the next one."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # else only code within inference_mode could write to it
            self._room = torch.empty(BLOCK_WEIGHTS, dtype=torch.float32)

    def written_out(self, weight: torch.Tensor) -> torch.Tensor:
        return self._room[: weight.numel()].view(weight.shape).copy_(weight)


class Int8Linear(nn.Module):
    """A linear layer of `weight`, [out_features, in_features] in 8 bits, each row of it times its scale."""

    weight: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, scratch: Scratch) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach().float(), persistent=False)
        self._ones = torch.ones(len(weight), dtype=torch.bfloat16)
        self._scratch = scratch
        self._few_rows = FEW_ROWS if self.in_features % STEP == 0 else 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features], in the precision of the rows"""
        flat = rows.reshape(-1, self.in_features)
        # The scales are for the product, not for the weights: fewer numbers, and in full precision on both ways.
        product = (self._few(flat) if 0 < len(flat) <= self._few_rows else self._many(flat)).mul_(self.scales)
        if self.bias is not None:
            product.add_(self.bias)
        return product.to(rows.dtype).view(*rows.shape[:-1], self.out_features)

    def _few(self, rows: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(rows.to(torch.bfloat16).contiguous(), self.weight, self._ones).float()

    def _many(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.float()
        size = max(1, BLOCK_WEIGHTS // self.in_features)
        blocks = (self.weight[start : start + size] for start in range(0, self.out_features, size))
        products = [rows @ self._scratch.written_out(block).t() for block in blocks]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)


class Int8Embedding(nn.Module):
    """An embedding of 8 bits a weight; a head that shares it has the same memory."""

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self._dtype = dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., embedding_dim]"""
        return (self.weight[ids] * self.scales[ids].unsqueeze(-1)).to(self._dtype)


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers in the shape of `weight`, and the scale of each row, in 32 bits. Rows of zeros stay so."""
    scales = weight.abs().amax(dim=1).float() / 127
    numbers = torch.empty(weight.shape, dtype=torch.int8)
    step = max(1, BLOCK_WEIGHTS // weight.shape[1])  # a copy of a whole head in full precision would be a peak
    divisors = scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
    for start in range(0, len(weight), step):
        part = slice(start, start + step)
        numbers[part] = (weight[part].float() / divisors[part]).round_().clamp_(-127, 127)
    return numbers, scales


def quantise(model: nn.Module, dtype: torch.dtype) -> int:
    """Keep the large linear layers and the embedding in 8 bits, in place, one after the other; says how many layers.

    The rest of the model is in `dtype` afterwards, and computes in it. Raises layers.Unfit if its logits move by more
    than 8 bits explain: it is of no use then.
    """
    if not layers.all_large(model):
        return 0
    return layers.checked(model, partial(_convert, model, dtype), within=TOLERANCE, so="8-bit")


def size_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """What the weights of a model will take once they are kept in 8 bits; its shapes are enough."""
    rest = {id(parameter): parameter.numel() for parameter in model.parameters()}
    embedding = _embedding(model)
    weights = [linear.weight for linear in layers.all_large(model)] + ([] if embedding is None else [embedding.weight])
    kept = {id(weight): weight.numel() + 4 * len(weight) for weight in weights}
    full = sum(count for name, count in rest.items() if name not in kept) * dtype.itemsize
    return full + sum(kept.values()) + 4 * BLOCK_WEIGHTS


def _embedding(model: Any) -> nn.Embedding | None:
    """The model's, if it is a plain one: others look their weights up in a way of their own."""
    found = model.get_input_embeddings()
    plain = type(found) is nn.Embedding and found.max_norm is None
    return found if plain and found.weight.numel() >= layers.FEWEST_WEIGHTS else None


def _convert(model: nn.Module, dtype: torch.dtype) -> int:
    scratch = Scratch()
    shared: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def make(linears: Sequence[nn.Linear]) -> Int8Linear:
        bias = layers.joined_bias(linears)
        if len(linears) == 1:
            (linear,) = linears
            return Int8Linear(*(shared.get(id(linear.weight)) or quantised(linear.weight.detach())), bias, scratch)
        weights, scales = zip(*(quantised(linear.weight.detach()) for linear in linears), strict=True)
        return Int8Linear(torch.cat(weights), torch.cat(scales), bias, scratch)

    embedding = _embedding(model)
    if embedding is not None:
        shared[id(embedding.weight)] = quantised(embedding.weight.detach())
        small = Int8Embedding(*shared[id(embedding.weight)], dtype)
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if child is embedding:
                    setattr(parent, name, small)
    count = layers.exchange(model, make)
    for tensor in [*model.parameters(), *model.buffers()]:  # norms and small layers; neither scales nor frequencies
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor.data = tensor.data.to(dtype)
    return count
