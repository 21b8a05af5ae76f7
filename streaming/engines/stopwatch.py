"""Times one answer, for `Finished.timings`. Knows no engine; one thread uses it."""

import time

from streaming.events import Timings


class Stopwatch:
    """Starts when a request is taken from the queue. `arrived` is when it came, a time.monotonic()."""

    def __init__(self, arrived: float) -> None:
        self._arrived = arrived
        self._started = time.monotonic()
        self._first = self._last = 0.0
        self._tokens = 0

    def tick(self, tokens: int = 1) -> None:
        """More tokens have come out of the model."""
        self._last = time.monotonic()
        if not self._tokens:
            self._first = self._last
            tokens = 1
        self._tokens += tokens

    def timings(self) -> Timings:
        decoding = self._last - self._first
        return Timings(
            queued_s=self._started - self._arrived,
            ttft_s=self._first - self._arrived if self._tokens else 0.0,
            decode_tps=(self._tokens - 1) / decoding if decoding > 0 else 0.0,
        )
