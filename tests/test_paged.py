"""The library's continuous batching as we use it: pages, steps, and every private name that they hang on."""

import inspect
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from transformers import ContinuousBatchingConfig, MistralConfig, MistralForCausalLM
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import BlockLedger
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchingManager,
    ContinuousBatchProcessor,
)
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState
from transformers.generation.continuous_batching.scheduler import Scheduler

from streaming.engines.paged import PAGE_TOKENS, PagedBatch, Step, disagreement, page_bytes, pages_for
from tests.tiny import tiny_model
from tests.tokenizers import byte_level_bpe

LONG = [3 + place * 7 % 90 for place in range(3 * PAGE_TOKENS + 5)]
SHORT = [5, 9, 20, 31]


@pytest.fixture
def model() -> Any:
    return tiny_model(byte_level_bpe())


@pytest.fixture
def paged(model: Any) -> PagedBatch:
    return batch_of(model)


def batch_of(model: Any, pages: int = 20, max_rows: int = 4) -> PagedBatch:
    return PagedBatch(model, pages=pages, max_tokens=64, max_rows=max_rows)


def best(_: list[str], logits: torch.Tensor) -> list[int]:
    return list(logits.argmax(-1).tolist())


def write(paged: PagedBatch, prompts: dict[str, list[int]], tokens: int, budget: int = 64) -> dict[str, list[int]]:
    """Greedy continuations of so many tokens, all in one batch."""
    written: dict[str, list[int]] = {name: [] for name in prompts}
    for name, ids in prompts.items():
        paged.add(name, ids)
    while len(paged):
        for step in paged.step(budget, best):
            if step.token is not None:
                written[step.name].append(step.token)
                if len(written[step.name]) == tokens:
                    paged.end(step.name)
    return written


def plainly(model: Any, ids: list[int], tokens: int) -> list[int]:
    made = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False, max_new_tokens=tokens
    )
    return list(made[0, len(ids) :].tolist())


# -- names of the library


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (ContinuousBatchingManager._create_batch_processor, ["self"]),
        (ContinuousBatchProcessor.prepare_next_batch, ["self"]),
        (ContinuousBatchProcessor._generation_step, ["self", "model"]),
        (ContinuousBatchProcessor.update_batch, ["self"]),
        (ContinuousBatchProcessor.reset, ["self"]),
        (ModelRunner._sample, ["self", "scores", "output_ids"]),
        (Scheduler.add_waiting_request, ["self", "state"]),
        (Scheduler.set_request_cancellation, ["self", "request_id"]),
        (Scheduler.clear_cancelled_requests, ["self"]),
        (PagedAttentionCache.reset, ["self"]),
    ],
)
def test_functions_that_we_call_or_replace(function: Callable[..., Any], parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_settings_and_states_that_we_use(paged: PagedBatch) -> None:
    assert {"request_id", "initial_tokens", "max_new_tokens", "position_offset"} <= RequestState.__annotations__.keys()
    assert {"state", "has_new_token", "query_length"} <= set(FutureRequestState.__slots__)
    assert {"page_size", "num_blocks", "max_batch_tokens", "safety_margin"} <= set(vars(ContinuousBatchingConfig()))
    assert {"cached_blocks", "hash_to_block", "block_to_hash"} <= set(vars(BlockLedger()))
    processor = paged._processor
    assert processor.cache.use_prefix_sharing is True
    assert processor.max_batch_tokens == 64
    assert list(processor.cache.cache_allocators) == ["full_attention"]
    allocator = processor.cache.cache_allocators["full_attention"]
    assert allocator.match_prefix_blocks(LONG) == []
    assert processor.cache.pool.count_free_blocks(allocator.index) == 0
    assert processor.inputs_and_outputs.requests_in_batch == []


def test_no_thread_is_started_and_the_model_stays_as_it_was(model: Any, paged: PagedBatch) -> None:
    assert model.config._attn_implementation == "sdpa"
    write(paged, {"a": SHORT}, 2)
    assert plainly(model, SHORT, 5) == plainly(tiny_model(byte_level_bpe()), SHORT, 5)


def test_a_page_takes_what_the_library_says(model: Any, paged: PagedBatch) -> None:
    cache, inputs = paged._processor.cache, paged._processor.inputs_and_outputs
    in_cache = cache.num_sectors * cache.bytes_per_sector / cache.num_blocks
    in_mask = inputs.attention_mask["full_attention"].nbytes / (cache.max_tokens_read + 64) * PAGE_TOKENS
    assert page_bytes(model, 64) == in_cache + in_mask
    assert paged.pages == 20
    assert [pages_for(tokens) for tokens in (1, PAGE_TOKENS, PAGE_TOKENS + 1)] == [1, 1, 2]


def test_memory_is_taken_as_it_is_used(model: Any) -> None:
    """torch.zeros writes every byte: a cache of 2 GB took ten seconds of a start, and 2 GB, for one short chat."""
    used = psutil.Process().memory_info().rss
    paged = PagedBatch(model, pages=100_000, max_tokens=4, max_rows=4)
    assert paged._processor.cache.cache_tensor.nbytes > 800_000_000
    assert write(paged, {"a": SHORT}, 5)["a"] == plainly(model, SHORT, 5)
    assert psutil.Process().memory_info().rss - used < 400_000_000


# -- steps


@pytest.mark.parametrize("budget", [4, 7, 64])
def test_many_at_once_say_what_each_says_alone(model: Any, paged: PagedBatch, budget: int) -> None:
    prompts = {"a": LONG, "b": SHORT, "c": LONG[::-1], "d": [7]}
    written = write(paged, prompts, 12, budget)
    assert written == {name: plainly(model, ids, 12) for name, ids in prompts.items()}


def test_whoever_writes_goes_first_and_a_prompt_takes_what_is_left(paged: PagedBatch) -> None:
    paged.add("a", SHORT)
    paged.step(64, best)
    paged.add("b", LONG)
    steps = paged.step(11, best)
    assert [(step.name, step.computed, step.token is None) for step in steps] == [("a", 1, False), ("b", 10, True)]
    assert steps[1].position == 10


def test_the_chooser_gets_a_row_for_each_whose_token_is_due(paged: PagedBatch) -> None:
    seen: list[tuple[list[str], tuple[int, ...], torch.dtype]] = []

    def choose(names: list[str], logits: torch.Tensor) -> list[int]:
        seen.append((names, tuple(logits.shape), logits.dtype))
        return [11 + place for place in range(len(names))]

    paged.add("a", SHORT)
    paged.add("b", LONG)
    steps = paged.step(20, choose)
    assert steps == [Step("a", 4, 4, 11), Step("b", 16, 16, None)]
    width = len(byte_level_bpe())
    assert seen == [(["a"], (1, width), torch.float32)]


def test_a_step_with_nothing_to_do_is_an_error(paged: PagedBatch) -> None:
    with pytest.raises(RuntimeError, match="no room"):
        paged.step(64, best)


# -- pages


def free_pages(paged: PagedBatch) -> int:
    cache = paged._processor.cache
    return round(cache.compute_free_capacity() * cache.num_blocks)


def test_the_next_turn_computes_what_is_new(model: Any, paged: PagedBatch) -> None:
    """Answers too are shared, in whole pages."""
    said = write(paged, {"one": LONG}, 40)["one"]
    following = [*LONG, *said, 8, 9]
    paged.add("two", following)
    (step,) = paged.step(64, best)
    assert step.position - step.computed == (len(LONG) + 39) // PAGE_TOKENS * PAGE_TOKENS
    assert step.token == plainly(model, following, 1)[0]


def test_ending_frees_at_once_in_the_middle_of_a_prompt_too(paged: PagedBatch) -> None:
    paged.add("a", LONG)
    paged.step(10, best)
    assert free_pages(paged) == 19
    paged.end("a")
    assert (len(paged), free_pages(paged), paged.kept_pages) == (0, 20, 0)
    paged.add("b", LONG)
    paged.end("b")  # before its first step
    with pytest.raises(RuntimeError):
        paged.step(10, best)


def test_the_least_recently_used_pages_are_forgotten(paged: PagedBatch) -> None:
    prompts = {name: [3 + (place * step) % 90 for place in range(70)] for name, step in (("a", 1), ("b", 3), ("c", 11))}
    for name, ids in prompts.items():
        write(paged, {name: ids}, 1)
    assert paged.kept_pages == 6
    paged.forget(6, [])
    assert paged.kept_pages == 6
    paged.forget(3, prompts["a"])  # whose pages are about to be used, and do not count
    assert paged.kept_pages == 5
    assert [reused(paged, f"again {name}", prompts[name]) for name in "cab"] == [2, 2, 0]
    paged.forget(0, [])
    assert (paged.kept_pages, free_pages(paged)) == (0, 20)


def reused(paged: PagedBatch, name: str, ids: list[int]) -> int:
    paged.add(name, ids)
    step = paged.step(64, best)[0]
    paged.end(name)
    return (step.position - step.computed) // PAGE_TOKENS


def test_after_a_failure_all_is_as_new(model: Any, paged: PagedBatch) -> None:
    def broken(*_: Any) -> list[int]:
        raise ZeroDivisionError

    write(paged, {"before": LONG}, 3)
    paged.add("a", LONG)
    with pytest.raises(ZeroDivisionError):
        paged.step(64, broken)
    paged.clear()
    assert (len(paged), free_pages(paged), paged.kept_pages) == (0, 20, 0)
    assert write(paged, {"b": LONG}, 5)["b"] == plainly(model, LONG, 5)


def test_all_of_the_cache_can_be_used(model: Any) -> None:
    paged = batch_of(model, pages=4)
    ids = LONG[: 3 * PAGE_TOKENS]
    assert write(paged, {"a": ids}, PAGE_TOKENS + 1)["a"] == plainly(model, ids, PAGE_TOKENS + 1)


# -- models


def test_agreement_with_a_plain_forward_pass(model: Any, paged: PagedBatch) -> None:
    assert disagreement(paged, model, LONG) < 1e-5
    assert (len(paged), paged.kept_pages) == (0, 0)


def test_a_model_that_computes_otherwise_is_found_out(paged: PagedBatch) -> None:
    """Attention of a model's own would ignore the pages and write nonsense, without an error."""
    other = tiny_model(byte_level_bpe(), seed=1)
    assert disagreement(paged, other, LONG) > 0.1


def test_sliding_windows_are_right_too() -> None:
    config = MistralConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=16, max_position_embeddings=256,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = MistralForCausalLM(config).eval()
    paged = batch_of(model)
    assert disagreement(paged, model, LONG) < 1e-5
    paged.forget(0, LONG)
    assert paged.kept_pages == 0
