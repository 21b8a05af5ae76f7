"""A server's text, cut anywhere and in either form, must read as our own models' does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.engines.transcript import Transcript
from streaming.events import Delta, ReasoningDelta, TextDelta
from tests.plain import chunked, cut, may_begin_a_stop, split

TEXT = st.text(st.sampled_from("<think>/ab \n😀é"), max_size=40)
THOUGHT = st.one_of(
    TEXT, TEXT.map(lambda text: f"<think>{text}"), st.tuples(TEXT, TEXT).map("<think>{0[0]}</think>{0[1]}".format)
)
CUTS = st.lists(st.integers(0, 200), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("<think>ab "), min_size=1, max_size=5), max_size=3)


def joined(deltas: list[Delta]) -> tuple[str, str]:
    return (
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
    )


@given(THOUGHT, CUTS, STOPS)
def test_text_with_tags_in_it_is_our_own_parse_of_it(text: str, cuts: list[int], stops: list[str]) -> None:
    transcript = Transcript(stops)
    deltas = [delta for piece in chunked(text, cuts) for delta in transcript.add(piece)]
    whole, stopped = cut(text, stops)
    assert joined(deltas + transcript.finish()) == split(whole)
    assert transcript.stopped == stopped
    assert all(delta.text for delta in deltas)


@given(st.text(st.sampled_from("ab \n<é"), min_size=1), TEXT, CUTS, CUTS)
def test_reasoning_that_comes_apart_is_what_tags_would_have_made_of_it(
    thought: str, answer: str, cuts: list[int], more: list[int]
) -> None:
    transcript = Transcript()
    deltas = [delta for piece in chunked(thought, cuts) if piece for delta in transcript.add(piece, reasoning=True)]
    deltas += [delta for piece in chunked(answer, more) if piece for delta in transcript.add(piece)]
    assert joined(deltas + transcript.finish()) == split(f"<think>{thought}</think>{answer}")


@given(TEXT, CUTS, st.text(st.sampled_from("ab"), min_size=1, max_size=4))
def test_only_what_may_begin_a_stop_is_withheld_from_reasoning(text: str, cuts: list[int], stop: str) -> None:
    thought = f"x{text}x"  # without an edge of white space
    transcript = Transcript([stop])
    deltas: list[Delta] = []
    seen = ""
    for piece in chunked(thought, cuts):
        deltas += transcript.add(piece, reasoning=True)
        seen += piece
        whole, stopped = cut(seen, [stop])
        shown = whole if stopped else whole.removesuffix(may_begin_a_stop(whole, [stop]))
        assert joined(deltas)[0].rstrip() == shown.rstrip()


def test_a_stop_ends_reasoning_too() -> None:
    transcript = Transcript(["END"])
    deltas = transcript.add("a E", reasoning=True) + transcript.add("ND b", reasoning=True) + transcript.add("c")
    assert joined(deltas + transcript.finish()) == ("a", "")
    assert transcript.stopped == "END"


def test_what_could_have_begun_a_stop_belongs_to_what_came_before() -> None:
    transcript = Transcript(["END"])
    deltas = transcript.add("thought EN", reasoning=True) + transcript.add("D it is")
    assert joined(deltas + transcript.finish()) == ("thought EN", "D it is")


def test_reasoning_after_the_answer_has_begun() -> None:
    transcript = Transcript()
    deltas = transcript.add("one ") + transcript.add("hm", reasoning=True) + transcript.add("<think>two</think>")
    assert joined(deltas + transcript.finish()) == ("hm", "one <think>two</think>")


@given(st.text(st.sampled_from("a😀é\ud83d\ude00"), max_size=12), CUTS)
def test_no_half_of_a_character_gets_through(text: str, cuts: list[int]) -> None:
    """JSON may carry the halves of an emoji in two pieces, and a hostile server one half alone: no file takes that."""
    transcript = Transcript()
    deltas = [delta for piece in chunked(text, cuts) for delta in transcript.add(piece)] + transcript.finish()
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert joined(deltas) == ("", whole)
    whole.encode()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<th", "ink>h", "m</", "thi", "nk>", "ok"], ("hm", "ok")),  # vllm-mlx 677
        (["<think>", "x</think>Answer"], ("x", "Answer")),  # vllm 43933: the answer is dropped
        (["<think>\nhm\n</think>\n\nok"], ("hm", "ok")),
        (["Use `<think>` to think."], ("", "Use `<think>` to think.")),
    ],
)
def test_reported_elsewhere(pieces: list[str], expected: tuple[str, str]) -> None:
    transcript = Transcript()
    deltas = [delta for piece in pieces for delta in transcript.add(piece)]
    assert joined(deltas + transcript.finish()) == expected
