"""A run: one generation that goes on whether or not anyone is looking, with a record that viewers tail.

Events arrive in the engine's thread and are only noted there; viewers wait on their own event loop, without a thread
each. A viewer that leaves changes nothing: a run ends by itself, by `stop()`, or by its limits.
"""

import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Literal

from streaming.engines.base import Generation, Item
from streaming.errors import StreamingError
from streaming.events import Delta, Event, Finished, Prefill, Queued, ReasoningDelta, Span, Tentative, TextDelta
from streaming.messages import Message
from streaming.waiters import Waiters, wake

Phase = Literal["queued", "prefill", "thinking", "answering", "ended"]


@dataclass(frozen=True, slots=True)
class View:
    """A run as it stands after `position` events. Durations are seconds; rates are tokens per second. `guessed` is
    where in reasoning and text, joined, accepted guesses have brought it."""

    position: int
    phase: Phase
    text: str
    reasoning: str
    guessed: tuple[Span, ...]
    tentative: Tentative  # what may still change
    queued: Queued | None
    prefill: Prefill | None
    tokens: int
    ttft_s: float | None
    tps: float
    thought_s: float
    finished: Finished | None
    error: StreamingError | None
    stopped: bool = False  # somebody asked for it; without, the engine was closed under it

    @property
    def ended(self) -> bool:
        return self.phase == "ended"


class Run:
    """The record of one answer, from `start()` on. `on_end` is called once, with the last view, in the engine's
    thread, before any viewer sees the end. What goes on has `said` something before, thought `thought_s` long, and was
    partly `guessed`; its viewers see all of it."""

    def __init__(
        self,
        generation: Generation,
        on_end: Callable[[View], None],
        *,
        said: Message | None = None,
        thought_s: float = 0.0,
        guessed: tuple[Span, ...] = (),
    ) -> None:
        self._generation = generation
        self._on_end = on_end
        self._lock = threading.Lock()
        self._reasoning = [said.reasoning] if said is not None and said.reasoning else []
        self._text = [said.content] if said is not None and said.content else []
        self._length = sum(map(len, self._reasoning + self._text))
        self._guessed = list(guessed)
        self._record: list[Item] = [*map(ReasoningDelta, self._reasoning), *map(TextDelta, self._text)]
        self._waiters = Waiters()
        self._phase: Phase = "queued"
        self._tentative = Tentative()
        self._queued: Queued | None = None
        self._prefill: Prefill | None = None
        self._tokens = self._first_tokens = 0
        self._started = time.monotonic()
        self._first_at: float | None = None
        self._last_at = 0.0
        self._thinking_since: float | None = None
        self._thought_s = thought_s
        self._outcome: Finished | StreamingError | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin to listen; events that have come meanwhile are noted first."""
        self._generation.subscribe(self._note)

    def stop(self) -> None:
        """End the run, from any thread. What has been said is kept; the end follows when the model has stopped."""
        with self._lock:
            self._stopped = True
        self._generation.cancel()

    def view(self) -> View:
        """The run as it stands now: everything that a viewer needs who comes late."""
        with self._lock:
            return self._view()

    async def changed(self, position: int) -> None:
        """Return as soon as there are more than `position` events, or the run has ended."""
        with self._lock:
            if len(self._record) > position or self._phase == "ended":
                return
            waiter = self._waiters.join()
        try:
            await waiter
        finally:
            with self._lock:
                self._waiters.leave(waiter)

    async def tail(self, position: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """Replay the record from `position`, then follow it. Yields the next position with each event.

        Ends after Finished, or raises the run's StreamingError.
        """
        while True:
            with self._lock:
                batch = self._record[position:]
            for item in batch:
                position += 1
                if isinstance(item, StreamingError):
                    raise item
                yield position, item
                if isinstance(item, Finished):
                    return
            await self.changed(position)

    # -- the engine's side

    def _note(self, item: Item) -> None:
        now = time.monotonic()
        with self._lock:
            self._take(item, now)
            last = replace(self._view(), phase="ended") if self._outcome is not None else None
        if last is not None:
            self._on_end(last)
        with self._lock:
            self._record.append(item)
            if last is not None:
                self._phase = "ended"
            waiting = self._waiters.taken()
        wake(waiting)

    def _take(self, item: Item, now: float) -> None:
        match item:
            case Queued():
                self._queued = item
            case Prefill():
                self._phase, self._prefill = "prefill", item
            case Tentative():
                self._tentative = item
            case ReasoningDelta():
                self._phase = "thinking"
                self._reasoning.append(item.text)
                self._thinking_since = self._thinking_since or now
                self._count(item, now)
            case TextDelta():
                self._close_thought(now)
                self._phase = "answering"
                self._text.append(item.text)
                self._count(item, now)
            case _:
                self._tentative = Tentative()
                self._close_thought(now)
                self._outcome = item

    def _close_thought(self, now: float) -> None:
        if self._thinking_since is not None:
            self._thought_s += now - self._thinking_since
            self._thinking_since = None

    def _count(self, delta: Delta, now: float) -> None:
        self._tentative = Tentative()
        if self._first_at is None:
            self._first_at, self._first_tokens = now, delta.tokens
        self._tokens, self._last_at = delta.tokens, now
        if delta.guessed:
            self._guessed.append((self._length, self._length + delta.guessed))
        self._length += len(delta.text)

    def _view(self) -> View:
        since = self._thinking_since
        thinking = self._thought_s + (time.monotonic() - since if since is not None else 0.0)
        decoding_s = self._last_at - self._first_at if self._first_at is not None else 0.0
        return View(
            position=len(self._record),
            phase=self._phase,
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            guessed=tuple(self._guessed),
            tentative=self._tentative,
            queued=self._queued,
            prefill=self._prefill,
            tokens=self._tokens,
            ttft_s=None if self._first_at is None else self._first_at - self._started,
            tps=(self._tokens - self._first_tokens) / decoding_s if decoding_s > 0 else 0.0,
            thought_s=thinking,
            finished=self._outcome if isinstance(self._outcome, Finished) else None,
            error=self._outcome if isinstance(self._outcome, StreamingError) else None,
            stopped=self._stopped,
        )
