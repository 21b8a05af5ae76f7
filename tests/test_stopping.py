"""Stops at random moments, over and over: afterwards nothing runs, nothing is left, and the next answer is right.

A tenth runs always, on the engines that are quick; `-m soak` runs all of it, on the starter model too.
"""

import gc
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streaming.engines.base import Generation
from streaming.messages import Message, Sampling
from tests.tiny import tiny_folder
from tests.worlds import BatchedWorld, LocalWorld, Reader, ScriptedWorld, World, ask, nothing, small_chunks

STOPS = 100
HELLO = "Hello, who are you?"
KEPT_GB = 0.02
ENDLESS = Sampling(temperature=0, max_new_tokens=300)
MOST_S = 2.0  # until the stop: there is plenty to stop by then, also on a slow machine
SOAK = pytest.mark.soak


@pytest.fixture(scope="module", params=["scripted", "tiny", "tiny batched", pytest.param("starter", marks=SOAK)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "scripted":
            world: World = ScriptedWorld()
        else:
            small_chunks(monkeypatch)
            starter: Path | None = request.getfixturevalue("starter_folder") if request.param == "starter" else None
            folder = starter or tiny_folder(tmp_path_factory.mktemp("tiny"))
            kind = BatchedWorld if request.param == "tiny batched" else LocalWorld
            world = kind(folder, kv_cache_gb=KEPT_GB)
        yield world
        world.engine.close()


@pytest.fixture(params=[STOPS // 10, pytest.param(STOPS, marks=SOAK)])
def stops(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.timeout(1800)
def test_stops_at_random_moments(world: World, stops: int) -> None:
    """Before the first token, in the prompt, in the answer, after it; and memory as after the tenth (textgen 189), but
    for the caches that are kept for the next turn, whose room is bounded."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    expected = world.expected(HELLO)
    whole = min(duration(world), MOST_S)
    threads = threading.active_count()
    live: list[Generation] = []
    memory: list[int] = []
    for _ in range(stops):
        live.append(world.engine.stream([Message("user", HELLO)], ENDLESS, user="ann"))
        stopped = Reader(live[-1], nothing)
        time.sleep(chance.choice([0, chance.uniform(0, whole / 10), chance.uniform(0, whole)]))
        live[-1].cancel()
        following = ask(world.engine, HELLO).wait()
        assert following.text == expected
        assert stopped.wait().finished.reason in ("cancelled", "length", "stop")
        memory.append(resident_bytes())
    assert all(generation.ended for generation in live)
    assert threading.active_count() == threads
    status = world.engine.status()
    assert (status.state, status.running, status.waiting) == ("ready", 0, 0)
    assert memory[-1] - memory[9] < 32 * 2**20 + KEPT_GB * 1e9, f"grew by {(memory[-1] - memory[9]) / 2**20:.0f} MiB"
    print(f"{stops} stops; memory {memory[9] / 2**20:.0f} -> {memory[-1] / 2**20:.0f} MiB")


def duration(world: World) -> float:
    """Seconds that an answer takes which nobody stops."""
    start = time.monotonic()
    ask(world.engine, HELLO, ENDLESS).wait()
    return time.monotonic() - start


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
