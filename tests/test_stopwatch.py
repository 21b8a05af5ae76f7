"""The timings of one answer, with a clock that the test turns."""

import time

import pytest

from streaming.engines.stopwatch import Stopwatch
from streaming.events import Timings


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_an_answer(clock: list[float]) -> None:
    stopwatch = Stopwatch(arrived=98.0)
    for moment, tokens in ((101.0, 1), (101.5, 1), (102.0, 2)):
        clock[0] = moment
        stopwatch.tick(tokens)
    assert stopwatch.timings() == Timings(queued_s=2.0, ttft_s=3.0, decode_tps=3.0)


def test_the_first_step_is_no_rate_however_many_tokens_it_brings(clock: list[float]) -> None:
    stopwatch = Stopwatch(arrived=99.0)
    stopwatch.tick(5)
    clock[0] = 101.0
    stopwatch.tick(2)
    assert stopwatch.timings().decode_tps == 2.0


@pytest.mark.usefixtures("clock")
def test_no_token_or_one() -> None:
    stopwatch = Stopwatch(arrived=99.0)
    assert stopwatch.timings() == Timings(queued_s=1.0)
    stopwatch.tick()
    assert stopwatch.timings() == Timings(queued_s=1.0, ttft_s=1.0)
