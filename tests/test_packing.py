"""Packed weights give the same products, for any number of rows, and the private op of torch is as it is used."""

import gc
import weakref

import pytest
import torch
from torch import nn

from streaming.packing import FEWEST_WEIGHTS, PackedLinear, available, copied, pack


class Small(nn.Module):
    """An embedding that shares its weights with the head, and one linear layer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.layers = nn.ModuleList([nn.Linear(256, 512), nn.Linear(512, 256, bias=False)])
        self.little = nn.Linear(256, 16)
        self.odd = nn.modules.linear.NonDynamicallyQuantizableLinear(256, 512)
        self.head = nn.Linear(256, 1000, bias=False)
        self.head.weight = self.embed.weight


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
        product = PackedLinear(linear)(given)
    assert product.shape == expected.shape
    torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-5)


def test_the_layout_does_not_depend_on_how_many_rows_come_first() -> None:
    linear = nn.Linear(576, 1536)
    packed = PackedLinear(linear)
    with torch.inference_mode():
        for rows in (1, 512, 8, 1, 33):
            given = torch.randn(rows, 576)
            torch.testing.assert_close(packed(given), linear(given), rtol=1e-5, atol=1e-5)


def test_only_large_plain_layers_are_packed() -> None:
    model = Small()
    assert model.little.weight.numel() < FEWEST_WEIGHTS < model.odd.weight.numel()
    assert pack(model) == 3
    assert [type(layer) for layer in model.layers] == [PackedLinear, PackedLinear]
    assert type(model.head) is PackedLinear
    assert type(model.little) is nn.Linear
    assert not isinstance(model.odd, PackedLinear)
    assert pack(model) == 0


def test_the_embedding_keeps_its_weights_and_that_copy_is_counted() -> None:
    model = Small()
    before = model.embed.weight.detach().clone()
    assert copied(model) == 256_000
    pack(model)
    assert torch.equal(model.embed.weight, before)


def test_what_is_packed_is_not_kept_twice() -> None:
    model = Small()
    plain = weakref.ref(model.layers[0].weight)
    pack(model)
    gc.collect()
    assert plain() is None


def test_half_precision_is_packed_only_where_the_processor_computes_in_it() -> None:
    assert available(torch.float32)
    assert not available(torch.float16)
    assert available(torch.bfloat16) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
