"""What the streaming parts must come to, written plainly over a whole text; and cutting a text into pieces."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from transformers import PreTrainedTokenizerBase


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The plain reference: read the whole text, letter by letter, until it ends with a stop."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return text, None


def may_begin_a_stop(text: str, stops: list[str]) -> str:
    """The longest end of `text` that is a real beginning of a stop."""
    ends = (text[start:] for start in range(len(text)))
    return next((end for end in ends if any(stop.startswith(end) for stop in stops)), "")


def chunked(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


def split(text: str, opened: bool = False) -> tuple[str, str]:
    """The plain reference: reasoning and answer of a whole text."""
    if not opened:
        if not text.lstrip().startswith("<think>"):
            return "", text
        text = text.lstrip().removeprefix("<think>")
    content, _, answer = text.partition("</think>")
    return content.strip(), answer.lstrip()


def common_prefix(texts: list[str]) -> str:
    low, high = min(texts), max(texts)
    return next((low[:index] for index in range(len(low)) if low[index] != high[index]), low)


def full_decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, skip: bool = True) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def random_pieces(ids: Sequence[int], random: Random) -> list[int | list[int]]:
    """The ids cut anywhere, with empty pieces too; a single one comes as a number."""
    pieces: list[list[int]] = []
    left = list(ids)
    while left:
        size = random.choice([0, 1, 1, 2, 3, 7])
        pieces.append(left[:size])
        left = left[size:]
    return [piece[0] if len(piece) == 1 else piece for piece in pieces]
