"""The drawer's values: empty leaves it to the model, and a wrong one is named in words."""

import pytest

from streaming.conversation import Settings
from streaming.errors import InvalidRequest
from streaming.messages import Beam, PromptLookup, Sampling
from streaming.ui.settings import (
    BUILT_IN,
    SAMPLING_FIELDS,
    own_presets,
    read_settings,
    show_settings,
    write_settings,
)

EMPTY = ("", *[""] * len(SAMPLING_FIELDS), "", True, "Plain")


def with_field(name: str, text: str) -> tuple[object, ...]:
    values = list(EMPTY)
    values[1 + SAMPLING_FIELDS.index(name)] = text
    return tuple(values)


def test_empty_fields_leave_everything_to_the_model() -> None:
    assert read_settings(EMPTY) == Settings("", Sampling())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("temperature", "0", 0.0), ("temperature", " 0,7 ", 0.7), ("top_k", "40", 40), ("seed", "7", 7)],
)
def test_numbers_are_read(name: str, text: str, value: float) -> None:
    assert getattr(read_settings(with_field(name, text)).sampling, name) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("temperature", "warm", "Temperature is 'warm': it must be a number, or empty."),
        ("top_k", "1.5", "Top-k is '1.5': it must be a whole number, or empty."),
        ("max_new_tokens", "0", "max_new_tokens is 0"),
        ("top_p", "1.5", "top_p is 1.5"),
        ("temperature", "nan", "temperature is nan"),
        ("repetition_penalty", "0", "repetition_penalty is 0"),
    ],
)
def test_a_wrong_value_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words.replace("(", r"\(")) as caught:
        read_settings(with_field(name, text))
    assert caught.value.field == name


def test_stop_strings_are_lines_and_may_hold_newlines() -> None:
    values = (*EMPTY[:-3], "END\n\\nUser:\n\n", True, "Plain")
    assert read_settings(values).sampling.stop == ("END", "\nUser:")


def test_thinking_can_be_switched_off() -> None:
    assert read_settings((*EMPTY[:-2], False, "Plain")).sampling.chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings("Be brief.", Sampling(temperature=0.7, top_k=0, seed=3, stop=("\nUser:", "x"))),
        Settings("", Sampling(max_new_tokens=12, chat_template_kwargs={"enable_thinking": False})),
        Settings("", Sampling(strategy=Beam(3))),
        Settings("", Sampling(strategy=PromptLookup(7))),
    ],
)
def test_settings_survive_the_way_to_the_page_and_back(settings: Settings) -> None:
    assert read_settings(tuple(write_settings(settings))) == settings


@pytest.mark.parametrize(
    "values", [(None, *EMPTY[1:]), (*EMPTY[:-3], 7, True, "Plain"), (EMPTY[0], [], *EMPTY[2:]), (*EMPTY[:-1], None)]
)
def test_what_no_page_sends_is_refused(values: tuple[object, ...]) -> None:
    with pytest.raises(InvalidRequest):
        read_settings(values)


@pytest.mark.parametrize("kept", [None, "x", ["a"], {"mine": {"temperature": 1}, "broken": 3}])
def test_presets_from_an_old_or_hand_made_browser_store_do_no_harm(kept: object) -> None:
    names = [name for name, _ in own_presets(kept).choices]
    assert names[: len(BUILT_IN)] == list(BUILT_IN)
    assert set(names[len(BUILT_IN) :]) <= {"mine"}


def test_a_strategy_of_another_engine_is_shown_so_that_it_can_be_given_up() -> None:
    assert show_settings(Settings())[-1] == "Plain"
    shown = show_settings(Settings("", Sampling(strategy=Beam(4))))[-1]
    assert (shown["value"], shown["visible"]) == ("Beams 4", True)
