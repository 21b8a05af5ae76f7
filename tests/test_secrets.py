"""Many people at once on one model, each with a word that nobody else may see: no mixing, memory and threads flat.

They come over HTTP to the app in a process of its own. A tenth of a minute runs always, on a tiny model; `-m soak` runs
five minutes, on the starter model too.
"""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from streaming.messages import Sampling
from tests.asgi import CHAT
from tests.browser.server import RunningApp, running_app
from tests.tiny import tiny_folder
from tests.worlds import BatchedWorld, LocalWorld, ask

WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven"),
    *("islet", "jetty", "knoll", "larch", "marsh", "north", "olive", "pearl"),
)
SOAK = pytest.mark.soak
TOKENS = 24
FEWEST_VISITS = 4
KEPT_GB = 0.1  # room for all of them on the starter model, and little more: it is full when memory is first looked at


@dataclass
class House:
    """The app, what its model says when it is asked plainly, and the process that all of it happens in."""

    app: RunningApp
    plain: LocalWorld
    http: httpx.Client
    threads: int = 0  # before anybody came

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.app.process.pid)

    def wait_idle(self) -> None:
        deadline = time.monotonic() + 120
        while (health := self.http.get("/health").json())["running"] or health["status"] != "ok":
            assert time.monotonic() < deadline, f"{health}\n{self.app.output()}"
            time.sleep(0.1)


@pytest.fixture(scope="module", params=["tiny", pytest.param("starter", marks=SOAK)])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    starter: Path | None = request.getfixturevalue("starter_folder") if request.param == "starter" else None
    folder = starter or tiny_folder(tmp_path_factory.mktemp("tiny"))
    plain = LocalWorld(folder)
    plain.engine.close()
    for word in WORDS:
        for number in range(3):
            plain.expected(question(word, number), TOKENS)
    with (
        running_app(
            tmp_path_factory.mktemp("app"), engine="local", model=folder, batching="on", kv_cache_gb=KEPT_GB
        ) as app,
        httpx.Client(base_url=app.url, timeout=120) as http,
    ):
        house = House(app, plain, http)
        house.wait_idle()
        house.threads = house.process.num_threads()
        yield house


def question(word: str, number: int) -> str:
    return f"My secret word is {word}. Say it {number} times."


@dataclass
class Visitor:
    """Asks the same few things again and again, in both lanes, and now and then leaves in the middle."""

    house: House
    word: str
    seed: int
    answers: int = 0
    left: int = 0
    faults: list[str] = field(default_factory=list)

    def visit(self, until: float) -> int:
        """Says how many visits it made: a few, however slow the machine is."""
        chance = random.Random(self.seed + self.answers)
        visits = 0
        while (time.monotonic() < until or visits < FEWEST_VISITS) and not self.faults:
            text = question(self.word, chance.randrange(3))
            pieces = chance.randrange(1, 9) if chance.random() < 0.25 else None
            alone = (visits + self.seed) % 10 == 0  # everybody as often: only one at a time is answered there
            with self._ask(text, alone=alone) as response:
                said, whole = read(response, pieces)
            self._check(text, said, whole=whole, alone=alone)
            self.answers += whole
            self.left += not whole
            visits += 1
        return visits

    def fill(self) -> None:
        """Everything that it will ask, once in each lane: from then on there is nothing new to keep."""
        for number in range(3):
            for alone in (True, False):
                with self._ask(question(self.word, number), alone=alone) as response:
                    read(response, None)

    @contextmanager
    def _ask(self, text: str, *, alone: bool) -> Iterator[httpx.Response]:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            "temperature": 0,
            "max_tokens": TOKENS,
            "user": self.word,
        }
        extra = {"repetition_penalty": 1.3} if alone else {}
        with self.house.http.stream("POST", CHAT, json=body | extra) as response:
            yield response

    def _check(self, text: str, said: str, *, whole: bool, alone: bool) -> None:
        others = [word for word in WORDS if word != self.word and word in said.lower()]
        if others:
            self.faults.append(f"{self.word} was told {others}: {said!r}")
        if alone:
            return
        expected = self.house.plain.expected(text, TOKENS)
        if whole and said != expected:
            self.faults.append(f"{self.word} got {said!r} instead of {expected!r}")
        elif not expected.startswith(said):
            self.faults.append(f"{self.word} got {said!r}, which {expected!r} does not begin with")


def read(response: httpx.Response, pieces: int | None) -> tuple[str, bool]:
    """The text up to so many pieces, or all of it, and whether that was the whole."""
    said, count = "", 0
    for line in response.iter_lines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return said, True
        if line.startswith("data: ") and (content := json.loads(data)["choices"][0]["delta"].get("content")):
            said, count = said + content, count + 1
            if count == pieces:
                return said, False
    raise AssertionError(f"the answer has no end: {said!r}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seconds", [6, pytest.param(300, marks=SOAK)])
def test_sixteen_users_with_a_secret_each(house: House, seconds: float) -> None:
    """transformers 47085, gradio 10462: one user's text in another's answer. And memory as after the first minute."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    visitors = [Visitor(house, word, seed + place) for place, word in enumerate(WORDS)]
    with ThreadPoolExecutor(len(visitors)) as threads:
        list(threads.map(Visitor.fill, visitors))
    visit(visitors, seconds / 5)
    house.wait_idle()
    memory = house.process.memory_info().rss
    visits = visit(visitors, seconds * 4 / 5)
    house.wait_idle()
    assert not [fault for visitor in visitors for fault in visitor.faults]
    grown_mb = (house.process.memory_info().rss - memory) / 1e6
    answers, left = sum(visitor.answers for visitor in visitors), sum(visitor.left for visitor in visitors)
    print(f"{answers} answers, {left} left in the middle, {grown_mb:+.0f} MB")
    assert min(visits) > 0.3 * max(visits)
    assert left > 0
    assert house.process.num_threads() <= house.threads + len(WORDS)  # prompts are rendered in a pool
    assert grown_mb < 60


def visit(visitors: list[Visitor], seconds: float) -> list[int]:
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(len(visitors)) as threads:
        return list(threads.map(lambda visitor: visitor.visit(until), visitors))


def test_eight_who_are_asked_for_their_word_say_their_own(starter_folder: Path) -> None:
    """In the batch, and one of them alone beside it, on a model that knows what it is asked for."""
    world = BatchedWorld(starter_folder)
    words = WORDS[:8]
    readers = [
        ask(
            world.engine,
            f"The secret word is {word}. What is the secret word?",
            Sampling(temperature=0, max_new_tokens=24, repetition_penalty=1.01 if word == "amber" else None),
            user=word,
        )
        for word in words
    ]
    for word, reader in zip(words, readers, strict=True):
        said = reader.wait().text.lower()
        assert [other for other in words if other in said] == [word], said
    world.engine.close()
