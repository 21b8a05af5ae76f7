"""Conversations on the disk: all of it comes back, whatever the disk does meanwhile, and nobody waits for it."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming import database, schema, store
from streaming.attachments import Attachment
from streaming.conversation import BIN_S, Conversation, Settings
from streaming.database import InUse
from streaming.errors import InvalidRequest
from streaming.events import Finished, Timings, Usage
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling
from streaming.saving import BIN_MARGIN_S, Change
from streaming.schema import TooNew
from streaming.search import find, phrases
from streaming.store import Store

Open = Callable[[], Store]


@pytest.fixture
def open_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the same file again and again; whatever is open at the end of the test is closed."""
    monkeypatch.setattr(store, "RETRY_EVERY_S", 0.02)
    monkeypatch.setattr(database, "LOCKED_S", 0.02)
    opened: list[Store] = []

    def open_one() -> Store:
        for earlier in opened:
            earlier.close()
        opened.append(Store(tmp_path / "data"))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def whole(conversation: Conversation) -> Change:
    return Change(conversation.copy(), {node.id: node for node in conversation.nodes}, frozenset())


def talk(*texts: str, owner: str = "ann") -> Conversation:
    conversation = Conversation(owner)
    for text in texts:
        question = conversation.ask(conversation.head, text)
        answer = conversation.begin_answer(question.id, "a model")
        conversation.finish_answer(answer.id, Message("assistant", text.upper(), "hm"), "complete", thought_s=0.5)
    return conversation


def everything(conversation: Conversation | None) -> tuple[object, ...]:
    assert conversation is not None
    kept = {name: value for name, value in vars(conversation).items() if name != "_nodes"}
    return kept, list(conversation.nodes)


def until(true: Callable[[], bool]) -> None:
    """The store's thread gets there; the test's own time limit is the limit."""
    while not true():
        time.sleep(0.005)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.floats(0, 1e10)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    conversation = Conversation(draw(texts))
    for _ in range(draw(st.integers(0, 5))):
        parent = draw(st.sampled_from([None, *(node.id for node in conversation.nodes)]))
        files = st.builds(Attachment, texts, texts, texts, st.integers(0, 9))
        question = conversation.ask(parent, draw(texts), tuple(draw(st.lists(files, max_size=2))))
        answer = conversation.begin_answer(question.id, draw(texts))
        usage = Usage(*draw(st.tuples(*[st.integers(0, 10**6)] * 4)))
        finished = Finished("length", usage, Timings(*draw(st.tuples(numbers, numbers, numbers))), draw(texts))
        conversation.finish_answer(
            answer.id,
            Message("assistant", draw(texts), draw(texts)),
            draw(st.sampled_from(["complete", "stopped", "cut", "failed", "interrupted"])),
            error=draw(texts),
            thought_s=draw(numbers),
            guessed=tuple(draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3))),
            finished=draw(st.sampled_from([None, finished])),
        )
    conversation.rename(draw(texts))
    conversation.pinned = draw(st.booleans())
    sampling = Sampling(
        temperature=draw(st.none() | st.floats(0, 2)),
        stop=tuple(draw(st.lists(texts.filter(bool), max_size=2))),
        seed=draw(st.none() | st.integers(0, 2**62)),
        chat_template_kwargs=draw(st.dictionaries(texts, st.booleans(), max_size=2)),
        strategy=draw(st.sampled_from([None, Beam(3), PromptLookup(7), Assisted("small")])),
    )
    conversation.settings = Settings(draw(texts), sampling)
    return conversation


@given(first=conversations(), second=conversations())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_of_a_conversation_comes_back(open_store: Open, first: Conversation, second: Conversation) -> None:
    kept = open_store()
    for conversation in (first, second):
        kept.put(whole(conversation))
    kept.close()
    kept = open_store()
    for conversation in (first, second):
        assert everything(kept.load(conversation.owner, conversation.id)) == everything(conversation)


def test_what_has_changed_is_saved_and_what_is_gone_goes(open_store: Open) -> None:
    kept, conversation = open_store(), talk("a", "b")
    kept.put(whole(conversation))
    question, answer, *_ = conversation.path()
    conversation.delete_message(question.id)
    conversation.finish_answer(answer.id, Message("assistant", "other"), "stopped")
    changed = {node.id: node for node in conversation.nodes if node.parent is None}
    kept.put(Change(conversation.copy(), changed, frozenset({question.id})))
    loaded = open_store().load("ann", conversation.id)
    assert everything(loaded) == everything(conversation)


def test_nobody_else_s_conversation_is_read(open_store: Open) -> None:
    kept, conversation = open_store(), talk("secret")
    kept.put(whole(conversation))
    assert kept.flush(60)
    for owner in ("bob", "", "ann ", "\ud800", "ann' OR 1 --"):
        assert kept.load(owner, conversation.id) is None
        assert kept.ids(owner) == kept.entries(owner, "", 10) == kept.entries(owner, "secret", 10) == []
    assert kept.load("ann", "\ud800") is None


# -- the list and the search


def test_the_list_has_pinned_ones_first_then_the_newest(open_store: Open) -> None:
    kept = open_store()
    made = [talk(text) for text in ("one", "two", "three", "four")]
    made[0].pinned = True
    made[1].deleted = time.time()
    for conversation in made:
        kept.put(whole(conversation))
    assert kept.flush(60)
    assert [entry.title for entry in kept.entries("ann", "", 10)] == ["one", "four", "three"]
    assert [entry.title for entry in kept.entries("ann", "", 2)] == ["one", "four"]
    assert kept.ids("ann") == [made[3].id, made[2].id, made[0].id]


@given(said=st.lists(texts, min_size=1, max_size=4), query=texts)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_index_finds_what_a_look_at_all_texts_finds(open_store: Open, said: list[str], query: str) -> None:
    """Whatever is typed is words: quotes, stars, AND, NEAR and the rest of the index's own language mean nothing."""
    kept, conversation = open_store(), Conversation(uuid.uuid4().hex)
    for text in said:
        conversation.ask(conversation.head, text)
    kept.put(whole(conversation))
    assert kept.flush(60)
    for wanted in (query, f"{said[0]} {query}", said[-1], f'"{query}" AND (owner:* NEAR {said[0]}'):
        if phrases(wanted):
            there = any(find(wanted, text) for text in (conversation.title, *said))
            assert [entry.id for entry in kept.entries(conversation.owner, wanted, 10)] == [conversation.id] * there


@pytest.mark.parametrize(
    "query", ['"', "*", "a OR", "NOT", "words:", "owner : x", "a\x00b", "(", "^", "+ -", "'; DROP --"]
)
def test_a_query_is_never_a_language(open_store: Open, query: str) -> None:
    kept = open_store()
    kept.put(whole(talk("emptiness")))
    assert kept.flush(60)
    assert kept.entries("ann", query, 10) == []


def test_a_hit_says_where_it_is(open_store: Open) -> None:
    kept, conversation = open_store(), talk("一つの言葉", "Über den Wolken")
    kept.put(whole(conversation))
    assert kept.flush(60)
    (entry,) = kept.entries("ann", "uber wolk", 10)
    assert (entry.hit, entry.hit_node) == (("", "ÜBER", " DEN WOLKEN"), conversation.path()[-1].id)
    (entry,) = kept.entries("ann", "言葉", 10)
    assert (entry.hit, entry.hit_node) == (("一つの", "言葉", ""), None)


def test_what_was_changed_is_found_as_it_is_now(open_store: Open) -> None:
    kept, conversation = open_store(), talk("first words")
    kept.put(whole(conversation))
    conversation.rename("another title")
    answer = conversation.path()[-1]
    conversation.finish_answer(answer.id, Message("assistant", "changed"), "complete")
    kept.put(whole(conversation))
    assert kept.flush(60)
    assert [len(kept.entries("ann", query, 10)) for query in ("another", "changed", "FIRST")] == [1, 1, 1]
    (entry,) = kept.entries("ann", "first", 10)
    assert entry.hit_node == conversation.path()[0].id


def test_the_bin_is_emptied_when_nobody_can_want_it_back(open_store: Open, tmp_path: Path) -> None:
    kept = open_store()
    now = time.time()
    old, recent = talk("long gone"), talk("just gone")
    old.deleted, recent.deleted = now - BIN_S - BIN_MARGIN_S - 60, now - BIN_S + 60
    for conversation in (old, recent):
        kept.put(whole(conversation))
    kept = open_store()
    assert kept.flush(60)
    until(lambda: kept.load("ann", old.id) is None)
    assert kept.load("ann", recent.id) is not None
    kept.close()
    with closing(sqlite3.connect(tmp_path / "data" / "chats.db")) as connection:
        for table, left in (("conversations", 1), ("messages", 2), ("titles", 1), ("texts", 2)):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (left,)


# -- the file


def test_the_file_is_its_user_s_alone(open_store: Open, tmp_path: Path) -> None:
    kept = open_store()
    kept.put(whole(talk("a")))
    assert kept.flush(60)
    folder = tmp_path / "data"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    parts = [path for path in folder.iterdir() if path.name.startswith("chats.db")]
    assert len(parts) > 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in parts} == {0o600}


def test_secrets_last_and_differ(open_store: Open, tmp_path: Path) -> None:
    first = open_store().secret("browser")
    assert len(bytes.fromhex(first)) == 32
    kept = open_store()
    assert kept.secret("browser") == kept.secret("browser") == first
    assert kept.secret("other") != first
    kept.close()
    apart = Store(tmp_path / "apart")
    assert apart.secret("browser") != first
    apart.close()


def test_a_second_process_is_told_who_has_it(open_store: Open, tmp_path: Path) -> None:
    kept = open_store()
    code = "import sys; from pathlib import Path; from streaming.store import Store; Store(Path(sys.argv[1]))"
    second = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=False, timeout=60
    )
    assert second.returncode == 1
    assert f"in use by a running app (process {os.getpid()})" in second.stderr
    with pytest.raises(InUse, match="--data-dir"):
        Store(tmp_path / "data")
    kept.put(whole(talk("still works")))
    assert kept.flush(60)


def test_a_file_of_a_later_version_is_left_alone(open_store: Open, tmp_path: Path) -> None:
    kept, conversation = open_store(), talk("a")
    kept.put(whole(conversation))
    kept.close()
    path = tmp_path / "data" / "chats.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(TooNew, match="later version"):
        open_store()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(schema.STEPS)}")
    assert open_store().load("ann", conversation.id) is not None


@pytest.mark.parametrize("harm", ["noise", "head", "middle", "foreign"])
def test_a_damaged_file_is_kept_and_a_new_one_begun(
    open_store: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    kept = open_store()
    for number in range(50):
        kept.put(whole(talk(f"{number} " * 200)))
    kept.close()
    path = tmp_path / "data" / "chats.db"
    if harm == "foreign":
        path.unlink()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE somebody_elses (x)")
    else:
        data = bytearray(path.read_bytes())
        places = {"noise": range(len(data)), "head": range(100), "middle": range(4096 * 3, 4096 * 20)}
        for place in places[harm]:
            data[place] = place * 7 % 251
        path.write_bytes(data)
    before = path.read_bytes()
    kept = open_store()
    (aside,) = (tmp_path / "data").glob("chats-damaged-*.db")
    assert aside.read_bytes() == before
    assert str(aside) in caplog.text
    assert "earlier ones are not here" in kept.notice
    assert str(tmp_path) not in kept.notice
    assert kept.unsaved == ""
    conversation = talk("new")
    kept.put(whole(conversation))
    assert open_store().load("ann", conversation.id) is not None


def spoil(path: Path) -> None:
    """As a worn disk does: nothing tells but the content."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 20] = bytes(4096 * 17)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_all_of_the_file_is_looked_at_unless_it_is_as_it_was_left_lately(open_store: Open, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    note, path = folder / "chats.closed", folder / "chats.db"
    kept = open_store()
    assert not note.exists()  # a crash from here on is seen by that
    for number in range(50):
        kept.put(whole(talk(f"{number} " * 200)))
    kept.close()
    size, changed, checked = json.loads(note.read_text())
    assert (size, changed) == (path.stat().st_size, path.stat().st_mtime_ns)
    spoil(path)
    note.write_text(json.dumps([size, changed, checked - 8 * 24 * 3600]))
    kept = open_store()
    assert kept.notice
    for number in range(50):
        kept.put(whole(talk(f"{number} " * 200)))
    kept.close()
    spoil(path)
    note.write_text("[1, ")
    assert open_store().notice


# -- trouble with the disk: each case is a real refusal of the real library


def full(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    pages = path.stat().st_size // 4096 + 4
    monkeypatch.setattr(database, "PRAGMAS", (*database.PRAGMAS, f"max_page_count = {pages}"))
    return monkeypatch.undo


def read_only(_: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    monkeypatch.setattr(database, "PRAGMAS", (*database.PRAGMAS, "query_only = ON"))
    return monkeypatch.undo


def locked(path: Path, _: pytest.MonkeyPatch) -> Callable[[], None]:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other.close


TROUBLES = [(full, "the disk is full"), (read_only, "may not be written"), (locked, "another program")]


@pytest.mark.parametrize(("trouble", "words"), TROUBLES)
def test_what_cannot_be_saved_is_saved_when_it_can(
    open_store: Open, tmp_path: Path, trouble: Callable[..., Callable[[], None]], words: str
) -> None:
    kept, before = open_store(), talk("before")
    kept.put(whole(before))
    assert kept.flush(60)
    kept._disconnect()  # its thread opens the next connection under the trouble
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(store, "RETRY_EVERY_S", 0.02)
        monkeypatch.setattr(database, "LOCKED_S", 0.02)
        end = trouble(tmp_path / "data" / "chats.db", monkeypatch)
        meanwhile = [talk("x" * 20_000, owner="ann") for _ in range(3)]
        for conversation in meanwhile:
            kept.put(whole(conversation))
        until(lambda: words in kept.unsaved)
        assert "The chat goes on" in kept.unsaved
        assert not kept.flush(0)
        assert kept.load("ann", before.id) is not None
        end()
        meanwhile[0].rename("renamed meanwhile")
        kept.put(Change(meanwhile[0].copy(), {}, frozenset()))
        assert kept.flush(60)
    assert kept.unsaved == ""
    kept = open_store()
    for conversation in meanwhile:
        assert everything(kept.load("ann", conversation.id)) == everything(conversation)


def test_a_folder_that_cannot_be_made_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RETRY_EVERY_S", 0.02)
    (tmp_path / "taken").write_text("a file, where the folder should be")
    kept = Store(tmp_path / "taken" / "data")
    assert kept.unsaved.startswith("Nothing is being saved: ")
    assert len(kept.secret("browser")) == 64
    conversation = talk("a")
    kept.put(whole(conversation))
    assert (kept.load("ann", conversation.id), kept.ids("ann"), kept.entries("ann", "", 9)) == (None, [], [])
    (tmp_path / "taken").unlink()
    assert kept.flush(60)
    assert kept.unsaved == ""
    assert everything(kept.load("ann", conversation.id)) == everything(conversation)
    kept.close()


def test_one_conversation_that_cannot_be_saved_does_not_hold_the_others_up(
    open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    kept, good = open_store(), talk("good")
    bad = Change(talk("bad"), {"x": "no message"}, frozenset())  # type: ignore[dict-item]
    with kept._news:
        for change in (bad, whole(good)):
            kept.put(change)
    until(lambda: kept.is_saved(good.id) and bool(kept.unsaved))
    assert not kept.is_saved(bad.conversation.id)
    assert "Nothing is being saved" in caplog.text


def test_the_last_words_are_saved_at_the_end(open_store: Open) -> None:
    """An answer under way is fetched once more when the app ends."""
    kept, conversation = open_store(), talk("a")
    answer = conversation.path()[-1]

    def draw() -> None:
        conversation.finish_answer(answer.id, Message("assistant", "so far"), "running")
        kept.put(whole(conversation))

    kept.follow(conversation.id, draw)
    kept.close()
    loaded = open_store().load("ann", conversation.id)
    assert loaded is not None
    assert (loaded.path()[-1].message.content, loaded.path()[-1].state) == ("so far", "interrupted")
    assert open_store().entries("ann", "so far", 9)[0].hit_node == answer.id


def test_who_puts_does_not_wait_for_the_disk(open_store: Open, tmp_path: Path) -> None:
    kept = open_store()
    with closing(sqlite3.connect(tmp_path / "data" / "chats.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        conversation = talk("a")
        putting = threading.Thread(target=lambda: [kept.put(whole(conversation)) for _ in range(100)])
        putting.start()
        putting.join(60)
        assert not putting.is_alive()
        assert not kept.is_saved(conversation.id)
    assert kept.flush(60)


# -- earlier forms of the file


@pytest.mark.parametrize("steps", range(1, len(schema.STEPS) + 1))
def test_a_file_of_every_earlier_form_is_brought_to_today_s(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "chats.db", isolation_level=None)) as connection:
        with monkeypatch.context() as earlier:
            earlier.setattr(schema, "STEPS", schema.STEPS[:steps])
            schema.migrate(connection)
        connection.execute(
            "INSERT INTO conversations VALUES "
            "(3, 'c', 'ann', 'Old title', '', 1.5, 2.5, 1, NULL, 'm', 'Be brief.', ?, 'a')",
            (json.dumps({"temperature": 0.5, "no_longer_there": 1}),),
        )
        for row in (
            (7, "q", None, "user", "Old question", "complete"),
            (8, "a", "q", "assistant", "Old answer", "cut"),
        ):
            connection.execute(
                "INSERT INTO messages (number, id, conversation, parent, role, content, reasoning, created, state,"
                " error, thought_s, finished, model) VALUES (?, ?, 3, ?, ?, ?, '', 1.5, ?, '', 0, NULL, '')",
                row,
            )
            if steps >= 2:
                index(connection, "search" if steps < 4 else "texts", row[0], row[4])
        if steps >= 2:
            name, number = ("search", -3) if steps < 4 else ("titles", 3)
            index(connection, name, number, "Old title")
    kept = open_store()
    loaded = kept.load("ann", "c")
    assert loaded is not None
    assert [node.message.content for node in loaded.path()] == ["Old question", "Old answer"]
    assert (loaded.settings.system, loaded.settings.sampling.temperature, loaded.pinned) == ("Be brief.", 0.5, True)
    assert [entry.hit_node for entry in kept.entries("ann", "old", 9)] == [None]
    assert [entry.hit_node for entry in kept.entries("ann", "answer", 9)] == ["a"]
    kept.close()
    fresh = Store(tmp_path / "fresh")
    fresh.close()
    assert tables(folder / "chats.db") == tables(tmp_path / "fresh" / "chats.db")


def index(connection: sqlite3.Connection, table: str, number: int, text: str) -> None:
    connection.execute(
        f"INSERT INTO {table} (rowid, owner, words) VALUES (?, ?, lower(?))", (number, schema.owner_word("ann"), text)
    )


def tables(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half_done (x)")
        raise InvalidRequest("no further")

    with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as connection:
        monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, breaks))
        with pytest.raises(InvalidRequest):
            schema.migrate(connection)
        assert schema.version(connection) == len(schema.STEPS) - 1
        assert "half_done" not in dict(connection.execute("SELECT name, 1 FROM sqlite_master").fetchall())


def test_a_number_beyond_todays_bounds_takes_no_conversation_away(open_store: Open, tmp_path: Path) -> None:
    conversation = talk("Hello")
    store = open_store()
    store.put(whole(conversation))
    store.close()
    with closing(sqlite3.connect(tmp_path / "data" / "chats.db")) as file, file:
        saved = json.dumps({"temperature": 1000, "top_p": 0.5})
        assert file.execute("UPDATE conversations SET sampling = ?", [saved]).rowcount == 1
    loaded = open_store().load("ann", conversation.id)
    assert loaded is not None
    assert loaded.settings.sampling == Sampling(top_p=0.5)
