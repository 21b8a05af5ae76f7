"""Layers of 8 bits give the products of the weights that they keep, and a model of them answers as any other."""

import gc
import json
import subprocess
import sys
import weakref
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from streaming import Config, Message, Sampling, int8, memory, models, open_engine
from streaming.engines.answers import Answers
from streaming.engines.batching import BatchLane
from streaming.engines.generate import rounds_finely
from streaming.errors import ModelError, ModelTooLarge
from streaming.events import TextDelta
from streaming.int8 import FEW_ROWS, Int8Embedding, Int8Linear, Scratch, quantise, quantised, size_bytes
from streaming.layers import Part, Unfit
from tests.tokenizers import byte_level_bpe

BF16 = 0.01  # the op rounds the rows and its products to 8 bits of mantissa
FEW, MANY = 3, FEW_ROWS + 1


def exact(layer: Int8Linear | Int8Embedding) -> torch.Tensor:
    """The weights that a layer keeps, in full precision."""
    return layer.weight.float() * layer.scales[:, None]


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm().clamp_min(1e-9))


class Small(nn.Module):
    """A language model of one layer of each kind. Its head shares the embedding's weights, if it is `tied`."""

    def __init__(self, tied: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(256, size, bias=bias) for size in (512, 400, 400))
        self.o_proj = nn.Linear(512, 256, bias=bias)
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 1000, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.to(torch.bfloat16)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
        rows = self.norm(self.embed(input_ids))
        mixed = torch.cat([self.k_proj(rows), self.v_proj(rows)], dim=-1)[..., :512]
        return SimpleNamespace(logits=self.head(self.o_proj(self.q_proj(rows) + mixed)))


def test_the_op_of_torch_is_as_it_is_used() -> None:
    """It is private, and made for rows whose length is a multiple of 32: it never gets others."""
    schema = torch.ops.aten._weight_int8pack_mm.default._schema
    assert [argument.name for argument in schema.arguments] == ["self", "mat2", "scales"]
    rows = torch.randn(FEW, 64, dtype=torch.bfloat16)
    numbers = torch.randint(-127, 128, (48, 64), dtype=torch.int8)
    product = torch._weight_int8pack_mm(rows, numbers, torch.ones(48, dtype=torch.bfloat16))
    assert product.dtype == torch.bfloat16
    assert error(product, rows.float() @ numbers.float().T) < BF16


@settings(max_examples=40, deadline=None)
@given(
    outputs=st.integers(1, 90),
    inputs=st.one_of(st.integers(1, 5).map(lambda number: 32 * number), st.integers(1, 150)),
    rows=st.integers(0, 2 * FEW_ROWS),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_product_is_that_of_the_weights_that_are_kept(
    outputs: int, inputs: int, rows: int, bias: bool, seed: int
) -> None:
    """For any shape and any number of rows; in full precision beyond a few rows."""
    chance = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=chance)
    added = torch.randn(outputs, generator=chance) if bias else None
    layer = Int8Linear(*quantised(weight), added, Scratch())
    asked = torch.randn(1, rows, inputs, generator=chance)
    expected = nn.functional.linear(asked, exact(layer), added)
    product = layer(asked)
    assert (product.shape, product.dtype) == (expected.shape, torch.float32)
    few = rows <= FEW_ROWS and inputs % 32 == 0
    # Of one number the error may be larger than of many, where what is added up cancels out.
    scale = asked.norm(dim=-1, keepdim=True) * exact(layer).norm(dim=1) + (0 if added is None else added.abs())
    assert bool(((product - expected).abs() <= (BF16 if few else 1e-5) * scale).all())


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 60), power=st.integers(-30, 30), seed=st.integers(0, 99))
def test_a_weight_is_off_by_half_a_step_of_its_row_at_most(rows: int, columns: int, power: int, seed: int) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 10.0**power
    weight[0] = 0
    numbers, scales = quantised(weight)
    assert numbers.dtype == torch.int8
    assert int(numbers.abs().max()) <= 127
    off = (numbers.float() * scales[:, None] - weight).abs()
    assert bool((off <= 0.5001 * scales[:, None]).all())
    assert bool((numbers[0] == 0).all())


def test_a_large_layer_is_written_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of a hundred million weights in full precision would take what was saved elsewhere."""
    weight, rows = torch.randn(130, 64), torch.randn(MANY, 64)
    whole = Int8Linear(*quantised(weight), None, Scratch())(rows)
    monkeypatch.setattr(int8, "BLOCK_WEIGHTS", 64 * 50)
    scratch = Scratch()
    parts = Int8Linear(*quantised(weight), None, scratch)
    torch.testing.assert_close(parts(rows), whole, rtol=1e-5, atol=1e-5)
    assert scratch.written_out(parts.weight[:50]).numel() == 64 * 50


def test_what_a_few_rows_give_does_not_depend_on_how_many_they_are() -> None:
    layer = Int8Linear(*quantised(torch.randn(200, 96)), None, Scratch())
    rows = torch.randn(FEW_ROWS, 96)
    whole = layer(rows)
    assert all(torch.equal(layer(rows[:count]), whole[:count]) for count in range(1, FEW_ROWS + 1))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_model_is_converted_in_place(tied: bool, bias: bool) -> None:
    model: Any = Small(tied, bias)
    model.float()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.bfloat16()
    assert quantise(model, torch.float32) == 5
    assert [type(layer) for layer in (model.q_proj, model.k_proj, model.v_proj)] == [Part] * 3
    assert [type(layer) for layer in (model.o_proj, model.head)] == [Int8Linear] * 2
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert error(exact(model.embed), before["embed.weight"]) < 0.02
    assert error(exact(model.head), before["head.weight"]) < 0.02
    assert (model.embed.weight.data_ptr() == model.head.weight.data_ptr()) == tied
    for count in (FEW, MANY):
        rows = torch.randn(2, count, 256)
        for name in ("q_proj", "k_proj", "v_proj"):
            expected = nn.functional.linear(rows, before[f"{name}.weight"], before.get(f"{name}.bias"))
            assert error(getattr(model, name)(rows), expected) < 0.03
    assert quantise(model, torch.float32) == 0


def test_a_model_may_compute_in_half_precision_too() -> None:
    model: Any = Small()
    quantise(model, torch.bfloat16)
    ids = torch.arange(6)[None]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model(ids).logits.dtype == torch.bfloat16
    assert model.head.scales.dtype == torch.float32


def test_an_embedding_is_looked_up_row_by_row() -> None:
    layer = Int8Embedding(*quantised(torch.randn(20, 8)), torch.float32)
    ids = torch.tensor([[3, 3], [0, 19]])
    torch.testing.assert_close(layer(ids), exact(layer)[ids])


def test_the_weights_are_not_kept_beside() -> None:
    model = Small()
    plain = [weakref.ref(weight) for weight in (model.o_proj.weight, model.q_proj.weight, model.embed.weight)]
    quantise(model, torch.float32)
    gc.collect()
    assert [weight() for weight in plain] == [None] * 3


def test_a_model_that_reads_its_weights_itself_is_found_out() -> None:
    class Raw(Small):
        def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
            return SimpleNamespace(logits=self.embed(input_ids) @ self.head.weight.T)

    with pytest.raises(Unfit, match="fails with 8-bit weights"):
        quantise(Raw(), torch.float32)

    class Other(Small):
        def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
            bent = 1 if isinstance(self.head, nn.Linear) else 2
            return SimpleNamespace(logits=bent * super().forward(input_ids).logits)

    with pytest.raises(Unfit, match="something else with 8-bit weights"):
        quantise(Other(), torch.float32)


def test_a_conversion_that_goes_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound has room for what 8 bits cost, and none for scales that belong to other rows."""
    model = Small()
    with torch.no_grad():
        for weight in (model.embed.weight, model.o_proj.weight, model.q_proj.weight):
            weight.mul_(torch.logspace(-1, 1, len(weight))[:, None])
    assert quantise(deepcopy(model), torch.float32) == 5

    def mixed_up(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers, scales = quantised(weight)
        return numbers, scales.flip(0)

    monkeypatch.setattr(int8, "quantised", mixed_up)
    with pytest.raises(Unfit, match="something else with 8-bit weights"):
        quantise(model, torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_of_no_numbers_is_found_out(value: float) -> None:
    model = Small()
    with torch.no_grad():
        model.o_proj.weight[5, 5] = value
    with pytest.raises(Unfit):
        quantise(model, torch.float32)


# -- a whole model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose layers are large enough."""
    path, tokenizer = tmp_path_factory.mktemp("int8"), byte_level_bpe()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def load(folder: Path, **settings: str) -> models.Model:
    return models.load(models.prepare(str(folder), cache_dir=None, progress=print), **settings)


def test_it_is_loaded_in_8_bits_and_computes_what_it_should(folder: Path) -> None:
    full, small = load(folder), load(folder, weights="int8")
    assert (full.int8, small.int8) == (False, True)
    assert (full.model.dtype, small.model.dtype) == (torch.float32, torch.float32)
    assert rounds_finely(full)
    assert not rounds_finely(small)
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float()
    with torch.no_grad():
        for module in reference.modules():
            if isinstance(module, nn.Linear | nn.Embedding):  # all of them are large
                numbers, scales = quantised(module.weight)
                module.weight.copy_(numbers * scales[:, None])
    for count, bound in ((FEW, 0.05), (2 * MANY, 1e-4)):  # what bfloat16 rounds away grows from layer to layer
        ids = torch.arange(count)[None] % 200
        with torch.inference_mode():
            assert error(small.model(ids).logits, reference(ids).logits) < bound
            assert error(full.model(ids).logits, reference(ids).logits) > 1e-3


def test_it_is_answered_in_both_lanes(folder: Path) -> None:
    """Of one row each, alone and in a batch, the products are the same, and so is the text."""
    said = {}
    for batching in ("on", "off"):
        engine = open_engine(Config(model=str(folder), weights="int8", batching=batching))
        try:
            sampling = Sampling(temperature=0, max_new_tokens=10)
            events = list(engine.stream("one two three", sampling))
            said[batching] = "".join(event.text for event in events if isinstance(event, TextDelta))
        finally:
            engine.close()
    assert said["on"]
    assert said["on"] == said["off"]


def test_the_starter_model_still_knows_its_capitals(starter_folder: Path) -> None:
    """It was refused once: the probe's tokens were the special ones, whose logits any rounding moves."""
    engine = open_engine(Config(model=str(starter_folder), weights="int8"))
    try:
        assert engine.wait_ready().state == "ready"
        question = [Message("user", "What is the capital of France?")]
        events = list(engine.stream(question, Sampling(temperature=0, max_new_tokens=16)))
    finally:
        engine.close()
    assert "Paris" in "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_seed_holds_only_alone(folder: Path) -> None:
    """A few rows are computed in half precision and many in full: a neighbour's prompt could move a token."""
    model = load(folder, weights="int8")
    lane, config = BatchLane(model, cache_bytes=10**8), Answers(model).config(Sampling(), 5, 10)
    assert lane.pages(10, config, None) == 1
    assert lane.pages(10, config, 7) == 0


def test_the_memory_that_is_asked_for_is_what_reading_takes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = LlamaForCausalLM.from_pretrained(folder).num_parameters()
    monkeypatch.setattr(int8, "BLOCK_WEIGHTS", 1000)
    monkeypatch.setattr(memory, "free_memory", lambda: 3 * parameters)
    with pytest.raises(ModelTooLarge, match=r"of 4 bytes .* --weights int8"):
        load(folder)
    monkeypatch.setattr(memory, "free_memory", lambda: int(2.3 * parameters))
    assert load(folder, weights="int8").int8
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * parameters)
    with pytest.raises(ModelTooLarge, match=r"million parameters need about .* free\. Choose a smaller"):
        load(folder, weights="int8")


def test_the_size_is_known_from_the_shapes_alone() -> None:
    with torch.device("meta"):
        shell = Small()
    model = Small()
    expected = size_bytes(shell, torch.float32)
    quantise(model, torch.float32)
    joined = [part._together._whole for part in (model.q_proj,)]
    kept = {id(t): t.nbytes for m in [*model.modules(), *joined] for t in [*m.parameters(), *m.buffers()]}
    biases = sum(4 * size for size in (512, 400, 400, 256))
    assert abs(expected - 4 * int8.BLOCK_WEIGHTS - sum(kept.values())) <= biases


def test_a_model_that_cannot_be_kept_so_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "TOLERANCE", 0.0)
    with pytest.raises(ModelError, match=r"cannot be kept in 8 bits, because .* Leave --weights out"):
        load(folder, weights="int8")


def test_rows_of_any_length_leave_the_process_alive() -> None:
    """The op read beyond the end of rows of 65 numbers, and the process died: such layers never get to it."""
    code = (
        "import json, torch; from streaming.int8 import *\n"
        "layers = [Int8Linear(*quantised(torch.ones(9, size)), None, Scratch()) for size in range(1, 100)]\n"
        "print(json.dumps([layer(torch.ones(2, layer.in_features))[1, 8].item() for layer in layers]))"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == pytest.approx(list(range(1, 100)), rel=BF16)
