"""Sampling becomes a generation config: what is not said stays as the model's makers set it, and nothing warns."""

from typing import Any

import pytest
from transformers import GenerationConfig

from streaming.engines.decoding import request_config
from streaming.messages import Beam, PromptLookup, Sampling

MAKERS = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.1}


def config(sampling: Sampling, eos_ids: tuple[int, ...] = (2,), **makers: Any) -> GenerationConfig:
    return request_config(GenerationConfig(**makers), list(eos_ids), sampling, 10)


def settings(config: GenerationConfig, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in names)


def test_what_is_not_said_stays_as_the_makers_set_it() -> None:
    made = config(Sampling(), **MAKERS)
    assert {name: getattr(made, name) for name in MAKERS} == MAKERS


def test_what_is_said_wins() -> None:
    said = {"temperature": 1.5, "top_p": 0.5, "top_k": 0, "min_p": 0.1, "repetition_penalty": 1.2}
    made = config(Sampling(**said), **MAKERS)
    assert {name: getattr(made, name) for name in said} == said


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-9, 5e-324])
def test_temperature_zero_is_greedy_whatever_else_is_said(temperature: float) -> None:
    """Logits divided by next to nothing overflow, and sampling from infinities raises."""
    made = config(Sampling(temperature=temperature, top_p=0.5, top_k=3, min_p=0.1), **MAKERS)
    assert settings(made, "do_sample", "temperature", "top_p", "top_k", "min_p") == (False, None, None, None, None)
    assert made.repetition_penalty == 1.1


@pytest.mark.parametrize("said", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}])
def test_asking_for_chance_makes_a_greedy_model_sample(said: dict[str, Any]) -> None:
    assert config(Sampling(**said), do_sample=False, temperature=0.0).do_sample is True
    assert config(Sampling(**said), do_sample=False, temperature=0.0).temperature


def test_a_seed_alone_does_not() -> None:
    assert config(Sampling(seed=3), do_sample=False).do_sample is False


def test_whole_numbers_are_taken() -> None:
    """The library's processors insist on floats, and JSON writes 1 for 1.0."""
    made = config(Sampling(temperature=1, top_p=1, min_p=0, repetition_penalty=1))
    assert [type(value) for value in settings(made, "temperature", "top_p", "min_p", "repetition_penalty")] == [
        float
    ] * 4


def test_the_length_is_ours() -> None:
    """Many old configs carry a max_length, and the library then warns at every answer."""
    made = config(Sampling(), max_length=4096, max_new_tokens=3)
    assert settings(made, "max_length", "max_new_tokens") == (None, 10)


def test_all_end_ids_count_and_padding_is_one_of_them() -> None:
    made = config(Sampling(), (7, 9))
    assert settings(made, "eos_token_id", "pad_token_id") == ([7, 9], 7)
    assert config(Sampling(), (7, 9), pad_token_id=5).pad_token_id == 5
    assert settings(config(Sampling(), ()), "eos_token_id", "pad_token_id") == (None, None)


def test_what_a_stream_cannot_have_is_left_out() -> None:
    made = config(Sampling(), num_beams=4, num_return_sequences=2, stop_strings=["x"], cache_implementation="static")
    names = ("num_beams", "num_return_sequences", "stop_strings", "cache_implementation")
    assert settings(made, *names) == (1, 1, None, None)


def test_how_tokens_are_found_is_for_the_request_to_say() -> None:
    """Whatever the makers have set: beams that nobody asked for, or an assistant that is not here."""
    makers = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "prompt_lookup_num_tokens": 3}
    names = (*makers, "num_beam_groups", "force_words_ids")
    assert settings(config(Sampling(), **makers, force_words_ids=[[1]]), *names) == (1, *[None] * 5)
    made = config(Sampling(strategy=Beam(3, -1)), **makers, num_beam_groups=2)
    assert settings(made, *names) == (3, -1.0, False, None, None, None)
    assert settings(config(Sampling(strategy=PromptLookup(7)), **makers), *names) == (1, None, None, 7, None, None)


def test_the_makers_config_is_not_touched() -> None:
    makers = GenerationConfig(**MAKERS)
    before = makers.to_dict()
    request_config(makers, [2], Sampling(temperature=0), 10)
    assert makers.to_dict() == before
