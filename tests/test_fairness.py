"""Nobody is starved: not by somebody's many requests, not by a long prompt, not by a flood of made-up users.

What is counted is tokens and turns, never seconds.
"""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from streaming.config import Config
from streaming.engines.base import Generation, Item
from streaming.engines.local import LocalEngine
from streaming.errors import EngineBusy
from streaming.events import Finished, Prefill, TextDelta
from streaming.messages import Sampling
from tests.test_lanes import cache_gb
from tests.tiny import tiny_folder
from tests.worlds import TIMEOUT_S, Gate, Reader, ask

HELLO = "Hello, who are you?"
SHORT = Sampling(temperature=0, max_new_tokens=4)
ALONE = Sampling(temperature=0, max_new_tokens=4, repetition_penalty=1.5)
LONG_PROMPT_TOKENS = 1_450
Make = Callable[..., LocalEngine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for a long prompt."""
    folder = tiny_folder(tmp_path_factory.mktemp("tiny"))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 4096}))
    return folder


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    made: list[LocalEngine] = []

    def engine(**settings: object) -> LocalEngine:
        made.append(LocalEngine(Config(model=str(folder), **settings)))  # type: ignore[arg-type]
        assert made[-1].wait_ready(TIMEOUT_S).state == "ready"
        return made[-1]

    yield engine
    for one in made:
        one.close()


class Order:
    """In which order answers begin and end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []

    def of(self, name: str) -> Callable[[Generation, Item], None]:
        def note(_: Generation, item: Item) -> None:
            if isinstance(item, Prefill) and item.done == 0:
                self.begun.append(name)
            if isinstance(item, Finished):
                self.ended.append(name)

        return note


@pytest.mark.parametrize(
    ("sampling", "settings"),
    [(SHORT, {"kv_cache_gb": cache_gb(8)}), (ALONE, {}), (SHORT, {"batching": "off"})],
    ids=["room for three", "alone", "no batch"],
)
def test_twenty_requests_of_one_do_not_starve_the_one_of_another(
    make: Make, sampling: Sampling, settings: dict[str, object]
) -> None:
    engine, order, gate = make(**settings), Order(), Gate()
    held = ask(engine, HELLO, replace(sampling, max_new_tokens=8), user="greedy", hook=gate)
    gate.wait()
    many = [ask(engine, HELLO, sampling, user="greedy", hook=order.of(f"greedy {n}")) for n in range(20)]
    one = ask(engine, HELLO, sampling, user="modest", hook=order.of("modest"))
    assert one.positions == [1]
    assert many[-1].positions[-1] == 21
    gate.open()
    for reader in (held, *many, one):
        assert reader.wait().finished.reason in ("length", "stop")
    assert order.begun[0] == "modest"
    assert "modest" in order.ended[:3]
    assert order.begun[1:] == [f"greedy {number}" for number in range(20)]


def test_a_full_line_says_so_with_the_place_and_takes_the_next_when_there_is_room(make: Make) -> None:
    """The one who is refused knows how many wait; nobody else notices, and whoever has none in the line gets in."""
    engine, gate = make(batching="off", max_waiting=3), Gate()
    running = ask(engine, HELLO, SHORT, user="ann", hook=gate)
    gate.wait()
    waiting = [ask(engine, HELLO, SHORT, user="ann") for _ in range(3)]
    with pytest.raises(EngineBusy, match="3 requests wait already, this one would be number 4"):
        ask(engine, HELLO, SHORT, user="ann")
    newcomer = ask(engine, HELLO, SHORT, user="ben")
    assert newcomer.positions == [1]
    assert isinstance(waiting[2].error, EngineBusy)
    assert [reader.positions[-1] for reader in waiting[:2]] == [2, 3]
    gate.open()
    for reader in (running, newcomer, *waiting[:2]):
        assert reader.wait().finished.reason in ("length", "stop")
    assert (engine.status().waiting, engine.status().state) == (0, "ready")
    assert ask(engine, HELLO, SHORT, user="ann").wait().text


class Witness:
    """How many tokens an answer had at each chunk of somebody else's prompt."""

    def __init__(self) -> None:
        self.tokens = 0
        self.at_chunk: list[int] = []

    def answer(self, _: Generation, item: Item) -> None:
        if isinstance(item, TextDelta):
            self.tokens = item.tokens

    def prompt(self, _: Generation, item: Item) -> None:
        if isinstance(item, Prefill):
            self.at_chunk.append(self.tokens)


@pytest.mark.parametrize("lane", ["in the batch", "alone"])
def test_a_long_prompt_does_not_stall_the_answer_beside_it(make: Make, lane: str) -> None:
    """Between two chunks of it the others get a token each. In one go, they would all wait for the whole of it."""
    engine, witness, gate = make(kv_cache_gb=0.2), Witness(), Gate()
    started = threading.Event()

    def hold_then_count(generation: Generation, item: Item) -> None:
        if not started.is_set():
            gate(generation, item)
        witness.answer(generation, item)

    running = ask(engine, HELLO, Sampling(temperature=0, max_new_tokens=200), user="ann", hook=hold_then_count)
    gate.wait()
    started.set()
    text = "a " * LONG_PROMPT_TOKENS
    sampling = replace(SHORT, repetition_penalty=1.5 if lane == "alone" else None)
    long = ask(engine, text, sampling, user="ben", hook=witness.prompt)
    gate.open()
    assert long.wait().finished.usage.prompt_tokens > LONG_PROMPT_TOKENS
    assert running.wait().finished.usage.completion_tokens == 200
    chunks = witness.at_chunk
    assert len(chunks) > LONG_PROMPT_TOKENS / 150
    gained = [later - earlier for earlier, later in pairwise(chunks)]
    # Half a character is told with the token that completes it, so that a step may show none and the next one two.
    assert sum(gained) >= len(gained) - 4
    assert gained.count(0) <= len(gained) // 2


@pytest.mark.parametrize("batching", ["on", "off"])
def test_hundreds_of_made_up_users_leave_a_line_of_known_length(make: Make, batching: str) -> None:
    """Whoever they say they are, only so many wait, each refused one knows it at once, and the rest are answered."""
    engine, gate = make(batching=batching, max_waiting=16, kv_cache_gb=cache_gb(8)), Gate()
    running = ask(engine, HELLO, SHORT, hook=gate)
    gate.wait()
    taken: list[Reader] = []
    refused = 0

    def flood(number: int) -> None:
        nonlocal refused
        for visit in range(60):
            try:
                taken.append(ask(engine, HELLO, SHORT, user=f"nobody {number} {visit}"))
            except EngineBusy:
                with lock:
                    refused += 1

    lock = threading.Lock()
    floods = [threading.Thread(target=flood, args=(number,)) for number in range(8)]
    for thread in floods:
        thread.start()
    for thread in floods:
        thread.join()
    assert (len(taken), refused) == (16, 8 * 60 - 16)
    assert sorted(reader.positions[-1] for reader in taken) == list(range(1, 17))
    gate.open()
    for reader in (running, *taken):
        assert reader.wait().finished.reason in ("length", "stop")
    assert engine.status().waiting == 0
