"""What goes into an engine: what is refused, by which name, and that nothing is swallowed."""

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from streaming.errors import InvalidRequest
from streaming.messages import (
    Assisted,
    Beam,
    Message,
    PromptLookup,
    Sampling,
    Strategy,
    check_messages,
    strategy_from_dict,
    strategy_to_dict,
)


def test_a_message_is_a_value() -> None:
    assert Message("user", "Hi") == Message("user", "Hi", reasoning="")
    with pytest.raises(FrozenInstanceError):
        Message("user", "Hi").content = "Bye"  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_blank(text: str) -> None:
    assert Message("user", text).is_blank
    assert not Message("user", text + "x").is_blank


@pytest.mark.parametrize("role", ["wizard", "", "User", "user<|im_end|>", None, [], 1])
def test_an_unknown_role_is_refused(role: Any) -> None:
    """A role goes into the prompt as it is: `user<|im_end|>` would end a turn."""
    with pytest.raises(InvalidRequest, match="role") as refused:
        Message(role, "x")
    assert refused.value.field == "role"


@pytest.mark.parametrize(("field", "value"), [("content", None), ("content", b"x"), ("reasoning", None)])
def test_what_is_no_text_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"The {field} of the user message is not a text") as refused:
        Message("user", **({"content": "x"} | {field: value}))
    assert refused.value.field == field


def test_half_a_character_is_refused() -> None:
    """JSON can carry a lone surrogate. Tokenizers raise a TypeError for it, long after the request was accepted."""
    with pytest.raises(InvalidRequest, match="half a character"):
        Message("user", "a\ud83d")
    assert Message("user", "a\U0001f600").content == "a😀"


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    assert Message.from_dict({"role": "user", "content": parts}) == Message("user", "Hi there")


def test_reasoning_of_an_assistant() -> None:
    raw = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert Message.from_dict(raw) == Message("assistant", "Yes.", "Hm.")
    assert Message.from_dict(raw | {"reasoning_content": None}).reasoning == ""


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"content": "x"}, "messages[3].role"),
        ({"role": "wizard", "content": "x"}, "messages[3].role"),
        ({"role": ["user"], "content": "x"}, "messages[3].role"),
        ({"role": "user"}, "messages[3].content"),
        ({"role": "user", "content": None}, "messages[3].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[3].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[3].content"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[3].content"),
        ({"role": "user", "content": ["x"]}, "messages[3].content"),
    ],
)
def test_a_malformed_message_is_named_by_its_place(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Message.from_dict(raw, 3)
    assert refused.value.field == field
    assert "messages[3]" in str(refused.value)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("system", "Be brief")],
        [Message("assistant", "Hello")],
        [Message("user", "")],
        [Message("user", "   \n ")],
        [Message("user", "a"), Message("assistant", "b"), Message("user", " ")],
    ],
)
def test_nothing_to_answer(messages: list[Message]) -> None:
    """vllm 7283: an empty prompt killed the server for everybody."""
    with pytest.raises(InvalidRequest, match="nothing to answer"):
        check_messages(messages)


def test_an_empty_answer_in_the_history_is_legal() -> None:
    """An answer that was stopped while the prompt was read leaves one."""
    check_messages([Message("user", "a"), Message("assistant", ""), Message("user", "b")])


def test_sampling_leaves_everything_to_the_model() -> None:
    chosen = {item.name: getattr(Sampling(), item.name) for item in fields(Sampling)}
    assert chosen.pop("stop") == ()
    assert chosen.pop("chat_template_kwargs") == {}
    assert set(chosen.values()) == {None}


@pytest.mark.parametrize(
    "valid",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": 2**31 - 1},
        {"temperature": 0},
        {"temperature": 1.5},
        {"temperature": 100},
        {"top_p": 1},
        {"top_k": 0},
        {"top_k": 2**31 - 1},
        {"min_p": 0},
        {"min_p": 1.0},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"seed": 0},
        {"stop": ["a", " "]},
        {"stop": [f"stop {number}" for number in range(1_000)]},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_values_at_the_edge_are_taken(valid: dict[str, Any]) -> None:
    assert Sampling(**valid) == Sampling.from_dict(valid)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 2**31),
        pytest.param("max_new_tokens", 10**5000, id="a number too long for Python to write it out"),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", True),
        ("max_new_tokens", "8"),
        ("temperature", -1),
        ("temperature", 100.1),
        ("temperature", 10**400),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", 2**31),
        ("top_k", 0.5),
        ("min_p", 1.1),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 0.009),
        ("repetition_penalty", 101),
        ("repetition_penalty", -(10**400)),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 10**400),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", None),
        ("stop", 5),
        ("stop", "x" * 100_000),  # to be looked for, it keeps the model's thread, and everybody, for a quarter second
        ("stop", [f"stop {number}" for number in range(10_000)]),
        ("chat_template_kwargs", None),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    """ms-swift 10133: a bad parameter that reached the model hung this request and all later ones."""
    with pytest.raises(InvalidRequest) as refused:
        Sampling(**{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_new_tokens", 0, "max_new_tokens is 0: it must be a whole number from 1 to 2,147,483,647."),
        ("temperature", 101, "temperature is 101: it must be a number from 0 (greedy) to 100."),
        ("repetition_penalty", 0, "repetition_penalty is 0: it must be a number from 0.01 to 100 (1 is off)."),
        (
            "top_k",
            2**99,
            "top_k is a whole number of 100 bits: it must be a whole number from 0 (off) to 2,147,483,647.",
        ),
    ],
)
def test_bounds_are_told_in_words(field: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Sampling(**{field: value})
    assert str(refused.value) == words


def test_one_stop_string_is_a_list_of_one() -> None:
    assert Sampling(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_a_misspelt_setting_is_never_swallowed() -> None:
    with pytest.raises(InvalidRequest, match="'temperatur'") as refused:
        Sampling.from_dict({"temperatur": 1})
    assert refused.value.field == "temperatur"


@pytest.mark.parametrize(
    ("raw", "strategy"),
    [
        ({"beam": {}}, Beam(4, 1.0, False)),
        ({"beam": {"num_beams": 2, "length_penalty": -1, "early_stopping": "never"}}, Beam(2, -1, "never")),
        ({"prompt_lookup": {"num_tokens": 10}}, PromptLookup(10)),
        ({"assisted": {"model": "starter"}}, Assisted("starter")),
    ],
)
def test_a_strategy_has_a_form_in_plain_json(raw: dict[str, Any], strategy: Strategy) -> None:
    assert Sampling.from_dict({"strategy": raw}) == Sampling(strategy=strategy)
    assert strategy_from_dict(strategy_to_dict(strategy)) == strategy


def test_no_strategy() -> None:
    assert Sampling.from_dict({"strategy": None}) == Sampling()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("beam", "one of beam, prompt_lookup, assisted"),
        ({}, "one of beam"),
        ({"beam": {}, "prompt_lookup": {}}, "one of beam"),
        ({"beams": {}}, "no strategy 'beams'"),
        ({"beam": 4}, "must map names"),
        ({"beam": {"num_beam_groups": 2}}, "no setting 'num_beam_groups'"),
        ({"assisted": {}}, "needs model"),
        ({"assisted": {"model": " "}}, "name of the model"),
    ],
)
def test_a_strategy_in_another_form_is_refused(raw: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Sampling.from_dict({"strategy": raw})


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Beam, "num_beams", 1),
        (Beam, "num_beams", 9),
        (Beam, "num_beams", 2.0),
        (Beam, "num_beams", None),
        (Beam, "length_penalty", math.inf),
        (Beam, "length_penalty", 11),
        (Beam, "early_stopping", "always"),
        (Beam, "early_stopping", 1),
        (PromptLookup, "num_tokens", 0),
        (PromptLookup, "num_tokens", 33),
        (Assisted, "model", 7),
    ],
)
def test_a_wrong_setting_of_a_strategy_is_refused_by_its_name(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        kind(**{field: value})
    assert refused.value.field == field


def test_a_strategy_is_one_of_three() -> None:
    with pytest.raises(InvalidRequest, match="a Beam, a PromptLookup or an Assisted"):
        Sampling(strategy={"beam": {}})  # type: ignore[arg-type]
