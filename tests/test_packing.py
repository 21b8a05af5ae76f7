"""Packed weights give the same products, for any number of rows, and the private op of torch is as it is used."""

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from streaming import models
from streaming.layers import FEWEST_WEIGHTS, Part, Unfit
from streaming.packing import PackedLinear, available, copied, few_counts, pack
from tests.tiny import tiny_folder


class Attention(nn.Module):
    """Three layers for the same rows. `order` is how they are asked."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(256, size, bias=bias) for size in (512, 400, 400))
        self.o_proj = nn.Linear(512, 256)
        self.order = "qkv"

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        asked = {name: getattr(self, f"{name}_proj")(rows) for name in self.order}
        product: torch.Tensor = self.o_proj(asked["q"] + asked["k"].sum() * asked["v"].mean())
        return product


class Small(nn.Module):
    """A language model of one layer of each kind. Its head shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.attention = Attention()
        self.little = nn.Linear(256, 256 // 16)
        self.odd = nn.modules.linear.NonDynamicallyQuantizableLinear(256, 512)
        self.head = nn.Linear(256, 1000, bias=False)
        self.head.weight = self.embed.weight

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
        rows = self.attention(self.embed(input_ids))
        return SimpleNamespace(logits=self.head(rows + self.little(rows).sum() + self.odd(rows).mean()))


def test_the_ops_of_torch_are_as_they_are_used() -> None:
    ops = torch.ops.mkldnn
    multiply = ops._linear_pointwise.default._schema.arguments
    assert [argument.name for argument in multiply] == ["X", "W", "B", "attr", "scalars", "algorithm"]
    reorder = ops._reorder_linear_weight.default._schema.arguments
    assert [argument.name for argument in reorder] == ["self", "batch_size"]
    assert isinstance(ops._is_mkldnn_bf16_supported(), bool)


@pytest.mark.parametrize("rows", [(1,), (1, 1), (1, 7), (2, 40), (1, 300), (0,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_product_is_the_product(rows: tuple[int, ...], bias: bool) -> None:
    linear = nn.Linear(320, 450, bias=bias)
    with torch.inference_mode():
        given = torch.randn(*rows, 320)
        expected = linear(given)
        product = PackedLinear(linear.weight, linear.bias)(given)
    assert product.shape == expected.shape
    torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-5)


def test_the_layout_does_not_depend_on_how_many_rows_come_first() -> None:
    linear = nn.Linear(576, 1536)
    packed = PackedLinear(linear.weight, linear.bias)
    with torch.inference_mode():
        for rows in (1, 512, 8, 1, 33):
            given = torch.randn(rows, 576)
            torch.testing.assert_close(packed(given), linear(given), rtol=1e-5, atol=1e-5)


def test_only_large_plain_layers_are_packed() -> None:
    model = Small()
    assert model.little.weight.numel() < FEWEST_WEIGHTS < model.odd.weight.numel()
    assert pack(model) == 5
    attention = model.attention
    assert [type(layer) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)] == [Part] * 3
    assert [type(layer) for layer in (attention.o_proj, model.head)] == [PackedLinear] * 2
    assert type(model.little) is nn.Linear
    assert not isinstance(model.odd, PackedLinear)
    assert pack(model) == 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("order", ["qkv", "vkq", "kqv", "qvk"])
def test_layers_for_the_same_rows_are_right_together_in_any_order(order: str, bias: bool) -> None:
    attention = Attention(bias)
    attention.order = order
    packed = Small()
    packed.attention = attention
    with torch.inference_mode():
        all_rows = [torch.randn(1, 3, 256), torch.randn(1, 1, 256)] * 2
        expected = [attention(rows) for rows in all_rows]
        pack(packed)
        for rows, product in zip(all_rows, expected, strict=True):
            torch.testing.assert_close(attention(rows), product, rtol=1e-4, atol=1e-4)


def test_nothing_of_an_answer_is_kept_in_the_layers() -> None:
    model = Small()
    pack(model)
    rows = torch.randn(1, 3, 256)
    held = weakref.ref(rows)
    with torch.inference_mode():
        model.attention(rows)
    del rows
    gc.collect()
    assert held() is None


def test_a_model_that_reads_its_weights_itself_is_found_out() -> None:
    class Raw(Small):
        def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
            return SimpleNamespace(logits=self.embed(input_ids) @ self.head.weight.T)

    with pytest.raises(Unfit, match="it fails with packed weights"):
        pack(Raw())

    class Other(Small):
        def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
            bent = 1 if isinstance(self.head, nn.Linear) else 2
            return SimpleNamespace(logits=bent * super().forward(input_ids).logits)

    with pytest.raises(Unfit, match="it computes something else"):
        pack(Other())


def test_the_embedding_keeps_its_weights_and_that_copy_is_counted() -> None:
    model = Small()
    before = model.embed.weight.detach().clone()
    assert copied(model) == 256_000  # the head's alone
    pack(model)
    assert torch.equal(model.embed.weight, before)


def test_what_is_packed_is_not_kept_twice() -> None:
    model = Small()
    plain = weakref.ref(model.attention.o_proj.weight)
    pack(model)
    gc.collect()
    assert plain() is None


def test_a_model_without_large_layers_is_not_even_probed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once the probe was one padding id over and over, whose embedding is zero: nan, and a warning for nothing."""
    loaded = models.load(models.prepare(str(tiny_folder(tmp_path)), cache_dir=None, progress=print))
    assert pack(loaded.model) == 0
    assert not caplog.records


def test_a_large_layer_of_a_small_vocabulary_is_packed() -> None:
    model = Small()
    model.embed = nn.Embedding(6, 256)
    model.head = nn.Linear(256, 1000)
    assert pack(model) == 5


def test_half_precision_is_packed_only_where_the_processor_computes_in_it() -> None:
    assert available(torch.float32)
    assert not available(torch.float16)
    assert available(torch.bfloat16) == torch.ops.mkldnn._is_mkldnn_bf16_supported()


def test_a_product_of_every_number_of_rows_costs_no_memory_each() -> None:
    """The library keeps what it compiles for each number of rows: 1 MB for each of them, of four layers, was seen."""
    counts = {rows: few_counts(rows) for rows in range(1, 2049)}
    assert all(rows <= count for rows, count in counts.items())
    assert [counts[rows] for rows in range(1, 17)] == [*range(1, 17)]
    assert max(count / rows for rows, count in counts.items()) < 1.5
    assert len(set(counts.values())) < 100
    layer = PackedLinear(torch.randn(1536, 576), torch.randn(1536))
    rows = torch.randn(400, 576)
    whole = layer(rows)
    before = psutil.Process().memory_info().rss
    for count in range(1, 400):
        torch.testing.assert_close(layer(rows[:count]), whole[:count], rtol=1e-4, atol=1e-4)
    grown = psutil.Process().memory_info().rss - before
    assert grown < 50e6
