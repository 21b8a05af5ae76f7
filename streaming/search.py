"""How words are found in texts of any language: a text becomes words to compare, a query becomes beginnings of words.

Accents and case do not count. Scripts that put no spaces between words are compared character by character, so that
a part of a sentence is found there. Pure; whether a database or a loop compares, the outcome is the same.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

BEFORE, AFTER = 40, 90  # characters shown around a hit
MOST_WORDS = 16  # of a query; the rest is not looked at
_UNSEEN = {*range(0x300, 0x370), *range(0xFE00, 0xFE10)}  # accents; how an emoji is to be drawn
_ASCII_WORD = re.compile("[a-z0-9]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af]"
)  # Thai, Lao, Myanmar, Khmer, kana, Han, Hangul


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a query was found, in words for a person: the matched text, and some of what is around it."""

    before: str
    match: str
    after: str

    def parts(self) -> tuple[str, str, str]:
        return self.before, self.match, self.after


def words(text: str) -> str:
    """The text as words to compare, with one space between any two of them."""
    if text.isascii():  # the same, fifty times as fast
        return " ".join(_ASCII_WORD.findall(text.lower()))
    return _words(text)[0]


def phrases(query: str) -> tuple[str, ...]:
    """What has to be found, each of them: words in a row, the last of which may go on."""
    found = dict.fromkeys(words(part) for part in query.split())
    return tuple(phrase for phrase in found if phrase)[:MOST_WORDS]


def find(query: str, text: str) -> Hit | None:
    """Where the first word of a query is in a text that has all of them."""
    wanted = phrases(query)
    if not wanted:
        return None
    spans = _plain_spans(wanted, text.lower()) if text.isascii() else _spans(wanted, text)
    if spans is None:
        return None
    start, end = min(spans)
    return Hit(_ending(text[:start]), _flat(text[start:end]), _beginning(text[end:]))


def _spans(wanted: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """Where the phrases are; none, if one of them is not."""
    compared, origins = _words(text)
    spans = []
    for phrase in wanted:
        place = f" {compared}".find(f" {phrase}")
        if place < 0:
            return None
        end = origins[place + len(phrase) - 1] + 1
        while end < len(text) and unicodedata.category(text[end]).startswith("M"):
            end += 1
        spans.append((origins[place], end))
    return spans


def _plain_spans(wanted: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """The same in plain text, a hundred times as fast: a list shows hundreds of hits."""
    spans = []
    for phrase in wanted:
        match = re.search("(?<![a-z0-9])" + "[^a-z0-9]+".join(map(re.escape, phrase.split(" "))), text)
        if match is None:
            return None
        spans.append(match.span())
    return spans


def _words(text: str) -> tuple[str, list[int]]:
    """The words, and for each of their characters where in the text it comes from."""
    compared: list[str] = []
    origins: list[int] = []
    apart = True  # whether what comes next begins a word
    for index, character in enumerate(text):
        folded = _fold(character)
        if not folded:
            apart = apart or not unicodedata.category(character).startswith("M")
            continue
        alone = folded[0] == " "
        if compared and (apart or alone):
            compared.append(" ")
            origins.append(index)
        for piece in folded.strip():
            compared.append(piece)
            origins.append(index)
        apart = alone
    return "".join(compared), origins


@lru_cache(maxsize=8192)
def _fold(character: str) -> str:
    """A character without case, accent and width; nothing, if it stands between words; with a space in front, if it
    is a word of its own."""
    bare = "".join(mark for mark in unicodedata.normalize("NFKD", character) if ord(mark) not in _UNSEEN)
    folded = "".join(
        piece for piece in unicodedata.normalize("NFC", bare).casefold() if piece.isalnum() or _is_mark(piece)
    )
    if folded:
        return f" {folded}" if _UNSPACED.match(folded) else folded
    return f" {character}" if unicodedata.category(character) == "So" else ""  # emoji


def _is_mark(character: str) -> bool:
    """A vowel sign, say: part of the word that it stands in."""
    return unicodedata.category(character).startswith("M") and ord(character) not in _UNSEEN


def _flat(text: str) -> str:
    return " ".join(text.split())


def _ending(text: str) -> str:
    kept = text[-BEFORE:]
    shown = re.sub(r"\s+", " ", kept).lstrip()
    return f"…{shown}" if len(text) > BEFORE else shown


def _beginning(text: str) -> str:
    kept = text[:AFTER]
    shown = re.sub(r"\s+", " ", kept).rstrip()
    return f"{shown}…" if len(text) > AFTER else shown
