"""What the streaming parts must come to, written plainly over a whole text; and cutting a text into pieces."""

from itertools import pairwise


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
