"""Directives in a message direct the demonstration; anything else is answered with a page of Markdown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.engines.script import ANSWER, PACE, Fail, ReadPrompt, Say, Step, Think, demo, words
from streaming.messages import Message


def steps(text: str) -> list[Step]:
    return list(demo([Message("user", "before"), Message("assistant", "answer"), Message("user", text)]))


@given(st.text())
def test_words_joined_are_the_text(text: str) -> None:
    assert "".join(words(text)) == text


@pytest.mark.parametrize("text", ["Hello", "tell me about /say 3", "/unknown 3", "/say much", "/wait"])
def test_without_a_directive_the_answer_is_the_page_of_markdown(text: str) -> None:
    assert steps(text) == [Say(ANSWER, PACE)]


def test_so_many_words_at_such_a_pace() -> None:
    (say,) = steps("/say 25 tokens at 200 tok/s")
    assert isinstance(say, Say)
    assert (len(words(say.text)), say.tokens_per_s) == (25, 200)


def test_text_comes_back_as_it_stands() -> None:
    text = "  /say 3\n\n\tindented\n<b>x</b>  \n"
    assert steps(f"/pace 500\n/text\n{text}") == [Say(text, 500)]


def test_failing_after_some_words() -> None:
    assert steps("/fail after 2\n/text\na b c") == [Say("a b ", PACE), Fail("the script says so")]
    assert steps("/fail") == [Say("", PACE), Fail("the script says so")]


def test_waiting_and_thinking_come_first() -> None:
    wait, think, say = steps("/wait 1.5 s\n/think 2s\n/text\na")
    assert wait == ReadPrompt(1.5)
    assert isinstance(think, Think)
    assert len(words(think.text)) == 2 * PACE
    assert say == Say("a", PACE)
