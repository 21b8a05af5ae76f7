"""Each row is drawn as transformers would draw it alone, by its own settings and its own chance."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from streaming.engines import sampler
from streaming.engines.decoding import request_config
from streaming.engines.sampler import Draw, beyond, pick_all
from streaming.messages import Beam, PromptLookup, Sampling

WIDTH = 60


def draw(seed: int | None = 0, **settings: Any) -> Draw:
    settings = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0} | settings
    return Draw(GenerationConfig(**settings), seed)


def logits(seed: int = 0, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed)) * 3


def by_the_library(row: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The probabilities of all tokens after the library's own processors."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    if min_p:
        processors.append(MinPLogitsWarper(min_p))
    return processors(torch.zeros((1, 1), dtype=torch.long), row[None].clone())[0].softmax(-1)


@given(
    seed=st.integers(0, 50),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 7, WIDTH, 10 * WIDTH]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    first_look=st.sampled_from([1, 5, 1024]),
)
def test_the_candidates_are_those_of_the_library(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, first_look: int
) -> None:
    row = logits(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sampler, "FIRST_LOOK", first_look)
        ids, weights = draw(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p).candidates(row)
    expected = by_the_library(row, temperature, top_k, top_p, min_p)
    ours = torch.zeros(WIDTH).scatter(0, ids, weights / weights.sum())
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_tokens_come_as_often_as_they_are_probable() -> None:
    """Chi-squared of 4,000 draws over the ten best; its 99.9 % bound for nine degrees of freedom is 27.9."""
    row, chooser = logits(), draw(top_k=10)
    ids, weights = chooser.candidates(row)
    drawn = torch.tensor([chooser.pick(row) for _ in range(4000)])
    counts = torch.stack([(drawn == token).sum() for token in ids])
    expected = 4000 * weights / weights.sum()
    assert counts.sum() == 4000
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.9


def test_a_seed_gives_the_same_tokens_and_no_seed_gives_others() -> None:
    rows = [logits(seed) for seed in range(20)]

    def drawn(seed: int | None) -> list[int]:
        chooser = draw(seed)
        return [chooser.pick(row) for row in rows]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert drawn(None) != drawn(None)


def test_what_others_draw_changes_nothing() -> None:
    """torch's global chance is shared: there, a neighbour's token moves mine."""
    rows = torch.stack([logits(seed) for seed in range(3)])
    alone = draw(7).pick(rows[1])
    assert pick_all([draw(1), draw(7), draw(2)], rows)[1] == alone


def test_greedy_rows_among_others() -> None:
    rows = torch.stack([logits(seed) for seed in range(4)])
    best = rows.argmax(-1).tolist()
    greedy = [draw(do_sample=False, temperature=None, top_p=None, top_k=None) for _ in range(4)]
    assert pick_all(greedy, rows) == best
    assert pick_all([greedy[0], draw(), greedy[2], draw()], rows)[::2] == best[::2]


def test_the_global_chance_is_left_alone() -> None:
    state = torch.get_rng_state()
    draw(None).pick(logits())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.5}, {"top_k": 5}])
def test_what_is_forbidden_is_never_drawn_and_nonsense_is_an_error(settings: dict[str, float]) -> None:
    row = logits()
    row[row.argmax()] = -torch.inf
    chooser = draw(**settings)
    assert all(row[chooser.pick(row)].isfinite() for _ in range(200))
    with pytest.raises(ValueError, match="not finite"):
        chooser.pick(torch.full((WIDTH,), torch.nan))


def config_of(sampling: Sampling, **makers: Any) -> GenerationConfig:
    return request_config(GenerationConfig(**makers), [2], sampling, 10)


@pytest.mark.parametrize(
    ("sampling", "makers", "unknown"),
    [
        (Sampling(), {}, []),
        (Sampling(temperature=0), {"repetition_penalty": 1.0, "bos_token_id": 1}, []),
        (Sampling(temperature=0.5, top_p=0.5, top_k=5, min_p=0.1, seed=1), {}, []),
        (Sampling(repetition_penalty=1.0), {}, []),
        (Sampling(repetition_penalty=1.1), {}, ["repetition_penalty"]),
        (Sampling(), {"no_repeat_ngram_size": 3, "do_sample": True}, ["no_repeat_ngram_size"]),
        (Sampling(), {"suppress_tokens": [5]}, ["suppress_tokens"]),
        (Sampling(), {"min_new_tokens": 5}, ["min_new_tokens"]),
        (Sampling(), {"num_beams": 4, "early_stopping": True}, []),  # nobody has asked for them
        (Sampling(strategy=Beam(2)), {}, ["num_beams"]),
        (Sampling(strategy=PromptLookup()), {}, ["prompt_lookup_num_tokens"]),
        (Sampling(temperature=1), {"typical_p": 0.5}, ["typical_p"]),
        (Sampling(temperature=0), {"typical_p": 0.5}, []),  # has no effect then
    ],
)
def test_what_a_draw_cannot_express_is_named(sampling: Sampling, makers: dict[str, Any], unknown: list[str]) -> None:
    assert beyond(config_of(sampling, **makers)) == unknown
