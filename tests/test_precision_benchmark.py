"""The benchmark of precision: perplexity is what its name says, in any pieces, and a goal that is missed says so."""

import math

import pytest
import torch

from benchmarks.precision import TEXT, Loaded, Speed, goals, perplexity
from tests.tiny import tiny_model
from tests.tokenizers import byte_level_bpe


@pytest.mark.parametrize("size", [1, 8, 39, 40])
def test_perplexity_is_the_same_in_any_pieces(size: int) -> None:
    model = tiny_model(byte_level_bpe())
    ids = (7 * torch.arange(40) % 101)[None]
    with torch.inference_mode():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert perplexity(model, ids, size) == pytest.approx(math.exp(loss), rel=1e-4)


def test_the_text_is_of_several_kinds() -> None:
    text = TEXT.read_text(encoding="utf-8")
    assert all(part in text for part in ("```python", '"So, was I right?"', "|---|", "How to bake"))
    assert len(text.split()) > 900


def test_a_goal_that_is_missed_says_so() -> None:
    loaded = {
        "full": Loaded(1.0, 600.0, 700.0, 1000, 20.0, 20.0),
        "int8": Loaded(2.0, 150.0, 300.0, 1000, 20.1, 20.4),
    }
    speeds = {"full": Speed(20.0, 100.0, 500.0), "int8": Speed(30.0, 110.0, 400.0)}
    lines = [str(goal) for goal in goals(loaded, speeds)]
    assert [line[:4] for line in lines] == ["pass", "FAIL", "pass", "FAIL", "pass"]
    assert lines[3] == "FAIL  tokens/s of a prompt: 0.800 of full, at least 0.900"
