"""Stop strings over text that comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import InvalidRequest
from streaming.stops import StopMatcher
from tests.plain import chunked, cut, may_begin_a_stop

CASES = {
    # vllm 3574: the start of a stop was sent before the match
    "split over pieces": (["ABC", "DE", "FGH", "IJ", "KLM"], ["DEFGHIJ"], "ABC", "DEFGHIJ"),
    # koboldcpp 1031: what was withheld was lost when the text ended
    "looked like a stop, was not": (["one ", "two\nUs"], ["\nUser:"], "one two\nUs", None),
    "false start": (["a\nUs", "ing it"], ["\nUser:"], "a\nUsing it", None),
    # SwiftLM 126
    "turn marker": (["Fine.", "\n", "User", ":", " hello"], ["\nUser:"], "Fine.", "\nUser:"),
    "the earliest wins": (["x END y STOP"], ["STOP", "END"], "x ", "END"),
    "the first to be complete wins": (["ab", "c"], ["abc", "ab"], "", "ab"),
    "overlapping beginnings": (["aa", "ab"], ["aab"], "a", "aab"),
    # transformers: a stop "an" streamed " and"
    "inside a piece, with overshoot": (["you", " and", " me"], ["an"], "you ", "an"),
    "no stops": (["a", "\n", "b"], [], "a\nb", None),
    "not Latin": (["终", "止。后"], ["止。"], "终", "止。"),
    "empty pieces": (["", "a", "", "\n", "\n", ""], ["\n\n"], "a", "\n\n"),
    "two end at one place: the longest": (["xabc"], ["bc", "abc"], "x", "abc"),
    "the first to end wins over the first to begin": (["abcd"], ["abcd", "bc"], "a", "bc"),
    "one within the other's false start": (["ab", "x"], ["abcd", "bx"], "a", "bx"),
}


@pytest.mark.parametrize(("pieces", "stops", "text", "stopped"), CASES.values(), ids=CASES.keys())
def test_ends_the_text_at_the_stop(pieces: list[str], stops: list[str], text: str, stopped: str | None) -> None:
    matcher = StopMatcher(stops)
    assert "".join(map(matcher.add, pieces)) + matcher.finish() == text
    assert matcher.stopped == stopped


def test_a_false_start_is_all_that_waits() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.add("a\nUs") == "a"
    assert matcher.add("ing it") == "\nUsing it"


def test_without_stops_nothing_waits() -> None:
    matcher = StopMatcher([])
    assert [matcher.add(piece) for piece in ("a", "\n", "b")] == ["a", "\n", "b"]


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher(["."])
    assert matcher.add("a.b") == "a"
    assert matcher.add("c.") == ""
    assert matcher.finish() == ""
    assert matcher.stopped == "."


@pytest.mark.parametrize("stops", [[""], ["a", ""], [None], [b"a"]])
def test_an_empty_stop_is_refused(stops: list[str]) -> None:
    """It would end every text before it begins."""
    with pytest.raises(InvalidRequest, match="not empty") as caught:
        StopMatcher(stops)
    assert caught.value.field == "stop"


def test_one_text_is_one_stop_and_not_its_letters() -> None:
    matcher = StopMatcher("END")
    assert matcher.add("End. END") == "End. "
    assert matcher.stopped == "END"


few_letters = st.text("ab\n.", max_size=40)


@given(few_letters, st.lists(st.text("ab\n.", min_size=1, max_size=5), max_size=4), st.lists(st.integers(0, 40)))
def test_equals_the_plain_reference(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    out = read = ""
    for piece in chunked(text, cuts):
        out += matcher.add(piece)
        read += piece
        if matcher.stopped is None:
            assert read == out + may_begin_a_stop(read, stops), "more or less is withheld than can begin a stop"
    assert (out + matcher.finish(), matcher.stopped) == cut(text, stops)


def test_a_text_of_nothing_but_false_starts() -> None:
    """Searching the end of the text again with each letter is quadratic here: 2,000 letters wait all the time."""
    stop = "a" * 2_000 + "b"
    matcher = StopMatcher([stop])
    out = "".join(map(matcher.add, "a" * 50_000))
    assert len(out) == 48_000
    assert matcher.add("b") == ""
    assert matcher.stopped == stop
