"""Ends a text at the first stop string, while the text arrives in pieces cut anywhere.

Withholds only the longest end of the text that can begin a stop. Knows no tokens. One object for one text, one thread.
"""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Self

from streaming.errors import InvalidRequest


class StopMatcher:
    """The text ends at the match that ends first; of several that end there, at the longest.

    An Aho-Corasick automaton (Aho and Corasick, 1975) reads every character once, whatever the text and the number of
    stops; its state is the longest end of the text that begins a stop, which is exactly what has to be withheld.
    `stopped` is the stop that ended the text, or None. Raises InvalidRequest for an empty stop.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        stops = (stops,) if isinstance(stops, str) else stops
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise InvalidRequest("A stop string must be a text that is not empty.", "stop")
        self._root = _automaton(stops)
        self._state = self._root
        self.stopped: str | None = None

    def add(self, text: str) -> str:
        """What of the text so far is certain to stand before any stop. Empty once a stop has ended the text."""
        if self.stopped is not None:
            return ""
        root, before = self._root, self._state
        if not root.following:
            return text
        state = before
        for index, character in enumerate(text):
            while character not in state.following and state is not root:
                state = state.fallback or root
            state = state.following.get(character, root)
            if state.match is not None:
                self.stopped = state.match
                self._state = root
                return _joined(before, text, index + 1 - len(state.match))
        self._state = state
        return _joined(before, text, len(text) - state.depth)

    def finish(self) -> str:
        """What was withheld because it could have begun a stop, and did not."""
        state, self._state = self._state, self._root
        return state.text[: state.depth]

    def fork(self) -> Self:
        """Another one that goes on from here; the automaton, which never changes, is shared."""
        return copy.copy(self)


class _State:
    """A beginning of one or more stops: the first `depth` characters of `text`.

    It is all there is to keep: while the automaton is in this state, just these characters are withheld.
    """

    __slots__ = ("depth", "fallback", "following", "match", "text")

    def __init__(self, text: str, depth: int) -> None:
        self.text = text
        self.depth = depth
        self.following: dict[str, _State] = {}
        self.fallback: _State | None = None  # the longest shorter end of this that also begins a stop
        self.match: str | None = None  # the longest stop that ends here


def _automaton(stops: Sequence[str]) -> _State:
    root = _State("", 0)
    for stop in stops:
        state = root
        for character in stop:
            state = state.following.setdefault(character, _State(stop, state.depth + 1))
        state.match = stop
    waiting = deque([root])
    while waiting:
        state = waiting.popleft()
        for character, following in state.following.items():
            fallback = state.fallback
            while fallback is not None and character not in fallback.following:
                fallback = fallback.fallback
            following.fallback = root if fallback is None else fallback.following[character]
            following.match = following.match or following.fallback.match
            waiting.append(following)
    return root


def _joined(withheld: _State, text: str, end: int) -> str:
    """What was withheld and then `text`, up to the position `end` in `text`; a negative one lies in the withheld."""
    if end <= 0:
        return withheld.text[: withheld.depth + end]
    return withheld.text[: withheld.depth] + text[:end]
