"""Finding words in texts of any language."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.search import AFTER, BEFORE, Hit, find, phrases, words


@pytest.mark.parametrize(
    ("query", "text", "match"),
    [
        ("tide", "High Tide at noon", "Tide"),
        ("tid", "High tides at noon", "tid"),
        ("noon tide", "High tides at noon", "tide"),
        ("cafe", "Un café, s'il vous plaît", "café"),
        ("café", "two cafes", "cafe"),
        ("cafe", "cafe\u0301 in pieces", "cafe\u0301"),
        ("ÜBER", "u\u0308ber allem", "u\u0308ber"),
        ("strasse", "Die Straße", "Straße"),
        ("istanbul", "İSTANBUL", "İSTANBUL"),
        ("東京", "私は東京に住んでいます", "東京"),
        ("京に", "私は東京に住んでいます", "京に"),
        ("タワー", "東京タワーへ", "タワー"),
        ("full width", "ｆｕｌｌ ｗｉｄｔｈ", "ｆｕｌｌ"),
        ("국", "한국어", "국"),
        ("ดี", "สวัสดี", "ดี"),
        ("हिन्दी", "यह हिन्दी है", "हिन्दी"),
        ("привет", "Приветствую", "Привет"),
        ("foo.bar(", "call foo.bar(1)", "foo.bar"),
        ("snake_case", "in snake_case_names", "snake_case"),
        ("🙂", "fine 🙂 then", "🙂"),
        ("❤️", "with ❤ and hope", "❤"),
        ("2026", "on 2026-12-02", "2026"),
    ],
)
def test_a_word_is_found_however_it_is_written(query: str, text: str, match: str) -> None:
    hit = find(query, text)
    assert hit is not None
    assert hit.match == match


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("ide", "High tide"),  # the end of a word is not its beginning
        ("tide ebb", "High tide"),  # every word has to be there
        ("か", "が"),  # two letters, not one with an accent
        ("की", "का"),
        ("foo.bar", "foo and bar"),  # in one piece, it has to be in one piece
        ("", "anything"),
        ("?!", "anything?!"),
    ],
)
def test_what_is_not_there_is_not_found(query: str, text: str) -> None:
    assert find(query, text) is None


def test_a_hit_comes_with_a_little_of_what_is_around_it() -> None:
    hit = find("needle", f"{'a ' * 100}\n\n needle\n{'b ' * 100}")
    assert hit is not None
    assert hit.parts() == (hit.before, "needle", hit.after)
    assert re.fullmatch(r"…(a )+", hit.before)
    assert re.fullmatch(r" (b )+b…", hit.after)
    assert len(hit.before) <= BEFORE + 1
    assert len(hit.after) <= AFTER + 1
    assert find("a", "a b") == Hit("", "a", " b")


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_every_piece_of_a_text_that_begins_a_word_is_found_and_shown_as_it_is_written(a: str, b: str, c: str) -> None:
    text = f"{a} {b} {c}"
    hit = find(b, text)
    if not phrases(b):
        assert hit is None
    else:
        assert hit is not None
        assert hit.match in " ".join(text.split())


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_the_quick_way_for_plain_text_leads_to_the_same(text: str) -> None:
    assert words(text) == words(f"{text}\u0301")


@given(st.text(alphabet="aB1 _-"), st.text(alphabet="ab1 -é"))
def test_a_hit_in_plain_text_is_where_it_is_in_any_text(text: str, query: str) -> None:
    plain, any_text = find(query, text), find(query, f"{text} …")
    assert (plain is None) == (any_text is None)
    if plain is not None and any_text is not None:
        assert (plain.before, plain.match) == (any_text.before, any_text.match)


@given(st.text())
def test_words_are_words_of_themselves(text: str) -> None:
    """So a database that compares words and a loop that compares texts agree."""
    once = words(text)
    assert words(once) == once
    assert "  " not in f" {once} " or not once
