"""Reasoning blocks over text that comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.reasoning import Part, ReasoningParser
from tests.plain import chunked, common_prefix, split


def joined(parts: list[Part]) -> tuple[str, str]:
    assert all(text for _, text in parts), "an empty part"
    kinds = [kind for kind, _ in parts]
    assert kinds == sorted(kinds), "reasoning after the answer has begun"
    return tuple("".join(text for kind, text in parts if kind == wanted) for wanted in ("reasoning", "text"))


def parse(pieces: list[str], opened: bool = False) -> tuple[str, str]:
    parser = ReasoningParser(opened=opened)
    parts = [part for piece in pieces for part in parser.add(piece)]
    return joined(parts + parser.finish())


CASES = {
    "plain": (["Hello"], "", "Hello"),
    "one block": (["<think>hm</think>ok"], "hm", "ok"),
    # vllm-mlx 677
    "tags split anywhere": (["<th", "ink>h", "m</", "thi", "nk>", "ok"], "hm", "ok"),
    # vllm 43933: the answer was dropped
    "end tag and answer in one piece": (["<think>", "x</think>Answer"], "x", "Answer"),
    "never closed": (["<think>still thinking"], "still thinking", ""),
    "looks like a tag": (["a < b, <thing> and <thin", "g>"], "", "a < b, <thing> and <thing>"),
    # a tag in back-ticks was taken for real
    "mentioned inside code": (["Use `<think>` to think."], "", "Use `<think>` to think."),
    "half a tag at the end": (["ok <th"], "", "ok <th"),
    "nothing but half a tag": (["  <th"], "", "  <th"),
    "a second block stays text": (["<think>a</think>b <think>c</think>"], "a", "b <think>c</think>"),
    # models that write a newline after each tag
    "white space around the block": (["<think>\nhm\n</think>\n\nok"], "hm", "ok"),
    "white space before the block": (["\n\n", " <think>", "hm", " \n", "</think>", "\n", " ok "], "hm", "ok "),
    "white space within stays": (["<think>a \n", " b</think>c\n\n d"], "a \n b", "c\n\n d"),
    "an empty block": (["<think>\n\n</think>\n\n", "ok"], "", "ok"),
    "half a closing tag at the end": (["<think> ", "a </th"], "a </th", ""),
    "white space and no block": (["\n ", " Hi "], "", "\n  Hi "),
    "nothing but white space": ([" \n", "\n"], "", " \n\n"),
    "a closing tag alone": (["a</think>b"], "", "a</think>b"),
    "nothing": ([""], "", ""),
}


@pytest.mark.parametrize(("pieces", "reasoning", "answer"), CASES.values(), ids=CASES.keys())
def test_splits_reasoning_from_answer(pieces: list[str], reasoning: str, answer: str) -> None:
    assert parse(pieces) == (reasoning, answer)
    assert parse(list("".join(pieces))) == (reasoning, answer)


def test_a_block_that_the_prompt_has_opened() -> None:
    """Templates of some reasoning models end in <think>: the model writes the closing tag only."""
    assert parse(["hm", "</think>", "ok"], opened=True) == ("hm", "ok")
    assert parse(["\n", " hm", " \n"], opened=True) == ("hm", "")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", " ", "\n", "a", "<", ">", "é"])),
    st.lists(st.integers(0, 100)),
    st.booleans(),
)
def test_pieces_give_what_the_whole_text_gives(words: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(words)
    assert parse(chunked(text, cuts), opened) == split(text, opened)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<th", "</th", " ", "\n", "a", "bc"])), st.booleans())
def test_only_what_may_be_an_edge_waits(words: list[str], opened: bool) -> None:
    """What is certain: what comes of the text whatever follows it."""
    parser = ReasoningParser(opened=opened)
    parts: list[Part] = []
    text = ""
    for word in words:
        parts += parser.add(word)
        text += word
        endings = ["", "x", "<think>x", "think>x", "ink>x", "</think>x", "/think>x", "hink>x", "k>x", ">x"]
        futures = [split(text + ending, opened) for ending in endings]
        assert joined(parts) == tuple(common_prefix(list(texts)) for texts in zip(*futures, strict=True))


def test_endless_white_space_before_a_block_is_kept_once() -> None:
    parser = ReasoningParser()
    assert not any(parser.add("\n") for _ in range(100_000))
    assert parser.add("a") == [("text", "\n" * 100_000 + "a")]


def test_other_tags() -> None:
    parser = ReasoningParser("[THINK]", "[/THINK]")
    assert parser.add("[THINK]hm[/THINK]<think>") == [("reasoning", "hm"), ("text", "<think>")]
    with pytest.raises(ValueError, match="white space"):
        ReasoningParser(open=" ")
