"""Beams and guesses in the lane of one answer: the events joined are what plain `generate` gives with such settings."""

import inspect
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from streaming.engines.base import Generation, Item
from streaming.engines.speculation import Draft
from streaming.errors import ModelError
from streaming.events import Finished, Prefill, ReasoningDelta, Tentative, TextDelta
from streaming.messages import Assisted, Beam, PromptLookup, Sampling, Strategy
from streaming.models import Model
from tests.lane import IDS, TOKENIZER, Lane, answer, decoded, lane_of, text_of, texts_of
from tests.plain import cut, full_decode, split
from tests.tiny import tiny_model
from tests.tokenizers import byte_level_bpe
from tests.worlds import small_chunks

MODELS = [tiny_model(TOKENIZER, seed) for seed in range(4)]
STRATEGIES: list[Strategy] = [
    Beam(2),
    Beam(3, length_penalty=-1.0),
    Beam(4, early_stopping=True),
    Beam(2, early_stopping="never"),
    PromptLookup(2),
    PromptLookup(10),
    Assisted("itself"),
    Assisted("random"),
]
GUESSED = [PromptLookup(5), Assisted("itself"), Assisted("random")]
BEAMS = [strategy for strategy in STRATEGIES if isinstance(strategy, Beam)]


def draft_for(strategy: Strategy, seed: int = 0) -> LlamaForCausalLM | None:
    """A model that guesses nearly always right, or nearly never."""
    if not isinstance(strategy, Assisted):
        return None
    return tiny_model(TOKENIZER, seed if strategy.model == "itself" else seed + 100)


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_model(TOKENIZER)


def plain_ids(model: LlamaForCausalLM, sampling: Sampling, ids: list[int] = IDS, max_new_tokens: int = 12) -> list[int]:
    """What the library's own `generate` gives, with the same settings and nothing known before, and without guesses."""
    if not isinstance(sampling.strategy, Beam):
        sampling = replace(sampling, strategy=None)
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


@settings(max_examples=20)
@given(
    seed=st.sampled_from(range(len(MODELS))),
    strategy=st.sampled_from(STRATEGIES),
    penalty=st.sampled_from([None, 1.5]),
    stop_at=st.none() | st.integers(0, 20),
    opened=st.booleans(),
    cancel_at=st.none() | st.integers(1, 6),
)
def test_the_deltas_joined_are_plain_generates_text_cut_at_the_stop(
    seed: int,
    strategy: Strategy,
    penalty: float | None,
    stop_at: int | None,
    opened: bool,
    cancel_at: int | None,
) -> None:
    """With a cancel they are the text of its first tokens. Whatever was tentative is taken back in the end."""
    model, sampling = MODELS[seed], Sampling(temperature=0, repetition_penalty=penalty, strategy=strategy)
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
        lane_of(model, draft=draft_for(strategy, seed)),
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


@pytest.mark.parametrize(
    "strategy", [pytest.param(Beam(2), marks=pytest.mark.soak), PromptLookup(10), Assisted("itself")], ids=str
)
def test_the_starter_model_s_text_is_plain_generates_too(starter_folder: Path, strategy: Strategy) -> None:
    """Whole, up to a stop string in the midst of a word, and up to a cancel."""
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    model, draft = (AutoModelForCausalLM.from_pretrained(starter_folder, dtype=torch.float32) for _ in range(2))
    lane = lane_of(model, tokenizer, draft=draft if isinstance(strategy, Assisted) else None)
    question = [{"role": "user", "content": "Say after me: the quick brown fox jumps over the lazy dog."}]
    ids: list[int] = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    settings = Sampling(temperature=0, strategy=strategy)
    plain = Sampling(temperature=0, strategy=strategy if isinstance(strategy, Beam) else None)
    prompt, config = torch.tensor([ids]), lane.answers.config(plain, 20)
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)[0, len(ids) :]
    whole = full_decode(tokenizer, made.tolist())
    assert len(whole) > 20
    assert text_of(answer(lane, ids, max_new_tokens=20, sampling=settings)) == whole
    stop = whole[11:15]
    items = answer(lane, ids, max_new_tokens=20, sampling=replace(settings, stop=(stop,)))
    assert (text_of(items), finished(items).stopped_by) == cut(whole, [stop])
    generation = Generation()
    generation.observe(lambda item: generation.cancel() if isinstance(item, TextDelta) else None)
    items = answer(lane, ids, max_new_tokens=20, sampling=settings, generation=generation)
    assert finished(items).reason == "cancelled"
    assert text_of(items) == full_decode(tokenizer, made[: finished(items).usage.completion_tokens].tolist())


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
    lane = Lane(model, TOKENIZER, cache_bytes=10**8, draft=draft_for(strategy))
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


# -- guesses


@pytest.mark.parametrize("strategy", GUESSED, ids=str)
def test_what_was_guessed_is_counted(model: LlamaForCausalLM, strategy: Strategy) -> None:
    """Each step makes one token of the model's own, and as many as it has accepted before that."""
    steps: list[int] = []
    lane = lane_of(model, draft=draft_for(strategy))
    model.lm_head.register_forward_pre_hook(lambda *_: steps.append(1))
    repetitive = [20, 21, 22, 23] * 10
    items = answer(lane, repetitive, max_new_tokens=40, sampling=Sampling(temperature=0, strategy=strategy))
    usage = finished(items).usage
    assert usage.completion_tokens == 40 == len(steps) + usage.accepted_tokens
    deltas = [item for item in items if isinstance(item, TextDelta)]
    assert deltas[-1].accepted == usage.accepted_tokens <= usage.proposed_tokens
    assert [delta.accepted for delta in deltas] == sorted(delta.accepted for delta in deltas)
    for before, after in pairwise([TextDelta(""), *deltas]):
        assert after.guessed <= (len(after.text) if after.accepted > before.accepted else 0)
    assert any(delta.guessed for delta in deltas) == bool(usage.accepted_tokens)
    if strategy == Assisted("itself"):
        assert usage.accepted_tokens == usage.proposed_tokens >= 15  # a random model is never sure, and guesses little
    elif strategy == Assisted("random"):
        assert usage.accepted_tokens <= usage.proposed_tokens / 10
    else:
        assert 0 < usage.accepted_tokens < usage.proposed_tokens


def test_without_a_strategy_nothing_is_guessed(model: LlamaForCausalLM) -> None:
    usage = finished(answer(lane_of(model, draft=tiny_model(TOKENIZER)))).usage
    assert (usage.proposed_tokens, usage.accepted_tokens) == (0, 0)


@pytest.mark.parametrize("strategy", GUESSED, ids=str)
@pytest.mark.parametrize("place", range(0, 30, 3))
def test_a_stop_string_within_one_step_of_several_tokens(
    model: LlamaForCausalLM, strategy: Strategy, place: int
) -> None:
    """generate's own stop_strings look at the end of a step alone, and miss what lies within; no token is missing or
    there twice either (vllm 30099)."""
    whole = plainly(model, Sampling(temperature=0), max_new_tokens=40)
    stop = whole[place : place + 3]
    sampling = Sampling(temperature=0, strategy=strategy, stop=(stop,))
    items = answer(lane_of(model, draft=draft_for(strategy)), max_new_tokens=40, sampling=sampling)
    assert text_of(items) == whole.partition(stop)[0]
    assert finished(items).stopped_by == stop


@pytest.mark.parametrize("strategy", GUESSED, ids=str)
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_stop_waits_for_one_step_of_guesses(model: LlamaForCausalLM, strategy: Strategy, step: int) -> None:
    generation, steps = Generation(), list[int]()
    lane = lane_of(model, draft=draft_for(strategy))

    def count(*_: Any) -> None:
        steps.append(1)
        if len(steps) == step:
            generation.cancel()

    model.lm_head.register_forward_pre_hook(count)
    items = answer(lane, generation=generation, max_new_tokens=200, sampling=Sampling(temperature=0, strategy=strategy))
    assert len(steps) == step
    assert finished(items).reason == "cancelled"


def test_a_stop_while_the_draft_reads_the_prompt(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    draft, generation, forwards = tiny_model(TOKENIZER), Generation(), list[int]()

    def count(_: Any, __: Any, given: dict[str, Any]) -> None:
        forwards.append(given["input_ids"].shape[1])
        if len(forwards) == 2:
            generation.cancel()

    draft.register_forward_pre_hook(count, with_kwargs=True)
    lane = Lane(model, TOKENIZER, cache_bytes=10**8, draft=draft)
    sampling = Sampling(temperature=0, strategy=Assisted("draft"))
    items = answer(lane, generation=generation, sampling=sampling)
    assert forwards == [8, 8]
    assert finished(items).reason == "cancelled"
    assert text_of(answer(lane, sampling=sampling)) == plainly(model, sampling)


def test_a_draft_reads_only_what_is_new(model: LlamaForCausalLM) -> None:
    """Of a conversation's next turn, though some of what it had guessed for the last one was wrong."""
    draft = tiny_model(TOKENIZER, 100)
    lane = Lane(model, TOKENIZER, cache_bytes=10**8, draft=draft)
    sampling = Sampling(temperature=0, strategy=Assisted("draft"))
    said = plain_ids(model, sampling)
    read: list[int] = []
    draft.register_forward_pre_hook(lambda _, __, given: read.append(given["input_ids"].shape[1]), with_kwargs=True)
    answer(lane, sampling=sampling)
    assert read[0] == len(IDS)
    read.clear()
    turn = [*IDS, *said, 5, 6]
    items = answer(lane, turn, sampling=sampling)
    assert read[0] <= 4
    assert text_of(items) == plainly(model, sampling, turn)


@pytest.mark.parametrize("schedule", ["heuristic", "heuristic_transient", "constant"])
def test_one_request_leaves_no_trace_in_the_settings_of_the_next(model: LlamaForCausalLM, schedule: str) -> None:
    """The library writes what it has come to guess into the draft's own settings."""
    draft = tiny_model(TOKENIZER)
    draft.generation_config.update(num_assistant_tokens=3, num_assistant_tokens_schedule=schedule)
    lane = lane_of(model, draft=draft)
    sampling = Sampling(temperature=0, strategy=Assisted("draft"))
    proposed = [finished(answer(lane, max_new_tokens=40, sampling=sampling)).usage.proposed_tokens for _ in range(3)]
    assert len(set(proposed)) == 1
    assert draft.generation_config.num_assistant_tokens == 3


def test_an_answer_that_is_too_long_for_the_draft_is_made_without(model: LlamaForCausalLM) -> None:
    lane = lane_of(model, draft=tiny_model(TOKENIZER))
    assert lane.draft is not None
    lane.draft._context_tokens = len(IDS) + 11
    sampling = Sampling(temperature=0, strategy=Assisted("draft"))
    items = answer(lane, sampling=sampling)
    assert text_of(items) == plainly(model, sampling)
    assert finished(items).usage.proposed_tokens == 0


@pytest.mark.parametrize("strategy", GUESSED, ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 9, 10, 11])
def test_short_prompts_and_prompts_around_the_edges_of_chunks(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, strategy: Strategy, length: int
) -> None:
    small_chunks(monkeypatch)
    sampling, ids = Sampling(temperature=0, strategy=strategy), IDS[:length]
    assert text_of(answer(lane_of(model, draft=draft_for(strategy)), ids, sampling=sampling)) == plainly(
        model, sampling, ids
    )


@pytest.mark.parametrize("strategy", GUESSED, ids=str)
def test_a_seed_gives_the_same_text_again(model: LlamaForCausalLM, strategy: Strategy) -> None:
    lane = lane_of(model, draft=draft_for(strategy))
    sampling = Sampling(temperature=1, seed=5, strategy=strategy)
    texts = {text_of(answer(lane, max_new_tokens=20, sampling=sampling)) for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize("strategy", GUESSED, ids=str)
def test_a_model_that_sees_a_window_alone(monkeypatch: pytest.MonkeyPatch, strategy: Strategy) -> None:
    """What has left the window comes back when a guess was wrong."""
    small_chunks(monkeypatch)
    config = MistralConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=6, initializer_range=0.2, bos_token_id=None,
        eos_token_id=TOKENIZER.eos_token_id, pad_token_id=TOKENIZER.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = MistralForCausalLM(config).eval()
    sampling = Sampling(temperature=0, strategy=strategy)
    items = answer(lane_of(model, draft=draft_for(strategy)), max_new_tokens=30, sampling=sampling)
    assert text_of(items) == plainly(model, sampling, max_new_tokens=30)


def test_a_draft_with_other_tokens_is_refused(model: LlamaForCausalLM) -> None:
    of = Model("large", model, TOKENIZER, 512)
    other = byte_level_bpe(400)
    with pytest.raises(ModelError, match="small cannot draft for large, because it has another tokenizer"):
        Draft(Model("small", tiny_model(other), other, 512), of)
    wide = tiny_model(TOKENIZER)
    wide.resize_token_embeddings(len(TOKENIZER) + 4)
    with pytest.raises(ModelError, match="entries"):
        Draft(Model("small", wide, TOKENIZER, 512), of)


def test_private_names_that_guesses_are_watched_by() -> None:
    """An upgrade must fail here, loudly."""
    loop = inspect.getsource(GenerationMixin._assisted_decoding)
    assert "self._get_candidate_generator(" in loop
    assert "isinstance(candidate_generator, AssistedCandidateGenerator)" in loop, "who gets the settings written back"
    assert {"inputs_tensor", "assistant_model"} <= inspect.signature(
        GenerationMixin._assisted_decoding
    ).parameters.keys()
    drafting = inspect.getsource(AssistedCandidateGenerator)
    assert 'self.assistant_kwargs.get("cache", None)' in drafting
    assert "target_cache_size = input_ids.shape[-1] - 1 - remove_from_pkv - num_added_tokens" in drafting
