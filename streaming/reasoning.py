"""Splits a text into what a model thinks first (<think>...</think>) and what it answers, in pieces cut anywhere.

Withholds only white space and a half tag that may belong to a block's edge. Knows no tokens and no templates.
One object for one text, one thread. The cost is linear in the text, whatever it holds.
"""

import copy
from enum import Enum, auto
from typing import Self

from streaming.events import Kind

Part = tuple[Kind, str]


class _Place(Enum):
    BEGINNING = auto()  # only white space so far: a block may open
    INSIDE = auto()
    AFTER = auto()  # the block has just closed
    ANSWER = auto()


class ReasoningParser:
    """Only the first thing that is not white space can open a block; after the closing tag all is answer.

    White space around a block and at its inner edges belongs to neither. `opened`: the prompt has opened the block.
    `within`: the text goes on in the middle of a block, or of an answer, so that nothing at its beginning is an edge.
    """

    def __init__(
        self, open: str = "<think>", close: str = "</think>", opened: bool = False, *, within: Kind | None = None
    ) -> None:
        if not open.strip() or not close.strip():
            raise ValueError("a reasoning tag must hold more than white space")
        self._open = open
        self._close = close
        self._place = _Place.INSIDE if opened or within == "reasoning" else _Place.BEGINNING
        if within == "text":
            self._place = _Place.ANSWER
        self._begun = within == "reasoning"  # the block has content
        self._space: list[str] = []  # white space that may turn out to be an edge
        self._tag = ""  # what may turn out to be a tag

    def add(self, text: str) -> list[Part]:
        """The parts that have become certain with this text; none of them is empty."""
        parts: list[Part] = []
        rest = self._tag + text
        self._tag = ""
        if self._place is _Place.BEGINNING:
            rest = self._read_beginning(rest)
        if self._place is _Place.INSIDE:
            rest = self._read_inside(rest, parts)
        if self._place is _Place.AFTER:
            rest = rest.lstrip()
            if rest:
                self._place = _Place.ANSWER
        if self._place is _Place.ANSWER and rest:
            parts.append(("text", rest))
        return parts

    def finish(self) -> list[Part]:
        """What was withheld. White space at the end of a block that never closed is its edge."""
        rest = "".join(self._space) + self._tag
        self._space.clear()
        if self._place is _Place.INSIDE:
            rest = self._without_edge(rest) if self._tag else ""
        self._tag = ""
        kind: Kind = "reasoning" if self._place is _Place.INSIDE else "text"
        return [(kind, rest)] if rest else []

    def fork(self) -> Self:
        """Another one that goes on from here."""
        made = copy.copy(self)
        made._space = self._space.copy()
        return made

    def _read_beginning(self, text: str) -> str:
        """Decide whether a block opens; returns what comes after the decision."""
        bare = text.lstrip()
        if bare.startswith(self._open):
            self._space.clear()
            self._place = _Place.INSIDE
            return bare[len(self._open) :]
        self._space.append(text[: len(text) - len(bare)])
        if self._open.startswith(bare):
            self._tag = bare
            return ""
        self._place = _Place.ANSWER
        space = "".join(self._space)
        self._space.clear()
        return space + bare

    def _read_inside(self, text: str, parts: list[Part]) -> str:
        """Take a block's content; returns what comes after its closing tag."""
        content, tag, after = text.partition(self._close)
        if tag:
            self._place = _Place.AFTER
        else:
            self._tag = _half_tag(content, self._close)
            content = content.removesuffix(self._tag)
        bare = content.rstrip()
        if bare:
            parts.append(("reasoning", self._without_edge("".join(self._space) + bare)))
            self._space = [content[len(bare) :]]
        else:
            self._space.append(content)
        if tag:
            self._space.clear()
        return after

    def _without_edge(self, content: str) -> str:
        if self._begun:
            return content
        self._begun = True
        return content.lstrip()


def _half_tag(text: str, tag: str) -> str:
    """The longest end of `text` that begins `tag`."""
    longest = min(len(text), len(tag) - 1)
    return next((text[-length:] for length in range(longest, 0, -1) if tag.startswith(text[-length:])), "")
