"""One prompt through several ways of decoding, one after the other: what each wrote, and when.

While one lane runs, those that have run are seen at the pace that they ran at, as if all had started together. Knows no
page. Threading: `run` belongs to an event loop, the engine's thread only notes; `stop` may come from anywhere.
"""

import asyncio
import csv
import io
import json
import re
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from streaming.engines.base import Engine, Generation, Item
from streaming.errors import StreamingError
from streaming.events import Finished, Prefill, ReasoningDelta, Tentative, TextDelta
from streaming.messages import Message, Sampling, Strategy

LOOK_EVERY_S = 0.1

# A word with the white space after it, but each character of a script that writes no spaces: joined, they are the text.
_UNSPACED = "\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Lane:
    """A way of decoding, by the name that people read."""

    name: str
    strategy: Strategy | None = None


class Point(NamedTuple):
    """So far into a lane: seconds since its prompt began to be read, tokens, and characters of its text."""

    seconds: float
    tokens: int
    length: int


Parts = list[tuple[str, bool]]
State = Literal["waiting", "running", "again", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Sight:
    """A lane as it is to be seen at one moment. Rates are tokens per second from the very beginning.

    What stands in `tentative` may still change. Only of a lane that is seen to its end: `speed_up` and `same_text`
    against the plain one, and the `parts` of its text with whether each is different there.
    """

    lane: str
    state: State
    progress: float = 0.0  # from 0 to 1: of the longest answer so far, or of the longest possible one
    seconds: float = 0.0
    tokens: int = 0
    text: str = ""
    tentative: str = ""
    ttft_s: float | None = None
    rate: float | None = None
    accepted: float | None = None  # of the tokens that were guessed, the share that the model agreed with
    speed_up: float | None = None
    same_text: bool | None = None
    parts: Parts | None = None


TABLE = ("lane", "state", "tokens", "seconds", "rate", "ttft_s", "speed_up", "accepted", "same_text")  # of a Sight


class Track:
    """What one lane has written so far. Noted in the engine's thread, read in any."""

    def __init__(self, lane: Lane, clock: Callable[[], float] = time.perf_counter) -> None:
        self.lane = lane
        self.points: list[Point] = []
        self.finished: Finished | None = None
        self.failure: StreamingError | None = None
        self.seconds = 0.0  # to the end, once that has come
        self._clock = clock
        self._start: float | None = None
        self._text = ""
        self._tentative = ""
        self._thinking = False

    def note(self, item: Item) -> None:
        """The time in the queue does not count: the clock starts when the prompt begins to be read."""
        if self._start is None and isinstance(item, Prefill):
            self._start = self._clock()
        now = self.elapsed
        match item:
            case TextDelta() | ReasoningDelta():
                answers = isinstance(item, TextDelta)
                between = "\n\n" if answers and self._thinking else ""
                self._thinking = not answers
                self._text += between + item.text
                self.points.append(Point(now, item.tokens, len(self._text)))
            case Tentative():
                self._tentative = item.reasoning + item.text
            case Finished(_, usage):
                self.seconds = now
                if usage.completion_tokens > self.tokens:  # the last ones may have no text of their own
                    self.points.append(Point(now, usage.completion_tokens, len(self._text)))
                self.finished = item
            case StreamingError():
                self.seconds, self.failure = now, item

    @property
    def tokens(self) -> int:
        return self.points[-1].tokens if self.points else 0

    @property
    def ended(self) -> bool:
        return self.finished is not None or self.failure is not None

    @property
    def complete(self) -> bool:
        """Whether it has said all that it had to say."""
        return self.finished is not None and self.finished.reason != "cancelled"

    @property
    def elapsed(self) -> float:
        """Seconds since the clock started, which goes on after the end too."""
        return 0.0 if self._start is None else self._clock() - self._start

    @property
    def text(self) -> str:
        return self._text

    def at(self, seconds: float) -> Sight:
        """As it was so many seconds after its start."""
        if not self.ended:
            return self._sight(seconds, "running", self._tentative)
        if seconds < self.seconds:
            return self._sight(seconds, "again")
        state: State = "done" if self.complete else "failed" if self.failure else "stopped"
        return self._sight(self.seconds, state)

    def _sight(self, seconds: float, state: State, tentative: str = "") -> Sight:
        passed = bisect_right(self.points, seconds, key=lambda point: point.seconds)
        _, tokens, length = self.points[passed - 1] if passed else Point(0.0, 0, 0)
        return Sight(
            self.lane.name,
            state,
            seconds=seconds,
            tokens=tokens,
            text=self._text[:length],
            tentative=tentative,
            ttft_s=self.points[0].seconds if passed else None,
            rate=tokens / seconds if tokens and seconds else None,
        )


class Race:
    """Runs each of `lanes` with the greedy answer to `prompt`, up to `new_tokens` tokens. Used once.

    The others are measured by the first. `alone`: nobody else's answer was being made meanwhile.
    """

    def __init__(
        self, engine: Engine, prompt: str, *, lanes: Sequence[Lane], new_tokens: int = 96, user: str = ""
    ) -> None:
        self.prompt = prompt
        self.alone = True
        self._engine = engine
        self._lanes = lanes
        self._new_tokens = new_tokens
        self._user = user
        self._tracks: list[Track] = []
        self._compared: dict[str, Parts] = {}  # by the name of the lane
        self._generation: Generation | None = None
        self._stopped = False
        self._over = False

    def stop(self) -> None:
        """End the lane that runs, and begin no other."""
        self._stopped = True
        if (generation := self._generation) is not None:
            generation.cancel()

    async def run(self) -> AsyncIterator[list[Sight]]:
        """What is to be seen, some ten times a second and at the end. Leaving it cancels the lane that runs.

        Raises what `engine.stream` raises, and the StreamingError of a lane that fails. Each lane is run for one token
        before it counts, so that the prompt has been read before for all of them alike.
        """
        try:
            for lane in self._lanes:
                async for _ in self._run(Track(lane), 1):
                    yield self.sights()
                if self._stopped:
                    break
                self._tracks.append(Track(lane))
                async for _ in self._run(self._tracks[-1], self._new_tokens):
                    yield self.sights()
                if self._stopped:
                    break
            while not self._stopped and any(track.seconds > self._tracks[-1].elapsed for track in self._tracks):
                yield self.sights()  # slower lanes than the last one are seen to their end too
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._over = True
            self.stop()
        yield self.sights()

    async def _run(self, track: Track, new_tokens: int) -> AsyncIterator[None]:
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def listen(item: Item) -> None:
            track.note(item)
            if track.ended:
                with suppress(RuntimeError):  # the loop is closed, and its viewers are gone with it
                    loop.call_soon_threadsafe(over.set)

        generation = await asyncio.to_thread(self._begin, track.lane, new_tokens)
        generation.subscribe(listen)
        while not over.is_set():
            yield
            self.alone = self.alone and self._engine.status().running <= 1
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_EVERY_S)
        if track.failure is not None:
            raise track.failure

    def _begin(self, lane: Lane, new_tokens: int) -> Generation:
        """Renders the prompt: too long for the event loop. Whoever left meanwhile leaves nothing running."""
        sampling = Sampling(temperature=0, max_new_tokens=new_tokens, strategy=lane.strategy)
        generation = self._engine.stream([Message("user", self.prompt)], sampling, user=self._user)
        self._generation = generation
        if self._stopped:
            generation.cancel()
        return generation

    def sights(self) -> list[Sight]:
        """All lanes at this moment."""
        tracks = self._tracks
        now = float("inf") if self._over or not tracks else tracks[-1].elapsed
        most = max((track.tokens for track in tracks if track.complete), default=self._new_tokens) or 1
        seen = [self._judged(track, track.at(now)) for track in tracks]
        seen = [replace(sight, progress=min(1.0, sight.tokens / most)) for sight in seen]
        return seen + [Sight(lane.name, "waiting") for lane in self._lanes[len(tracks) :]]

    def _judged(self, track: Track, sight: Sight) -> Sight:
        """Beside the first lane, which is what the others are measured by."""
        if sight.state != "done" or track.finished is None:
            return sight
        usage, first = track.finished.usage, self._tracks[0]
        accepted = usage.accepted_tokens / usage.proposed_tokens if usage.proposed_tokens else None
        sight = replace(sight, accepted=accepted)
        if track is first or not first.complete:
            return sight
        if track.lane.name not in self._compared:
            self._compared[track.lane.name] = differences(first.text, track.text)
        rate = first.at(first.seconds).rate
        return replace(
            sight,
            speed_up=sight.rate / rate if rate and sight.rate else None,
            same_text=track.text == first.text,
            parts=self._compared[track.lane.name],
        )

    def curves(self) -> list[tuple[str, float, int]]:
        """Lane, seconds and tokens at every step of every lane, from its start."""
        return [
            (track.lane.name, round(seconds, 4), tokens)
            for track in self._tracks
            for seconds, tokens, _ in (Point(0.0, 0, 0), *track.points)
        ]

    def curves_csv(self) -> str:
        return _csv(("lane", "seconds", "tokens"), self.curves())

    def table_csv(self) -> str:
        """A line for each lane that has run."""
        seen = [[getattr(sight, name) for name in TABLE] for sight in self.sights() if sight.state != "waiting"]
        return _csv(TABLE, seen)

    def to_json(self) -> str:
        """Everything, for programs."""
        lanes = [
            {
                **{name: getattr(sight, name) for name in TABLE},
                "text": sight.text,
                "points": [point[:2] for point in track.points],
            }
            for track, sight in zip(self._tracks, self.sights(), strict=False)
        ]
        race = {"prompt": self.prompt, "new_tokens": self._new_tokens, "alone": self.alone, "lanes": lanes}
        return json.dumps(race, ensure_ascii=False)


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def differences(first: str, other: str) -> Parts:
    """The other text in parts, each with whether the first text has it not: word by word."""
    ours, theirs = _PIECE.findall(first), _PIECE.findall(other)
    codes = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    return [("".join(theirs[b:c]), code != "equal") for code, _, _, b, c in codes if b != c]
