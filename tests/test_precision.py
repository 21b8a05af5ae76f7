"""What --dtype and --weights come to, on a CPU, on a GPU and on one that is borrowed; no GPU is needed for that."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from streaming import layers, precision
from streaming.errors import ModelError
from streaming.precision import Precision, choose

STORED: Any = SimpleNamespace(dtype=torch.bfloat16)
UNKNOWN: Any = SimpleNamespace()


@pytest.mark.parametrize(
    ("dtype", "stored", "accelerated", "expected"),
    [
        ("auto", STORED, False, torch.float32),
        ("auto", STORED, True, torch.bfloat16),
        ("auto", UNKNOWN, True, torch.float32),
        ("float16", STORED, False, torch.float16),
        ("float32", STORED, True, torch.float32),
    ],
)
def test_full_weights_are_read_as_they_are_computed_with(
    dtype: str, stored: Any, accelerated: bool, expected: torch.dtype
) -> None:
    assert choose(dtype, "full", stored, accelerated=accelerated) == Precision(expected, expected)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_on_a_cpu_8_bits_are_read_in_half_precision(dtype: str, expected: torch.dtype) -> None:
    """Read in full precision, a model would need four times the memory that it is to be kept in."""
    assert choose(dtype, "int8", STORED, accelerated=False) == Precision(torch.bfloat16, expected, int8=True)


def test_what_cannot_be_done_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"4bit is for GPUs, and there is none here\. --weights int8"):
        choose("auto", "4bit", STORED, accelerated=False)
    with pytest.raises(ModelError, match="int8 is not for ZeroGPU"):
        choose("auto", "int8", STORED, accelerated=True, borrowed=True)
    monkeypatch.setattr(precision, "find_spec", lambda _: None)
    for weights in ("int8", "4bit"):
        with pytest.raises(ModelError, match=f"--weights {weights} needs bitsandbytes on a GPU: `pip install"):
            choose("auto", weights, STORED, accelerated=True)


def test_on_a_gpu_the_library_reads_fewer_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "find_spec", lambda name: name)
    eight, four = (choose("auto", weights, STORED, accelerated=True) for weights in ("int8", "4bit"))
    assert (eight.int8, eight.compute, eight.library_bits) == (False, torch.bfloat16, 8)
    assert (four.int8, four.compute, four.library_bits) == (False, torch.bfloat16, 4)
    assert eight.library is not None
    assert eight.library.load_in_8bit
    assert four.library is not None
    assert (four.library.load_in_4bit, four.library.bnb_4bit_quant_type) == (True, "nf4")
    assert four.library.bnb_4bit_compute_dtype == torch.bfloat16
    assert choose("auto", "full", STORED, accelerated=True).library_bits == 16


@pytest.mark.parametrize("tied", [True, False])
def test_what_the_library_keeps_in_fewer_bits_is_counted(tied: bool) -> None:
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        shell = LlamaForCausalLM(config)
    inner, embedding = 4 * 64 * 64 + 3 * 64 * 96, 64_000 * (1 if tied else 2)
    rest = shell.num_parameters() - inner
    assert rest == embedding + 3 * 64
    assert layers.size_bytes(shell, 4, torch.bfloat16) == inner // 2 + 2 * rest
