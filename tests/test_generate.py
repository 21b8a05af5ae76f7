"""The hooks of transformers that the lane hangs on, some of them private: an upgrade must fail here, loudly."""

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation.streamers import BaseStreamer

from streaming.engines import generate
from streaming.engines.base import Generation, Item
from streaming.engines.generate import explained
from streaming.engines.stopwatch import Stopwatch
from streaming.events import Finished, Prefill
from streaming.messages import Sampling
from streaming.templates import Prompt
from tests.lane import IDS, TOKENIZER, Lane, answer, decoded, lane_of, plainly, text_of
from tests.tiny import CONTEXT_TOKENS, tiny_model
from tests.tokenizers import byte_level_bpe


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_model(TOKENIZER)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "CHUNK_TOKENS", 8)
    monkeypatch.setattr(generate, "SMALL_CHUNK_TOKENS", 4)


# -- hooks of the library


class Diary(BaseStreamer, StoppingCriteria):
    """Writes down what it is shown, as a streamer and as a criterion."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, list[int]]] = []

    def put(self, value: torch.Tensor) -> None:
        self.lines.append(("put", value.flatten().tolist()))

    def end(self) -> None:
        self.lines.append(("end", []))

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # type: ignore[override]
        self.lines.append(("criterion", input_ids[0].tolist()))
        return torch.zeros(1, dtype=torch.bool)


def test_a_criterion_sees_each_token_before_the_streamer_does(model: LlamaForCausalLM) -> None:
    """Why the lane reads tokens in a criterion: what it decides there ends the same step, and nothing is missed."""
    diary = Diary()
    made = plainly(model, 3, streamer=diary, stopping_criteria=StoppingCriteriaList([diary]))
    expected: list[tuple[str, list[int]]] = [("put", IDS)]
    for count in (1, 2, 3):
        expected += [("criterion", IDS + made[:count]), ("put", made[count - 1 : count])]
    assert diary.lines == [*expected, ("end", [])]


def test_a_cache_of_all_but_the_last_token_changes_nothing(model: LlamaForCausalLM) -> None:
    made = plainly(model)
    for cached in (1, 20, len(IDS) - 1):
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        with torch.inference_mode():
            model(input_ids=torch.tensor([IDS[:cached]]), cache=cache, use_cache=True, logits_to_keep=1)
        assert cache.get_seq_length() == cached
        assert plainly(model, cache=cache) == made


def test_names_that_the_lane_uses(model: LlamaForCausalLM) -> None:
    assert {"cache", "logits_to_keep", "use_cache"} <= inspect.signature(model.forward).parameters.keys()
    assert model._supports_default_dynamic_cache() is True
    assert issubclass(DynamicSlidingWindowLayer, DynamicLayer)
    assert {type(layer) for layer in DynamicCache(config=model.config).layers} == {DynamicLayer}


def test_the_library_fills_what_a_request_leaves_out_from_the_model(model: LlamaForCausalLM) -> None:
    """Why the lane takes the model's own config away: a request could not be without its temperature."""
    model.generation_config.temperature = 0.5
    filled, _ = model._prepare_generation_config(GenerationConfig(temperature=None))
    assert filled.temperature == 0.5
    lane_of(model)
    filled, _ = model._prepare_generation_config(GenerationConfig(temperature=None))
    assert filled.temperature == 1.0


# -- the lane


@pytest.mark.usefixtures("small_chunks")
def test_chunks_of_the_prompt_change_nothing(model: LlamaForCausalLM) -> None:
    expected = decoded(plainly(model))
    items = answer(lane_of(model))
    assert text_of(items) == expected
    done = [item.done for item in items if isinstance(item, Prefill)]
    assert done == [0, 8, 16, 24, 32, 40, 48]
    assert {item.total for item in items if isinstance(item, Prefill)} == {50}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("length", [1, 2, 8, 9, 10, 16, 17, 18])
def test_prompts_around_the_edges_of_chunks(model: LlamaForCausalLM, length: int) -> None:
    ids = torch.tensor([IDS[:length]])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8)[0, length:].tolist()
    assert text_of(answer(lane_of(model), IDS[:length], max_new_tokens=8)) == decoded(made)


@pytest.mark.usefixtures("small_chunks")
def test_a_stop_in_the_prompt_waits_for_one_chunk(model: LlamaForCausalLM) -> None:
    generation = Generation()
    forwards: list[int] = []

    def count(_: Any, __: Any, settings: dict[str, Any]) -> None:
        forwards.append(settings["input_ids"].shape[1])
        if len(forwards) == 3:
            generation.cancel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    items = answer(lane_of(model), generation=generation)
    assert forwards == [8, 8, 8]
    assert isinstance(items[-1], Finished)
    assert items[-1].reason == "cancelled"


def test_a_stop_in_the_answer_waits_for_one_step(model: LlamaForCausalLM) -> None:
    generation = Generation()
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            generation.cancel()

    model.lm_head.register_forward_pre_hook(count)
    items = answer(lane_of(model), generation=generation)
    assert steps == 3
    assert text_of(items) == decoded(plainly(tiny_model(TOKENIZER), 2))


def test_a_stop_string_costs_no_step_more(model: LlamaForCausalLM) -> None:
    made = plainly(model)
    steps: list[int] = []
    model.lm_head.register_forward_pre_hook(lambda *_: steps.append(1))
    stop = decoded(made[:5])[-1]
    shown = decoded(made).partition(stop)[0]
    items = answer(lane_of(model), sampling=Sampling(temperature=0, stop=(stop,)))
    assert text_of(items) == shown
    assert isinstance(items[-1], Finished)
    assert (items[-1].stopped_by, items[-1].usage.completion_tokens) == (stop, len(steps))
    assert len(steps) <= 5


def test_the_templates_own_stops_end_it_without_a_word(model: LlamaForCausalLM) -> None:
    stop = decoded(plainly(model)[:5])[-1]
    items = answer(lane_of(model), stops=(stop,))
    assert isinstance(items[-1], Finished)
    assert (items[-1].reason, items[-1].stopped_by) == ("stop", None)


@pytest.mark.parametrize("makers", ["one", "several", "none"])
def test_any_end_id_ends_it_and_is_not_shown(model: LlamaForCausalLM, makers: str) -> None:
    """Only one of several EOS ids was honoured elsewhere (textgen 5885); and some configs name none at all."""
    made = plainly(model)
    end = made[4]
    assert end not in made[:4]
    tokenizer = byte_level_bpe()
    if makers == "none":
        model.generation_config.eos_token_id = None
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    else:
        model.generation_config.eos_token_id = end if makers == "one" else [TOKENIZER.eos_token_id, end]
    items = answer(lane_of(model, tokenizer))
    assert text_of(items) == decoded(made[:4])
    assert isinstance(items[-1], Finished)
    assert (items[-1].reason, items[-1].usage.completion_tokens) == ("stop", 4)


def test_stop_strings_of_the_makers_are_matched_on_text(model: LlamaForCausalLM) -> None:
    """`generate` refuses them without a tokenizer."""
    whole = decoded(plainly(model))
    model.generation_config.stop_strings = [whole[6:8]]
    items = answer(lane_of(model))
    assert text_of(items) == whole.partition(whole[6:8])[0]


def test_an_answer_never_leaves_the_context(model: LlamaForCausalLM) -> None:
    items = answer(lane_of(model), [20] * (CONTEXT_TOKENS - 3), max_new_tokens=100)
    assert isinstance(items[-1], Finished)
    assert (items[-1].reason, items[-1].usage.completion_tokens) == ("length", 3)


@pytest.mark.usefixtures("small_chunks")
def test_recurrent_models_read_their_prompt_in_one_go() -> None:
    """Their layers take a whole prompt or one token; a second chunk would start from nothing, or fail."""
    config = MambaConfig(
        vocab_size=len(TOKENIZER), hidden_size=16, state_size=4, num_hidden_layers=2, pad_token_id=0, bos_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MambaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    expected = decoded(plainly(model))  # type: ignore[arg-type]
    items = answer(lane_of(model))
    assert text_of(items) == expected
    assert [item.done for item in items if isinstance(item, Prefill)] == [0]


@pytest.fixture
def library_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0),
        Sampling(temperature=1, top_p=1, top_k=0, min_p=0, repetition_penalty=1),
        Sampling(temperature=0.8, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.3, seed=1),
        Sampling(temperature=1e-5),
        Sampling(temperature=100),
        Sampling(top_k=100_000),
    ],
)
@pytest.mark.parametrize("makers", [{}, {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_length": 4096}])
def test_the_library_has_nothing_to_say(
    model: LlamaForCausalLM, sampling: Sampling, makers: dict[str, Any], library_log: pytest.LogCaptureFixture
) -> None:
    model.generation_config.update(**makers)
    library_log.clear()
    lane = lane_of(model)
    lane.warm_up()
    items = answer(lane, sampling=sampling)
    assert isinstance(items[-1], Finished)
    assert library_log.messages == []


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (MemoryError(), "memory ran out"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "memory ran out"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), "memory ran out"),
        (RuntimeError("probability tensor contains inf"), "probability tensor contains inf"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_failures_in_words(raised: Exception, words: str) -> None:
    assert words in str(explained(raised))


# -- turns


def test_a_turn_computes_only_what_is_new(model: LlamaForCausalLM) -> None:
    """After retries and edits in the middle too, and what is said is what would have been said from scratch."""
    lane = Lane(model, TOKENIZER, cache_bytes=10**8)
    said = plainly(model)
    turns = [
        (IDS, 0),
        (IDS, len(IDS) - 1),  # a retry
        ([*IDS, *said[:-1], 5, 6], len(IDS) + len(said) - 1),
        ([*IDS[:30], 99, *IDS[31:]], 30),  # an edit
        ([*IDS[:30], 99, *IDS[31:], 7], len(IDS)),
        ([99, *IDS], 0),
    ]
    for ids, cached_tokens in turns:
        items = answer(lane, ids)
        assert text_of(items) == text_of(answer(lane_of(model), ids))
        assert isinstance(items[-1], Finished)
        assert (items[-1].usage.cached_tokens, items[-1].usage.prompt_tokens) == (cached_tokens, len(ids))
        assert [item.done for item in items if isinstance(item, Prefill)] == [0, cached_tokens][
            : 1 + bool(cached_tokens)
        ]


@pytest.mark.usefixtures("small_chunks")
def test_what_was_read_before_a_stop_is_known_at_the_next_try(model: LlamaForCausalLM) -> None:
    lane = Lane(model, TOKENIZER, cache_bytes=10**8)
    generation = Generation()
    hook = model.lm_head.register_forward_pre_hook(lambda *_: generation.cancel())
    answer(lane, generation=generation)
    hook.remove()
    items = answer(lane)
    assert isinstance(items[-1], Finished)
    assert items[-1].usage.cached_tokens == 8
    assert text_of(items) == decoded(plainly(model))


def test_after_a_failure_nothing_of_it_is_used(model: LlamaForCausalLM) -> None:
    lane = Lane(model, TOKENIZER, cache_bytes=10**8)
    hook = model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        answer(lane)
    hook.remove()
    items = answer(lane)
    assert isinstance(items[-1], Finished)
    assert items[-1].usage.cached_tokens == 0
    assert text_of(items) == decoded(plainly(model))


def test_a_seed_in_half_precision_starts_from_scratch(model: LlamaForCausalLM) -> None:
    """What was computed in other chunks is rounded otherwise, by so much that another token may win."""
    lane = Lane(model.to(torch.bfloat16), TOKENIZER, cache_bytes=10**8)
    seeded = Sampling(temperature=1, seed=3)
    first = answer(lane, sampling=seeded)
    again = answer(lane, sampling=seeded)
    assert text_of(first) == text_of(again)
    assert isinstance(again[-1], Finished)
    assert again[-1].usage.cached_tokens == 0


@pytest.mark.usefixtures("small_chunks")
def test_others_get_a_step_between_any_two_chunks_and_tokens(model: LlamaForCausalLM) -> None:
    lane = lane_of(model)
    forwards: list[str] = []
    model.register_forward_pre_hook(lambda *_: forwards.append("mine"))

    def others() -> bool:
        forwards.append("theirs")
        return True

    generation, seen = Generation(), list[Item]()
    generation.subscribe(seen.append)
    sampling = Sampling(temperature=0)
    lane.answer(
        lane.answers.open(
            Prompt(IDS, 0, False), sampling, max_new_tokens=12, stops=(), generation=generation,
            stopwatch=Stopwatch(0.0),
        ),
        others=others,
    )  # fmt: skip
    assert text_of(seen) == decoded(plainly(tiny_model(TOKENIZER)))
    assert "mine mine" not in " ".join(forwards)
    assert forwards.count("mine") == 12 + 12  # 49 of 50 ids in chunks of four, the rest with the first of 12 tokens
