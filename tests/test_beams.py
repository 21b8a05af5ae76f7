"""Beam search while it runs: what is settled never changes, and is in the end what plain beam search answers."""

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, GenerationMixin, LlamaForCausalLM

from streaming import beams
from streaming.beams import BeamSearch
from tests.tiny import tiny_model
from tests.tokenizers import byte_level_bpe

TOKENIZER = byte_level_bpe()
PROMPT = list(range(10, 30))
ENDS = list(range(300, 420))  # so many ids that end an answer that hypotheses do finish


class Steps:
    """What each step has settled, and what led beyond it. Ends the search at step `until`."""

    def __init__(self, until: int = 0) -> None:
        self.settled: list[int] = []
        self.seen: list[tuple[list[int], list[int]]] = []
        self._until = until

    def __call__(self, settled: list[int], leading: list[int]) -> bool:
        self.settled = self.settled + settled
        self.seen.append((self.settled, leading))
        return len(self.seen) == self._until


def search(model: LlamaForCausalLM, on_step: Any = None, **how: Any) -> list[int]:
    """The ids that beam search gives; with `on_step`, a watched one."""
    if on_step is not None:
        how["custom_generate"] = BeamSearch(on_step)
    ids = torch.tensor([PROMPT])
    torch.manual_seed(3)
    how = {"num_beams": 3, "max_new_tokens": 12, "do_sample": False} | how
    made: list[int] = model.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, len(PROMPT) :].tolist()
    return made


@settings(max_examples=25)
@given(
    seed=st.integers(0, 50),
    num_beams=st.integers(2, 5),
    length_penalty=st.sampled_from([-1.0, 0.0, 1.0, 2.5]),
    early_stopping=st.sampled_from([False, True, "never"]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    sampled=st.booleans(),
    ends=st.sampled_from([2, ENDS]),
)
def test_what_is_settled_joined_is_the_answer_of_plain_beam_search(
    seed: int,
    num_beams: int,
    length_penalty: float,
    early_stopping: Any,
    repetition_penalty: float,
    sampled: bool,
    ends: Any,
) -> None:
    model = tiny_model(TOKENIZER, seed)
    how: dict[str, Any] = {"num_beams": num_beams, "do_sample": sampled, "eos_token_id": ends, "pad_token_id": 0}
    how |= {"length_penalty": length_penalty, "early_stopping": early_stopping}
    how |= {"repetition_penalty": repetition_penalty, **({"top_k": 0} if sampled else {})}
    expected = search(model, **how)
    steps = Steps()
    assert search(model, steps, **how) == expected
    assert steps.settled == expected
    for settled, _ in steps.seen:
        assert settled == expected[: len(settled)]
    assert steps.seen[-1][1] == []


class _Naive(beams._Watched):
    """What one would write first: the common beginning of the running hypotheses, which alone are easily seen."""

    def _settle(self, running: list[list[int]]) -> bool:
        self._best = []
        return super()._settle(running)


def test_a_finished_hypothesis_that_wins_is_lost_where_only_the_running_ones_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two beams agree on a token, and show it; the answer is a third text, which had ended before."""
    wrong = []
    for seed in range(12):
        model = tiny_model(TOKENIZER, seed)
        how: dict[str, Any] = {"num_beams": 2, "eos_token_id": ENDS, "pad_token_id": 0}
        expected = search(model, **how)
        naive, right = Steps(), Steps()
        with monkeypatch.context() as patch:
            patch.setattr(beams, "_Watched", _Naive)
            search(model, naive, **how)
        search(model, right, **how)
        before_the_end = naive.seen[-2][0] if len(naive.seen) > 1 else []
        if before_the_end != expected[: len(before_the_end)]:
            wrong.append(seed)
        assert right.settled == expected
    assert wrong, "none of these models has such a case: look for one that has"


def test_what_leads_is_the_running_text_or_the_finished_one_that_is_better() -> None:
    """As the search would answer if it had to stop there."""
    model = tiny_model(TOKENIZER, 1)
    steps = Steps()
    search(model, steps, num_beams=4, max_new_tokens=8)
    for count, (settled, leading) in enumerate(steps.seen[:-1], 1):
        assert settled + leading == search(model, num_beams=4, max_new_tokens=count)


def test_true_ends_the_search_in_the_same_step() -> None:
    model = tiny_model(TOKENIZER)
    forwards: list[int] = []
    model.lm_head.register_forward_pre_hook(lambda *_: forwards.append(1))
    steps = Steps(until=4)
    search(model, steps)
    assert (len(forwards), len(steps.seen)) == (4, 4)


def test_the_cache_goes_with_what_is_written() -> None:
    """Its first row, for the next turn of the conversation."""
    model = tiny_model(TOKENIZER)
    for until in (3, 0):
        cache, steps = DynamicCache(config=model.config), Steps(until)
        watched = BeamSearch(steps)
        search(model, custom_generate=watched, cache=cache)
        cache.batch_select_indices(torch.tensor([0]))
        ids = [*PROMPT, *watched.written][: cache.get_seq_length()]
        assert len(ids) == cache.get_seq_length() > len(PROMPT)
        fresh = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(input_ids=torch.tensor([ids]), cache=fresh, use_cache=True)
        for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
            assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
            assert torch.allclose(ours.values, theirs.values, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"num_beams": 1}, "at least 2"),
        ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, "groups"),
        ({"num_beams": 4, "force_words_ids": [[5]]}, "constraints"),
        ({"inputs": torch.tensor([PROMPT, PROMPT])}, "one by one"),
    ],
)
def test_what_cannot_be_streamed_is_refused_before_anything_is_computed(how: dict[str, Any], words: str) -> None:
    """With a loop of one's own, generate would run plain beams in the place of groups, without a word."""
    model = tiny_model(TOKENIZER)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was asked"))
    how = {"inputs": torch.tensor([PROMPT]), "num_beams": 3, "max_new_tokens": 4} | how
    with pytest.raises(ValueError, match=words):
        model.generate(attention_mask=torch.ones_like(how["inputs"]), custom_generate=BeamSearch(Steps()), **how)


def test_private_names_that_the_search_is_watched_by() -> None:
    """An upgrade must fail here, loudly."""
    hooks = ("_get_running_beams_for_next_iteration", "_update_finished_beams", "_beam_search_has_unfinished_sequences")
    loop = inspect.getsource(GenerationMixin._beam_search)
    places = [loop.index(f"self.{hook}(") for hook in hooks]
    assert places == sorted(places)
    assert loop.index("reorder_cache(") in range(places[1], places[2])
    finishing = inspect.signature(GenerationMixin._update_finished_beams).parameters
    assert {"decoder_prompt_len", "cur_len", "length_penalty"} <= finishing.keys()
    for name in ("decoder_prompt_len", "cur_len", "length_penalty"):
        assert f"{name}={name}" in loop[places[1] : places[2]], "it is read from the keywords"


def test_the_model_is_left_as_it_was() -> None:
    model = tiny_model(TOKENIZER)
    before = dict(vars(model))
    expected = search(model)
    search(model, Steps(until=2))
    assert vars(model).keys() == before.keys()
    assert search(model) == expected


def test_common_beginnings() -> None:
    assert beams._agreed([[1, 2, 3], [1, 2], [1, 2, 4]]) == [1, 2]
    assert beams._agreed([[1], []]) == []
