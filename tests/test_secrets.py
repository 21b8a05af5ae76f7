"""Many people at once on one model, each with a word that nobody else may see: no mixing, memory and threads flat.

A tenth of a minute runs always, on a tiny model; `-m soak` runs five minutes, on the starter model too.
"""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from streaming.events import TextDelta
from streaming.messages import Message, Sampling
from tests.tiny import tiny_folder
from tests.worlds import BatchedWorld, Reader, cancel_at, nothing

WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven"),
    *("islet", "jetty", "knoll", "larch", "marsh", "north", "olive", "pearl"),
)
SOAK = pytest.mark.soak


@pytest.fixture(scope="module", params=["tiny", pytest.param("starter", marks=SOAK)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchedWorld]:
    starter: Path | None = request.getfixturevalue("starter_folder") if request.param == "starter" else None
    world = BatchedWorld(starter or tiny_folder(tmp_path_factory.mktemp("tiny")))
    yield world
    world.engine.close()


@dataclass
class Visitor:
    """Asks the same few things again and again, in both lanes, and now and then stops in the middle."""

    world: BatchedWorld
    word: str
    seed: int
    answers: int = 0
    faults: list[str] = field(default_factory=list)

    def visit(self, until: float) -> None:
        chance = random.Random(self.seed)
        while time.monotonic() < until and not self.faults:
            number = chance.randrange(3)
            stops = chance.random() < 0.25
            alone = chance.random() < 0.1
            text = f"My secret word is {self.word}. Say it {number} times."
            penalty = 1.3 if alone else None
            sampling = Sampling(temperature=0, max_new_tokens=24, repetition_penalty=penalty)
            generation = self.world.engine.stream([Message("user", text)], sampling, user=self.word)
            reader = Reader(generation, cancel_at(TextDelta, chance.randrange(1, 9)) if stops else nothing).wait()
            self._check(text, reader, whole=not stops, alone=alone)
            self.answers += 1

    def _check(self, text: str, reader: Reader, *, whole: bool, alone: bool) -> None:
        others = [word for word in WORDS if word != self.word and word in reader.text.lower()]
        if others:
            self.faults.append(f"{self.word} was told {others}: {reader.text!r}")
        if not alone:
            expected = self.world.expected(text, 24)
            if whole and reader.text != expected:
                self.faults.append(f"{self.word} got {reader.text!r} instead of {expected!r}")
            elif not expected.startswith(reader.text.rstrip("\ufffd")):
                self.faults.append(f"{self.word} got {reader.text!r}, which {expected!r} does not begin with")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seconds", [6, pytest.param(300, marks=SOAK)])
def test_sixteen_users_with_a_secret_each(world: BatchedWorld, seconds: float) -> None:
    """transformers 47085, gradio 10462: one user's text in another's answer. And memory as after the first minute."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for word in WORDS:
        for number in range(3):
            world.expected(f"My secret word is {word}. Say it {number} times.", 24)
    visitors = [Visitor(world, word, seed + place) for place, word in enumerate(WORDS)]
    _visit(visitors, seconds / 5)
    process = psutil.Process()
    threads, memory = threading.active_count(), process.memory_info().rss
    _visit(visitors, seconds * 4 / 5)
    assert not [fault for visitor in visitors for fault in visitor.faults]
    grown_mb = (process.memory_info().rss - memory) / 1e6
    print(f"{sum(visitor.answers for visitor in visitors)} answers, {grown_mb:+.0f} MB")
    assert min(visitor.answers for visitor in visitors) > 0.3 * max(visitor.answers for visitor in visitors)
    assert threading.active_count() == threads
    assert grown_mb < 60
    status = world.engine.status()
    assert (status.state, status.running, status.waiting) == ("ready", 0, 0)


def _visit(visitors: list[Visitor], seconds: float) -> None:
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=visitor.visit, args=(until,)) for visitor in visitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
