"""Beams and guesses in the lane of one answer: the events joined are what plain `generate` gives with such settings."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from streaming.engines.base import Generation, Item
from streaming.events import Finished, Prefill, ReasoningDelta, Tentative, TextDelta
from streaming.messages import Beam, Sampling, Strategy
from tests.lane import IDS, TOKENIZER, Lane, answer, decoded, lane_of, text_of, texts_of
from tests.plain import cut, split
from tests.tiny import tiny_model
from tests.worlds import small_chunks

MODELS = [tiny_model(TOKENIZER, seed) for seed in range(4)]
STRATEGIES: list[Strategy] = [
    Beam(2),
    Beam(3, length_penalty=-1.0),
    Beam(4, early_stopping=True),
    Beam(2, early_stopping="never"),
]


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_model(TOKENIZER)


def plain_ids(model: LlamaForCausalLM, sampling: Sampling, ids: list[int] = IDS, max_new_tokens: int = 12) -> list[int]:
    """What the library's own `generate` gives, with the very same settings and nothing known before."""
    config = lane_of(model).answers.config(sampling, max_new_tokens)
    torch.manual_seed(sampling.seed or 0)
    prompt = torch.tensor([ids])
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    new: list[int] = made[0, len(ids) :].tolist()
    return new


def plainly(model: LlamaForCausalLM, sampling: Sampling, ids: list[int] = IDS, max_new_tokens: int = 12) -> str:
    return decoded(plain_ids(model, sampling, ids, max_new_tokens))


def finished(items: list[Item]) -> Finished:
    assert isinstance(items[-1], Finished), items[-1]
    return items[-1]


def standing(items: list[Item]) -> Tentative:
    """What is tentative after these events."""
    last = next((item for item in reversed(items) if isinstance(item, Tentative | TextDelta | ReasoningDelta)), None)
    return last if isinstance(last, Tentative) else Tentative()


# -- the invariant


@settings(max_examples=40)
@given(
    model=st.sampled_from(MODELS),
    strategy=st.sampled_from(STRATEGIES),
    penalty=st.sampled_from([None, 1.5]),
    stop_at=st.none() | st.integers(0, 20),
    opened=st.booleans(),
    cancel_at=st.none() | st.integers(1, 6),
)
def test_the_deltas_joined_are_plain_generates_text_cut_at_the_stop(
    model: LlamaForCausalLM,
    strategy: Strategy,
    penalty: float | None,
    stop_at: int | None,
    opened: bool,
    cancel_at: int | None,
) -> None:
    """With a cancel they are the text of its first tokens. Whatever was tentative is taken back in the end."""
    sampling = Sampling(temperature=0, repetition_penalty=penalty, strategy=strategy)
    ids = plain_ids(model, sampling)
    whole = decoded(ids)
    stops = (whole[stop_at : stop_at + 2],) if stop_at is not None and whole[stop_at:] else ()
    generation, seen = Generation(), list[Item]()

    def cancel(item: Item) -> None:
        seen.append(item)
        if cancel_at is not None and sum(isinstance(each, TextDelta | ReasoningDelta) for each in seen) == cancel_at:
            generation.cancel()

    generation.observe(cancel)
    items = answer(
        lane_of(model),
        generation=generation,
        opened=opened,
        sampling=Sampling(temperature=0, repetition_penalty=penalty, strategy=strategy, stop=stops),
    )
    assert items == seen
    end = finished(items)
    if end.reason == "cancelled":
        ids = ids[: end.usage.completion_tokens]
    text, stopped_by = cut(decoded(ids), list(stops))
    assert texts_of(items) == split(text, opened)
    assert end.stopped_by == stopped_by
    assert end.reason != "cancelled" or cancel_at is not None
    assert not standing(items)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sampling_beams_under_one_seed(model: LlamaForCausalLM, seed: int) -> None:
    sampling = Sampling(temperature=0.9, top_k=0, seed=seed, strategy=Beam(3))
    assert text_of(answer(lane_of(model), sampling=sampling)) == plainly(model, sampling)


def test_a_thought_and_its_answer_by_beams(model: LlamaForCausalLM) -> None:
    whole = plainly(model, Sampling(temperature=0, strategy=Beam(2)))
    close = whole[4:6]
    lane = lane_of(model)
    opened = lane.answers.open

    def with_tag(*args: Any, **kwargs: Any) -> Any:
        made = opened(*args, **kwargs)
        made._assembler._reasoning._close = close
        return made

    lane.answers.open = with_tag  # type: ignore[method-assign]
    items = answer(lane, opened=True, sampling=Sampling(temperature=0, strategy=Beam(2)))
    thought, _, said = whole.partition(close)
    assert texts_of(items) == (thought.strip(), said.lstrip())
    assert all(texts_of(items))


# -- beams


def test_what_is_tentative_follows_what_is_settled(model: LlamaForCausalLM) -> None:
    """Together they are what would be the answer if it had to end there."""
    sampling = Sampling(temperature=0, strategy=Beam(4))
    items = answer(lane_of(model), sampling=sampling)
    endings = {plainly(model, sampling, max_new_tokens=count) for count in range(1, 13)}
    tentative = [place for place, item in enumerate(items) if isinstance(item, Tentative) and item]
    assert tentative
    for place in tentative:
        assert text_of(items[:place]) + standing(items[: place + 1]).text in endings


def test_a_stop_keeps_the_settled_text_alone_and_waits_for_one_step(model: LlamaForCausalLM) -> None:
    generation, steps = Generation(), list[int]()

    def count(*_: Any) -> None:
        steps.append(1)
        if len(steps) == 5:
            generation.cancel()

    hook = model.lm_head.register_forward_pre_hook(count)
    sampling = Sampling(temperature=0, strategy=Beam(4))
    items = answer(lane_of(model), generation=generation, sampling=sampling)
    hook.remove()
    assert len(steps) == 5
    assert finished(items).reason == "cancelled"
    assert plainly(model, sampling).startswith(text_of(items))
    assert not standing(items)


def test_a_stop_string_ends_beams_in_the_step_that_settles_it(model: LlamaForCausalLM) -> None:
    whole = plainly(model, Sampling(temperature=0, strategy=Beam(2)))
    steps: list[int] = []
    hook = model.lm_head.register_forward_pre_hook(lambda *_: steps.append(1))
    stop = whole[1:3]
    items = answer(lane_of(model), sampling=Sampling(temperature=0, strategy=Beam(2), stop=(stop,)))
    hook.remove()
    assert text_of(items) == whole.partition(stop)[0]
    assert len(steps) < 12


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_chunks_of_the_prompt_and_what_is_kept_change_nothing(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, strategy: Strategy
) -> None:
    """Turns after a turn with a strategy, and turns with one after turns without."""
    small_chunks(monkeypatch)
    lane = Lane(model, TOKENIZER, cache_bytes=10**8)
    plain, sampling = Sampling(temperature=0), Sampling(temperature=0, strategy=strategy)
    ids = IDS
    for turn, drawn in enumerate([sampling, sampling, plain, sampling, plain]):
        items = answer(lane, ids, sampling=drawn)
        said = text_of(items)
        assert said == plainly(model, drawn, ids)
        known = finished(items).usage.cached_tokens
        assert known == 0 if turn == 0 else known >= len(ids) - 5 - 12
        if turn == 0:
            assert [item.done for item in items if isinstance(item, Prefill)] == [0, 8, 16, 24, 32, 40, 48]
        ids = [*ids, *TOKENIZER(said, add_special_tokens=False)["input_ids"][:6], 5, 6]


def test_a_stop_in_the_prompt_comes_before_any_beam(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    generation, forwards = Generation(), list[int]()

    def count(_: Any, __: Any, given: dict[str, Any]) -> None:
        forwards.append(given["input_ids"].shape[1])
        if len(forwards) == 2:
            generation.cancel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    items = answer(lane_of(model), generation=generation, sampling=Sampling(temperature=0, strategy=Beam(3)))
    assert forwards == [8, 8]
    assert finished(items).reason == "cancelled"
