"""Ids to text while they arrive, for every kind of tokenizer: see tests/tokenizers.py for what they are."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from streaming.detokenizer import Detokenizer
from tests import tokenizers
from tests.plain import common_prefix, full_decode, random_pieces
from tests.tokenizers import KINDS, made, with_added_tokens

INVALID = "\ufffd"


def streamed(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[int | list[int]], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*map(detokenizer.add, pieces), detokenizer.finish()]


CASES = [
    pytest.param("Hi 👋🏽 there", id="emoji with skin tone"),  # TGI: emoji came as replacement characters
    pytest.param("a 👨‍👩‍👧‍👦 b 🇨🇭 c", id="emoji of several code points"),  # TGI, mlx
    pytest.param("기습니다 그리고 끝.", id="Korean"),  # TGI 131
    pytest.param("你好，世界。Hello 再见", id="Chinese then Latin"),  # transformers 22664: Chinese came at the end only
    pytest.param("はい。そうですね。ありがとう", id="kana after a full stop"),  # was held back until the end
    pytest.param("a" * 200, id="a long word"),  # transformers 28849: text without spaces was withheld
    pytest.param("https://example.org/a/b?c=d&e=f#g-h_i", id="URL"),  # was held back until a space
    pytest.param('{"a":[1,2,{"b":null}],"c":"d"}', id="JSON"),  # was held back until a space
    pytest.param("foo(bar)[0];\nif(x){y();}\n\treturn  z\n", id="code"),  # closing punctuation was held back
    pytest.param("  two leading, trailing two  ", id="spaces at both ends"),  # transformers 22710, 28776: spaces lost
    pytest.param("\n\n\n", id="newlines only"),
    pytest.param("\\_ {{ x }} ​　 \t\\n", id="odd white space"),  # tokenizers 1705: DecodeStream raises
    pytest.param("é ñ กำลัง ที่นี่ हिन्दी", id="combining marks"),
    pytest.param("مرحبا بالعالم 123 שלום", id="right to left"),
    pytest.param("see <|im_end|> here", id="the words of a special token"),  # a user may write them: they stay visible
]


def check(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> None:
    """One id at a time and in random chunks: the full decode, and U+FFFD only where that has one."""
    expected = full_decode(tokenizer, ids)
    for pieces in (ids, random_pieces(ids, Random(len(ids))), [ids]):
        texts = streamed(tokenizer, pieces)
        assert "".join(texts) == expected
        assert INVALID in expected or not any(INVALID in text for text in texts)


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_joined_are_the_full_decode(kind: str, text: str) -> None:
    check(made(kind), made(kind)(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])


@pytest.mark.parametrize("text", CASES)
def test_the_starter_model_s_tokenizer(starter_folder: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert full_decode(tokenizer, ids) == text
    check(tokenizer, ids)
    random = Random(text)
    check(tokenizer, [random.randrange(len(tokenizer)) for _ in range(300)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_goes_on_is_one_text_with_what_was_before(kind: str) -> None:
    """Sentencepiece's decoder cuts the space off a text's beginning: "Hello" went on as "Helloworld"."""
    tokenizer = made(kind)

    @given(words=some_words(kind), cut=st.integers(0, 60))
    def check(words: list[int], cut: int) -> None:
        before, after = words[:cut], words[cut:]
        expected = full_decode(tokenizer, words)
        beginning = full_decode(tokenizer, before)
        assume(expected.startswith(beginning))  # not where the cut is in a character, or a later token changes it
        detokenizer = Detokenizer(tokenizer, after=before)
        assert beginning + detokenizer.add(after) + detokenizer.finish() == expected

    check()


def some_words(kind: str) -> st.SearchStrategy[list[int]]:
    """Ids of real text, far longer than what is looked at of it."""
    tokenizer = made(kind)

    def ids(parts: list[str]) -> list[int]:
        return list(tokenizer("".join(parts), add_special_tokens=False, split_special_tokens=True)["input_ids"])

    return st.lists(st.sampled_from([*tokenizers.TEXTS, "👋🏽", "é", " a", "the", ".", "\n"]), max_size=12).map(ids)


@pytest.mark.parametrize("kind", ["byte-level BPE", "byte fallback"])
def test_a_special_token_is_left_out_and_its_words_are_not(kind: str) -> None:
    tokenizer = made(kind)
    words = tokenizer("<|im_end|>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert "".join(streamed(tokenizer, [tokenizer.eos_token_id, *words, tokenizer.eos_token_id])) == "<|im_end|>"


@st.composite
def some_ids(draw: st.DrawFn, kind: str) -> list[int]:
    """Random ids, and more often few different ones: those repeat, and make runs of bytes, spaces, special tokens."""
    tokenizer = made(kind)
    size = len(tokenizer) + 4 * tokenizer.is_fast  # some models have more logits than their tokenizer has tokens
    pool = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8) | st.just(list(range(size))))
    return draw(st.lists(st.sampled_from(pool), max_size=40))


@given(st.data(), st.sampled_from(list(KINDS)), st.randoms(use_true_random=False), st.booleans())
def test_any_ids_in_any_pieces(data: st.DataObject, kind: str, random: Random, skip: bool) -> None:
    ids = data.draw(some_ids(kind))
    expected = full_decode(made(kind), ids, skip=skip)
    assert "".join(streamed(made(kind), random_pieces(ids, random), skip=skip)) == expected


def futures(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Ways for a text to go on: any single token; and bytes that complete, or spoil, any unfinished character."""
    singles = [[token_id] for token_id in range(len(tokenizer))]
    by_token = tokenizer.get_vocab()

    def byte(value: int) -> list[int]:
        spellings = (f"<0x{value:02X}>", f"{value:02x}", chr(value), chr(value + 162))  # U+0122 spells 0x80 in GPT-2's
        return [by_token[spelling] for spelling in spellings if spelling in by_token][:1]

    seconds = [byte(value) for value in (0x80, 0x90, 0xA0, 0xBF)]
    return [[], *singles, *(second + byte(0x80) * more for second in seconds for more in (1, 2))]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_complete_is_held_back(kind: str) -> None:
    """What is certain is what the text begins with however it goes on; all of it must be out, after each id.

    transformers' own streamer waits for the next space with URLs, JSON, code, emoji and punctuation. (U+FFFD at the
    end may wait for one more id even where it is certain: it stands for nothing that anybody wants to read.)
    """
    tokenizer = made(kind)
    random = Random(kind)
    endings = futures(tokenizer)
    for _ in range(8):
        words = tokenizer(random.choice(tokenizers.TEXTS)[:20], add_special_tokens=False)["input_ids"]
        ids = random.choice([words, [random.randrange(len(tokenizer)) for _ in range(12)]])
        detokenizer = Detokenizer(tokenizer)
        out = ""
        for count, token_id in enumerate(ids, start=1):
            out += detokenizer.add(token_id)
            certain = common_prefix([full_decode(tokenizer, ids[:count] + ending) for ending in endings])
            assert certain.startswith(out)
            assert out.rstrip(INVALID) == certain.rstrip(INVALID)


def test_the_complete_part_of_a_token_is_not_held_back_with_its_incomplete_part() -> None:
    """GPT-2's vocabulary has " \\xf0\\x9f": the space is certain while the emoji is not."""
    tokenizer = with_added_tokens(tokenizers.byte_level_bpe, "ĠðŁ")
    beginning = tokenizer.convert_tokens_to_ids("ĠðŁ")
    rest = [tokenizer.convert_tokens_to_ids(byte) for byte in ("ĳ", "ĭ")]
    assert streamed(tokenizer, [beginning, *rest]) == [" ", "", "👋", ""]


@pytest.mark.parametrize("kind", ["byte-level BPE", "byte fallback", "plain Python, bytes"])
def test_half_an_emoji_at_the_end_is_shown_as_the_full_decode_shows_it(kind: str) -> None:
    """A limit can cut an answer inside a character. tokenizers' DecodeStream loses such a rest without a word."""
    tokenizer = made(kind)
    ids = tokenizer("a🦙", add_special_tokens=False)["input_ids"][:-1]
    texts = streamed(tokenizer, ids)
    assert "".join(texts[:-1]) == "a"
    assert INVALID in texts[-1]
    assert "".join(texts) == full_decode(tokenizer, ids)


def test_one_invalid_byte_spoils_the_whole_run_with_byte_fallback() -> None:
    """So what is valid so far must wait for the run's end, and what is spoilt need not: it stays U+FFFD."""
    tokenizer = made("byte fallback")
    e2, c3, a9 = tokenizer.convert_tokens_to_ids(["<0xE2>", "<0xC3>", "<0xA9>"])
    letter = tokenizer.convert_tokens_to_ids("x")
    assert streamed(tokenizer, [letter, c3, a9, letter]) == ["x", "", "", "éx", ""]
    assert streamed(tokenizer, [letter, c3, a9, e2, c3, a9, letter]) == [
        "x", "", "", "", INVALID * 4, INVALID, "x", "",
    ]  # fmt: skip


def test_a_token_that_does_not_exist_does_not_end_a_run_of_bytes() -> None:
    """A model with padded logits can draw it. The decoder never sees it: the bytes around it belong together."""
    tokenizer = made("byte fallback")
    c3, a9 = tokenizer.convert_tokens_to_ids(["<0xC3>", "<0xA9>"])
    assert streamed(tokenizer, [c3, len(tokenizer) + 3, a9]) == ["", "", "", "é"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["\x80", "é", "  ", "<|im_start|>", "x"])
def test_the_cost_is_linear_also_where_nothing_can_be_shown(
    kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endless invalid bytes, bytes of one run, spaces or special tokens: decoding all of it each time is quadratic."""
    tokenizer = KINDS[kind]()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if text == "\x80" and len(ids) == 2:  # the second of its two UTF-8 bytes, alone, is an invalid one
        ids = ids[1:]
    ids = (ids * 3_000)[:3_000]
    expected = full_decode(tokenizer, ids)
    decoded = 0
    decode = tokenizer.decode

    def counting(ids: list[int], **kwargs: Any) -> Any:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids, **kwargs)

    monkeypatch.setattr(tokenizer, "decode", counting)
    assert "".join(streamed(tokenizer, ids)) == expected
    assert decoded <= 20 * len(ids)
