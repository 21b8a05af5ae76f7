"""Ids in, events out: the invariant that everything else relies on."""

from itertools import cycle
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streaming.assembler import Assembler
from streaming.errors import InvalidRequest
from streaming.events import Delta, Kind, ReasoningDelta, TextDelta
from tests import tokenizers
from tests.plain import cut, full_decode, random_pieces, split
from tests.tokenizers import KINDS, made

WORDS = ["<think>", "</think>", "<th", "\nUser:", "\nUs", "END", " ", "\n", "a", "é", "👋🏽", "你好", "Hello there."]
STOPS = ["\nUser:", "END", "a", "好", "\n\n", "</think>", " ", "\ufffd"]


def texts(deltas: list[Delta]) -> tuple[str, str]:
    return tuple(
        "".join(delta.text for delta in deltas if isinstance(delta, kind)) for kind in (ReasoningDelta, TextDelta)
    )


@given(
    kind=st.sampled_from(list(KINDS)),
    words=st.lists(st.sampled_from(WORDS) | st.integers(0, 500), max_size=12),
    stops=st.lists(st.sampled_from(STOPS), max_size=3),
    opened=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_deltas_joined_are_the_parse_of_the_full_decode_cut_at_the_stop(
    kind: str, words: list[str | int], stops: list[str], opened: bool, random: Random
) -> None:
    """For every kind of tokenizer and ids cut anywhere; some words are random ids, which make invalid bytes.

    So is what a preview of the rest adds to them at any time; and it changes nothing.
    """
    tokenizer = made(kind)
    ids: list[int] = []
    for word in words:
        is_text = isinstance(word, str)
        ids += tokenizer(word, add_special_tokens=False)["input_ids"] if is_text else [word % len(tokenizer)]
    assembler = Assembler(tokenizer, stops=stops, reasoning_opened=opened)
    deltas: list[Delta] = []
    for piece in random_pieces(ids, random):
        trial = assembler.preview(ids[assembler.tokens :])
        said = texts(deltas)
        assert (said[0] + trial.reasoning, said[1] + trial.text) == split(
            cut(full_decode(tokenizer, ids), stops)[0], opened
        )
        new = assembler.add(piece)
        assert len(new) <= 2, "adjacent deltas of a kind are one"
        assert all(delta.text and delta.tokens == assembler.tokens for delta in new)
        deltas += new
    deltas += assembler.finish()
    text, stopped = cut(full_decode(tokenizer, ids), stops)
    assert texts(deltas) == split(text, opened)
    assert assembler.stopped == stopped
    assert assembler.tokens == len(ids) or stopped


@given(
    kind=st.sampled_from(list(KINDS)),
    within=st.sampled_from(["reasoning", "text"]),
    words=st.lists(st.sampled_from(WORDS), max_size=8),
    stops=st.lists(st.sampled_from(STOPS), max_size=2),
)
def test_deltas_that_go_on_joined_are_the_parse_of_the_rest(
    kind: str, within: Kind, words: list[str], stops: list[str]
) -> None:
    tokenizer = made(kind)
    before = tokenizer("Hello a", add_special_tokens=False)["input_ids"]
    ids = [*before, *(token for word in words for token in tokenizer(word, add_special_tokens=False)["input_ids"])]
    whole, beginning = full_decode(tokenizer, ids), full_decode(tokenizer, before)
    assume(whole.startswith(beginning))
    assembler = Assembler(tokenizer, stops=stops, after=before, within=within)
    deltas = [delta for token in ids[len(before) :] for delta in assembler.add(token)] + assembler.finish()
    text, stopped = cut(whole.removeprefix(beginning), stops)
    expected = ("", text)
    if within == "reasoning":  # a word before it, so that its own white space is not at the block's edge
        thought, answer = split("x" + text, opened=True)
        expected = (thought.removeprefix("x"), answer)
    assert texts(deltas) == expected
    assert assembler.stopped == stopped


def test_tokens_count_the_ids_up_to_the_stop() -> None:
    """Speculation hands over several ids at once, some of them beyond the stop: those are not part of the answer."""
    tokenizer = tokenizers.word_level()
    ids = tokenizer("Hi there lazy dog. The", add_special_tokens=False)["input_ids"]
    assembler = Assembler(tokenizer, stops=["lazy"])
    deltas = assembler.add(ids[:2]) + assembler.add(ids[2:])
    assert [(delta.text, delta.tokens) for delta in deltas] == [("Hi there", 2), (" ", 3)]
    assert assembler.tokens == 3
    assert assembler.add(ids) == []
    assert assembler.finish() == []
    assert assembler.stopped == "lazy"


def test_guesses_are_counted_up_to_the_stop() -> None:
    tokenizer = tokenizers.word_level()
    ids = tokenizer("Hi there lazy dog. The", add_special_tokens=False)["input_ids"]
    assembler = Assembler(tokenizer, stops=["dog."])
    accepted = [delta.accepted for delta in assembler.add(ids[:2], guessed=1) + assembler.add(ids[2:], guessed=2)]
    assert accepted == [1, 3]
    assert (assembler.tokens, assembler.accepted) == (4, 3)


@given(
    kind=st.sampled_from(list(KINDS)),
    words=st.lists(st.sampled_from(WORDS), max_size=8),
    stops=st.lists(st.sampled_from(STOPS), max_size=2),
    opened=st.booleans(),
    guesses=st.lists(st.integers(0, 5), min_size=1, max_size=5),
)
def test_what_guesses_have_brought_is_what_their_ids_would_have_brought_one_by_one(
    kind: str, words: list[str], stops: list[str], opened: bool, guesses: list[int]
) -> None:
    """Each step has some guesses, and one token of the model's own behind them."""
    tokenizer = made(kind)
    ids = [token for word in words for token in tokenizer(word, add_special_tokens=False)["input_ids"]]
    steps, single = (Assembler(tokenizer, stops=stops, reasoning_opened=opened) for _ in range(2))
    for guessed in cycle(guesses):
        step, ids = ids[: guessed + 1], ids[guessed + 1 :]
        if not step:
            break
        at_once = steps.add(step, guessed=guessed)
        apart = [(place, delta) for place, token in enumerate(step) for delta in single.add(token)]
        assert texts(at_once) == texts([delta for _, delta in apart])
        for found in (ReasoningDelta, TextDelta):
            (brought,) = [delta.guessed for delta in at_once if isinstance(delta, found)] or [0]
            assert brought == sum(len(delta.text) for place, delta in apart if place < guessed and type(delta) is found)
    assert not any(delta.guessed for delta in steps.finish())


def test_a_stop_ends_reasoning_too_and_what_waited_before_it_is_kept() -> None:
    tokenizer = tokenizers.byte_level_bpe()
    ids = tokenizer("<think>hm </th\nUser: x", add_special_tokens=False)["input_ids"]
    assembler = Assembler(tokenizer, stops=["\nUser:"])
    deltas = assembler.add(ids) + assembler.finish()
    assert texts(deltas) == ("hm </th", "")
    assert assembler.stopped == "\nUser:"


def test_half_a_character_can_complete_a_stop_at_the_end() -> None:
    """The rest that the detokenizer gives up at the end is text like any other."""
    tokenizer = tokenizers.byte_level_bpe()
    ids = tokenizer("a🦙", add_special_tokens=False)["input_ids"][:-1]
    assembler = Assembler(tokenizer, stops=["\ufffd"])
    assert texts(assembler.add(ids) + assembler.finish()) == ("", "a")
    assert assembler.stopped == "\ufffd"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not empty"):
        Assembler(tokenizers.word_level(), stops=[""])
