"""Chats on a disk: what is left of them after a restart, a crash, and a disk that was full for a while."""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from streaming import database, reading, store
from streaming.chats import Chats
from streaming.conversation import Settings
from streaming.errors import NotFound
from streaming.events import Finished, ReasoningDelta, TextDelta
from streaming.messages import Sampling
from streaming.store import Store
from tests.puppet import Puppet
from tests.talker import OWNER

ROOT = Path(__file__).parents[1]


@contextmanager
def started(folder: Path, engine: Puppet | None = None) -> Iterator[Chats]:
    """The app, from its start to its end."""
    kept = Store(folder)
    try:
        yield Chats(engine or Puppet(), kept)
    finally:
        kept.close()


def talked(chats: Chats, engine: Puppet, *texts: str, owner: str = "ann") -> str:
    chat = ""
    for text in texts:
        chat = chats.send(owner, chat, text, Settings()).conversation_id
        engine.answer(text.upper())
    return chat


def texts(chats: Chats, chat: str, owner: str = "ann") -> list[str]:
    return [node.message.content for node in chats.snapshot(owner, chat).nodes]


def until_saved(chats: Chats) -> None:
    assert chats._store is not None
    assert chats._store.flush(60)


# -- restarts


def test_after_a_restart_the_old_chat_is_intact_and_goes_on(tmp_path: Path) -> None:
    """Reported: a server was started again with the tab open, and the next message began an empty conversation."""
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        chat = talked(chats, engine, "a", "b")
        seen = chats.snapshot("ann", chat).nodes[-1].id
        before = chats.snapshot("ann", chat)
    with started(tmp_path, engine) as chats:
        after = chats.snapshot("ann", chat)
        assert (after.nodes, after.settings, after.title) == (before.nodes, before.settings, before.title)
        chats.send("ann", chat, "c", Settings(), after=seen)
        assert [message.content for message in engine.asked[-1]] == ["a", "A", "b", "B", "c"]
        engine.answer("C")
        assert texts(chats, chat) == ["a", "A", "b", "B", "c", "C"]


def test_versions_bin_pins_and_titles_last(tmp_path: Path) -> None:
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        chat, gone = talked(chats, engine, "a"), talked(chats, engine, "gone")
        chats.retry("ann", chat, chats.snapshot("ann", chat).nodes[-1].id, Settings("Be brief.", Sampling(seed=7)))
        engine.answer("A2")
        chats.go_to("ann", chat, chats.snapshot("ann", chat).nodes[-1].id, -1)
        chats.rename("ann", chat, "My chat")
        chats.pin("ann", chat, True)
        chats.delete("ann", gone)
    with started(tmp_path, engine) as chats:
        snapshot = chats.snapshot("ann", chat)
        assert (snapshot.title, snapshot.pinned) == ("My chat", True)
        assert snapshot.settings == Settings("Be brief.", Sampling(seed=7))
        assert snapshot.versions == {snapshot.nodes[-1].id: (1, 2)}
        assert [entry.title for entry in chats.listing("ann")] == ["My chat"]
        with pytest.raises(NotFound):
            chats.snapshot("ann", gone)
        chats.restore("ann", gone)
        assert texts(chats, gone) == ["gone", "GONE"]


def test_two_tabs_that_a_restart_found_open_overwrite_nothing(tmp_path: Path) -> None:
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        chat = talked(chats, engine, "a")
        seen_by_both = chats.snapshot("ann", chat).nodes[-1].id
    with started(tmp_path, engine) as chats:
        for text in ("from one", "from two"):
            chats.send("ann", chat, text, Settings(), after=seen_by_both)
            engine.answer(text.upper())
    with started(tmp_path, engine) as chats:
        assert texts(chats, chat) == ["a", "A", "from two", "FROM TWO"]
        chats.go_to("ann", chat, chats.snapshot("ann", chat).nodes[2].id, -1)
        assert texts(chats, chat) == ["a", "A", "from one", "FROM ONE"]


def test_a_stop_keeps_what_was_thought_and_said_and_says_so(tmp_path: Path) -> None:
    """Reported of other apps: after a stop the partial answer, or all of the thought, was missing from the history."""
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        thought = chats.send("ann", "", "a", Settings()).conversation_id
        engine.generations[-1].emit(ReasoningDelta("hm, ", 1))
        chats.stop("ann", thought)
        said = chats.send("ann", "", "b", Settings()).conversation_id
        engine.generations[-1].emit(ReasoningDelta("hm, ", 1))
        engine.say("half")
        chats.stop("ann", said)
    with started(tmp_path, engine) as chats:
        answers = [chats.snapshot("ann", chat).nodes[-1] for chat in (thought, said)]
        assert [(answer.message.reasoning, answer.message.content) for answer in answers] == [
            ("hm, ", ""),
            ("hm, ", "half"),
        ]
        assert {answer.state for answer in answers} == {"stopped"}


def test_an_engine_that_is_closed_stops_nothing_in_the_readers_name(tmp_path: Path) -> None:
    """The app closes it when it ends, which cancels what is being written: nobody has asked for that."""
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        chat = chats.send("ann", "", "a", Settings()).conversation_id
        engine.say("half")
        engine.generations[-1].cancel()
    with started(tmp_path, engine) as chats:
        answer = chats.snapshot("ann", chat).nodes[-1]
        assert (answer.state, answer.message.content, answer.can_go_on) == ("interrupted", "half", True)


def test_an_answer_that_is_interrupted_is_said_to_be_and_can_go_on(tmp_path: Path) -> None:
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        chat = chats.send("ann", "", "a", Settings()).conversation_id
        engine.generations[-1].emit(ReasoningDelta("hm", 1))
        engine.say("half")
    with started(tmp_path, engine) as chats:
        answer = chats.snapshot("ann", chat).nodes[-1]
        assert (answer.state, answer.message.reasoning, answer.message.content) == ("interrupted", "hm", "half")
        assert answer.can_go_on
        chats.continue_answer("ann", chat, answer.id, Settings())
        assert engine.asked[-1][-1].content == "half"
        engine.say(" and half")
    with started(tmp_path, engine) as chats:
        answer = chats.snapshot("ann", chat).nodes[-1]
        assert (answer.state, answer.message.content) == ("interrupted", "half and half")
        chats.continue_answer("ann", chat, answer.id, Settings())
        engine.answer(".")
        assert texts(chats, chat) == ["a", "half and half."]
        assert [entry.hit_node for entry in chats.listing("ann", "and half")] == [answer.id]


# -- memory


def test_what_is_not_in_use_is_read_again_when_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.shelf.MOST_IN_MEMORY", 2)
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        made = []
        for number in range(6):
            made.append(talked(chats, engine, f"question {number}", "more"))
            until_saved(chats)
        running = chats.send("ann", "", "running", Settings()).conversation_id
        for chat in made:
            assert texts(chats, chat)[-1] == "MORE"
            chats.undo("ann", chat)
            until_saved(chats)
            assert len(chats._library._shelf._kept) <= 3
        assert running in chats._library._shelf
        assert [entry.title for entry in chats.listing("ann")] == [
            "running",
            *(f"question {n}" for n in (5, 4, 3, 2, 1, 0)),
        ]
        assert [entry.running for entry in chats.listing("ann")] == [True] + [False] * 6
        assert [texts(chats, chat) for chat in made] == [[f"question {n}", f"QUESTION {n}"] for n in range(6)]
        assert len(list(chats.export_all("ann"))) == 7
        engine.answer("done")
        with pytest.raises(NotFound):
            chats.snapshot("bob", made[0])


def test_two_who_open_the_same_conversation_at_once_change_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read from the disk may be old by the time it is there: then it is read again."""
    monkeypatch.setattr("streaming.shelf.MOST_IN_MEMORY", 1)
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        chat = talked(chats, engine, "a")
        until_saved(chats)
        talked(chats, engine, "another")
        until_saved(chats)
        load, interrupted = reading.load, []

        def overtaken(connection: sqlite3.Connection, owner: str, conversation_id: str) -> object:
            found = load(connection, owner, conversation_id)
            if conversation_id == chat and not interrupted:
                interrupted.append(chat)
                chats.rename("ann", chat, "changed meanwhile")
                until_saved(chats)
                talked(chats, engine, "puts it out of memory again")
                until_saved(chats)
            return found

        monkeypatch.setattr(reading, "load", overtaken)
        assert chats.snapshot("ann", chat).title == "changed meanwhile"
        assert interrupted


# -- trouble


def test_the_chat_goes_on_while_the_disk_is_locked_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCKED_S", 0.02)
    monkeypatch.setattr(store, "RETRY_EVERY_S", 0.02)
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        before = talked(chats, engine, "before")
        until_saved(chats)
        assert chats.snapshot("ann", before).unsaved == ""
        with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            chat = talked(chats, engine, "meanwhile", "and more")
            while not chats.snapshot("ann", chat).unsaved:
                time.sleep(0.01)
            assert "another program" in chats.snapshot("ann", "").unsaved
            assert {entry.title for entry in chats.listing("ann")} == {"before", "meanwhile"}
            assert [entry.id for entry in chats.listing("ann", "more")] == [chat]
        until_saved(chats)
        assert chats.snapshot("ann", chat).unsaved == ""
    with started(tmp_path, engine) as chats:
        assert texts(chats, chat) == ["meanwhile", "MEANWHILE", "and more", "AND MORE"]


def test_everybody_is_told_that_a_file_was_damaged(tmp_path: Path) -> None:
    with started(tmp_path) as chats:
        assert chats.snapshot("ann", "").unsaved == ""
    (tmp_path / "chats.db").write_bytes(b"no database at all" * 1000)
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        assert "damaged" in chats.snapshot("ann", "").unsaved
        chat = talked(chats, engine, "a")
    with started(tmp_path, engine) as chats:
        assert texts(chats, chat) == ["a", "A"]
        assert chats.snapshot("ann", chat).unsaved == ""


def test_the_engine_s_thread_never_waits_for_the_disk(tmp_path: Path) -> None:
    """The events of an answer are taken in, and its end too, while the store's thread is stuck in a write."""
    engine = Puppet()
    with started(tmp_path, engine) as chats:
        with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            chat = chats.send("ann", "", "a", Settings()).conversation_id
            for _ in range(1000):
                engine.say("x")
            engine.generations[-1].emit(Finished("stop"))
            assert texts(chats, chat) == ["a", "x" * 1000]
            assert chats._store is not None
            assert not chats._store.is_saved(chat)
        until_saved(chats)


def test_nobody_waits_on_the_event_loop_for_an_answer_on_the_disk(tmp_path: Path) -> None:
    async def watch() -> None:
        engine = Puppet()
        with started(tmp_path, engine) as chats:
            snapshot = await asyncio.to_thread(chats.send, "ann", "", "a", Settings())
            assert snapshot.run is not None
            tail = asyncio.create_task(anext(snapshot.run.tail()))
            await asyncio.to_thread(engine.say, "first")
            assert await tail == (1, TextDelta("first"))
            await asyncio.to_thread(chats.stop, "ann", snapshot.conversation_id)

    asyncio.run(watch())


# -- crashes


ROUNDS = [*range(3), *(pytest.param(number, marks=pytest.mark.soak) for number in range(3, 20))]


@pytest.mark.parametrize("number", ROUNDS)
def test_a_killed_app_loses_less_than_a_second(tmp_path: Path, number: int) -> None:
    """kill -9 at a random moment; all that a viewer had been given a second before is there, and the file is whole."""
    chance = random.Random(number)
    journal, folder = tmp_path / "journal", tmp_path / "data"
    for _ in range(2):  # the second process begins with what the first one has left
        journal.write_text("", encoding="utf-8")
        command = [sys.executable, "-m", "tests.talker", str(folder), str(journal)]
        with subprocess.Popen(command, cwd=ROOT) as process:
            while not journal.read_text(encoding="utf-8").count("\n"):
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(chance.uniform(1.1, 3.5))
            killed = time.time()
            os.kill(process.pid, signal.SIGKILL)
        lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines() if line.endswith("]")]
        told = {chat: (reasoning, text) for at, chat, reasoning, text in lines if at < killed - 1}
        assert told
        with closing(sqlite3.connect(folder / "chats.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        with started(folder) as chats:
            for chat, (reasoning, text) in told.items():
                question, answer = chats.snapshot(OWNER, chat).nodes
                assert question.message.content == "Go on"
                assert answer.state in ("cut", "interrupted")
                assert answer.message.reasoning.startswith(reasoning)
                assert answer.message.content.startswith(text)
            states = [chats.snapshot(OWNER, entry.id).nodes[-1].state for entry in chats.listing(OWNER)]
            assert set(states) == {"cut", "interrupted"}
