"""The tables of the conversations' database, and the ordered steps that bring any earlier form of them to today's.

A step is never changed once it has been released: what comes later is one more step. Each runs in a transaction of
its own, on the one connection that writes.
"""

import hashlib
import sqlite3
from collections.abc import Callable

from streaming.errors import ConfigError
from streaming.search import words

OURS = 0x53545243  # how the file's header tells that it is this app's

INDEXED_BEGINNINGS = (1, 2, 3)  # letters of a word: these are found as quickly as whole words, others are collected


class TooNew(ConfigError):
    """A file that a later version of the app has written."""


def _tables(connection: sqlite3.Connection) -> None:
    """Numbers are for joins within the file; ids are what the world knows. `number` of a message is also its age."""
    connection.execute("CREATE TABLE secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")
    connection.execute(
        """CREATE TABLE conversations (
            number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
            title TEXT NOT NULL, given_title TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
            pinned INTEGER NOT NULL, deleted REAL, model TEXT NOT NULL, system TEXT NOT NULL, sampling TEXT NOT NULL,
            head TEXT
        ) STRICT"""
    )
    connection.execute("CREATE INDEX conversations_in_order ON conversations (owner, deleted, pinned, updated)")
    connection.execute("CREATE INDEX conversations_deleted ON conversations (deleted) WHERE deleted IS NOT NULL")
    connection.execute(
        """CREATE TABLE messages (
            number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
            conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE, parent TEXT,
            role TEXT NOT NULL, content TEXT NOT NULL, reasoning TEXT NOT NULL, created REAL NOT NULL,
            state TEXT NOT NULL, error TEXT NOT NULL, thought_s REAL NOT NULL, finished TEXT, model TEXT NOT NULL
        ) STRICT"""
    )
    connection.execute("CREATE INDEX messages_of ON messages (conversation)")
    connection.execute("CREATE INDEX messages_running ON messages (state) WHERE state = 'running'")


def _search(connection: sqlite3.Connection) -> None:
    """An index of words: of a message under its number, of a title under its conversation's number below zero. The
    words are made by search.py, so the tokenizer has only spaces to look for."""
    connection.execute(
        "CREATE VIRTUAL TABLE search USING fts5 (owner, words, tokenize = 'ascii', prefix = '2 3', columnsize = 0)"
    )
    titles = connection.execute("SELECT -number, owner, title FROM conversations ORDER BY number DESC").fetchall()
    messages = connection.execute(
        "SELECT m.number, c.owner, m.content FROM messages m JOIN conversations c ON c.number = m.conversation "
        "ORDER BY m.number"
    )
    connection.executemany(
        "INSERT INTO search (rowid, owner, words) VALUES (?, ?, ?)",
        ((number, owner_word(owner), words(text)) for rows in (titles, messages) for number, owner, text in rows),
    )


def _attachments(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE messages ADD COLUMN attachments TEXT NOT NULL DEFAULT '[]'")


def _search_apart(connection: sqlite3.Connection) -> None:
    """An index for titles and one for texts, each under the number of what it belongs to, in the place of one for both:
    so a few titles are found without going through all texts."""
    connection.execute("DROP TABLE search")
    beginnings = " ".join(map(str, INDEXED_BEGINNINGS))
    for index, texts in (
        ("titles", "SELECT number, owner, title FROM conversations"),
        ("texts", "SELECT m.number, owner, content FROM messages m JOIN conversations c ON c.number = m.conversation"),
    ):
        connection.execute(
            f"CREATE VIRTUAL TABLE {index} USING fts5 "
            f"(owner, words, tokenize = 'ascii', prefix = '{beginnings}', columnsize = 0)"
        )
        connection.executemany(
            f"INSERT INTO {index} (rowid, owner, words) VALUES (?, ?, ?)",
            ((number, owner_word(owner), words(text)) for number, owner, text in connection.execute(texts)),
        )


def _guessed(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE messages ADD COLUMN guessed TEXT NOT NULL DEFAULT '[]'")


STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (_tables, _search, _attachments, _search_apart, _guessed)


def version(connection: sqlite3.Connection) -> int:
    """How many of the steps a file has behind it."""
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    return int(number)


def migrate(connection: sqlite3.Connection) -> None:
    """Do the steps that a file has not behind it. The connection is in autocommit mode."""
    done = version(connection)
    if done > len(STEPS):
        raise TooNew(
            "The conversations were last opened by a later version of this app, and this one would not understand "
            "all of them. Use that version, or choose another --data-dir."
        )
    for number, step in enumerate(STEPS[done:], done + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            step(connection)
            connection.execute(f"PRAGMA application_id = {OURS}")
            connection.execute(f"PRAGMA user_version = {number}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether this is a file of this app, or an empty one."""
    (number,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return number == OURS or not tables


def owner_word(owner: str) -> str:
    """One word for an owner, whatever is in the name: the index is asked for the texts of one owner alone."""
    return "o" + hashlib.sha256(owner.encode()).hexdigest()[:24]
