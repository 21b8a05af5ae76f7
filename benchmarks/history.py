"""A long history on the disk: seconds to start with it, to list, search and open conversations, and to save a turn.

`python -m benchmarks.history` builds 10,000 conversations of 50 messages (a few minutes, and a few hundred MB in a
temporary folder; `--folder` keeps them for the next time). No engine answers here. A table, then one JSON line.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median

from benchmarks.hardware import hardware
from streaming.chats import Chats
from streaming.conversation import Conversation
from streaming.engines.scripted import ScriptedEngine
from streaming.events import Finished
from streaming.messages import Message
from streaming.saving import Change
from streaming.store import Store

OWNER, STRANGER = "ann", "bob"
VOCABULARY = 20_000
SYLLABLES = ("ka", "lo", "mi", "ren", "tos", "u", "bel", "fi", "gar", "zen", "pha", "dri", "on", "ei", "st", "qua")
SEA = "海は広いな大きいな月がのぼるし日が沈む"
AT_ONCE = 250  # conversations given to the store before it is waited for


@dataclass(frozen=True, slots=True)
class Row:
    """What was done, how often, the median and the slowest, in milliseconds."""

    what: str
    times: int
    median_ms: float
    slowest_ms: float


class Texts:
    """Texts of made-up words, of which some are as frequent as "the" and most are rare; one in fifty is Japanese."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.words = ["".join(self._chance.choices(SYLLABLES, k=self._chance.randint(2, 4))) for _ in range(VOCABULARY)]
        self._weights = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))

    def text(self) -> str:
        if self._chance.random() < 0.02:
            return "".join(self._chance.choices(SEA, k=60))
        words = self._chance.choices(self.words, cum_weights=self._weights, k=self._chance.randint(5, 80))
        return " ".join(words).capitalize() + "."

    def conversation(self, owner: str, messages: int) -> Conversation:
        conversation = Conversation(owner)
        for _ in range(messages // 2):
            question = conversation.ask(conversation.head, self.text())
            answer = conversation.begin_answer(question.id, "starter")
            said = Message("assistant", self.text())
            conversation.finish_answer(answer.id, said, "complete", finished=Finished("stop"))
        return conversation


def build(store: Store, texts: Texts, conversations: int, messages: int) -> None:
    """One in ten belongs to somebody else: what is theirs must cost the owner nothing."""
    for number in range(conversations + conversations // 10):
        conversation = texts.conversation(OWNER if number < conversations else STRANGER, messages)
        store.put(Change(conversation, {node.id: node for node in conversation.nodes}, frozenset()))
        if number % AT_ONCE == AT_ONCE - 1:
            store.flush()
    store.flush()


def measure(folder: Path, texts: Texts, times: int) -> Iterator[Row]:
    """On a history that is there."""
    with tempfile.TemporaryDirectory() as empty:
        yield timed("start with an empty history", times, lambda: _start(Path(empty)))
    yield timed("start", times, lambda: _start(folder))
    yield timed("start after a crash", times, lambda: _start(folder, crashed=True))
    store = Store(folder)
    chats = Chats(ScriptedEngine(), store)
    try:
        yield timed("list the newest 200", times, lambda: chats.listing(OWNER))
        for what, query in (
            ("a word of every text", texts.words[0]),
            ("a word of one text in fifty", texts.words[150]),
            ("a rare word", max(texts.words[VOCABULARY // 2 :], key=len)),
            ("the first two letters of a word", texts.words[40][:2]),
            ("the first letter of a word", texts.words[40][:1]),
            ("three words at once", " ".join(texts.words[index] for index in (3, 30, 300))),
            ("a part of a Japanese sentence", SEA[4:6]),
            ("what is not there", "xylophone"),
        ):
            found = len(chats.listing(OWNER, query))
            yield timed(f"search {what} ({found} found)", times, lambda query=query: chats.listing(OWNER, query))  # type: ignore[misc]
        ids = iter(random.Random(1).sample(store.ids(OWNER), times))
        yield timed("open a conversation", times, lambda: chats.snapshot(OWNER, next(ids)))
        conversation = chats.export(OWNER, store.ids(OWNER)[0])

        def save() -> None:
            node = conversation.ask(conversation.head, texts.text())
            store.put(Change(conversation.copy(), {node.id: node}, frozenset()))
            store.flush()

        yield timed("save a message, on the disk", times, save)
    finally:
        store.close()


def timed(what: str, times: int, act: Callable[[], object]) -> Row:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        taken.append((time.perf_counter() - start) * 1000)
    return Row(what, times, round(median(taken), 1), round(max(taken), 1))


def _start(folder: Path, *, crashed: bool = False) -> None:
    """Check and open the file, and show what a page shows first. After a crash all of it is checked."""
    if crashed:
        (folder / "chats.closed").unlink()
    store = Store(folder)
    try:
        Chats(ScriptedEngine(), store).listing(OWNER)
    finally:
        store.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=__doc__)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=50)
    parser.add_argument("--times", type=int, default=11, help="how often each thing is done")
    parser.add_argument("--folder", type=Path, help="where the history is built, or found if it was")
    chosen = parser.parse_args(arguments)
    texts = Texts(7)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        built_s = 0.0
        if not (folder / "chats.db").exists():
            start = time.perf_counter()
            store = Store(folder)
            build(store, texts, chosen.conversations, chosen.messages)
            store.close()
            built_s = round(time.perf_counter() - start, 1)
        size_mb = round((folder / "chats.db").stat().st_size / 1e6)
        rows = list(measure(folder, texts, chosen.times))
    print(f"{chosen.conversations:,} conversations of {chosen.messages} messages, {size_mb} MB; {hardware()}\n")
    print(f"{'':<52}{'median, ms':>12}{'slowest, ms':>13}")
    for row in rows:
        print(f"{row.what:<52}{row.median_ms:>12.1f}{row.slowest_ms:>13.1f}")
    figures = {
        "conversations": chosen.conversations,
        "messages": chosen.messages,
        "size_mb": size_mb,
        "built_s": built_s,
        "rows": [asdict(row) for row in rows],
        "hardware": hardware(),
    }
    print(f"\n{json.dumps(figures)}")


if __name__ == "__main__":
    main()
