"""How much one visitor may ask for where anybody can come: requests a minute, tokens an hour.

Knows names only, neither conversations nor engines. Counted in memory, over a sliding window. Thread-safe.
"""

import math
import time

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from streaming.errors import EngineBusy


class Allowance:
    """0 is no limit. What an answer costs is known at its end: the one that goes beyond its visitor's tokens is whole,
    the next one is refused."""

    def __init__(self, requests_per_minute: int = 0, tokens_per_hour: int = 0) -> None:
        self._requests = RateLimitItemPerMinute(requests_per_minute) if requests_per_minute else None
        self._tokens = RateLimitItemPerHour(tokens_per_hour) if tokens_per_hour else None
        self._counts = SlidingWindowCounterRateLimiter(MemoryStorage())

    def admit(self, owner: str) -> None:
        """One more request. Raises EngineBusy, with how long to wait, where there were enough."""
        if self._tokens is not None and not self._counts.test(self._tokens, owner):
            raise EngineBusy(
                f"Your {self._tokens.amount:,} tokens for an hour are used up: there are others here too. "
                f"Ask again in {self._wait(self._tokens, owner)}."
            )
        if self._requests is not None and not self._counts.hit(self._requests, owner):
            raise EngineBusy(
                f"You have asked {self._requests.amount} times within a minute. "
                f"Ask again in {self._wait(self._requests, owner)}."
            )

    def charge(self, owner: str, tokens: int) -> None:
        """An answer of `owner` has come to its end."""
        if self._tokens is not None and tokens:
            left = self._counts.get_window_stats(self._tokens, owner).remaining
            self._counts.hit(self._tokens, owner, cost=min(tokens, left))  # more than there is would not be counted

    def _wait(self, limit: RateLimitItem, owner: str) -> str:
        seconds = self._counts.get_window_stats(limit, owner).reset_time - time.time()
        return f"{math.ceil(seconds / 60)} minutes" if seconds > 90 else f"{max(1, math.ceil(seconds))} seconds"
