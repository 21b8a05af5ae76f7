"""Conversations out of the tables again: one, the list, what a search finds.

Runs on whatever connection it is given, in whatever thread. Every call names its owner and reads nothing of others.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence

from streaming.conversation import BIN_S, Conversation
from streaming.listing import Entry, found, in_order
from streaming.rows import read_conversation, read_node
from streaming.schema import INDEXED_BEGINNINGS, owner_word
from streaming.search import phrases

MOST_HITS = 20_000  # messages that are looked at for one search, the newest


def load(connection: sqlite3.Connection, owner: str, conversation_id: str) -> Conversation | None:
    """A conversation, the bin included."""
    row = connection.execute(
        "SELECT * FROM conversations WHERE id = ? AND owner = ?", (conversation_id, owner)
    ).fetchone()
    if row is None or (row["deleted"] is not None and row["deleted"] < time.time() - BIN_S):
        return None
    nodes = connection.execute("SELECT * FROM messages WHERE conversation = ? ORDER BY number", (row["number"],))
    return read_conversation(row, [read_node(node) for node in nodes])


def ids(connection: sqlite3.Connection, owner: str) -> list[str]:
    """Of all conversations that are not in the bin, newest first."""
    rows = connection.execute(
        "SELECT id FROM conversations WHERE owner = ? AND deleted IS NULL ORDER BY updated DESC", (owner,)
    )
    return [row["id"] for row in rows]


def entries(connection: sqlite3.Connection, owner: str, limit: int) -> list[Entry]:
    """The first lines of the owner's list."""
    rows = connection.execute(
        "SELECT id, title, updated, pinned FROM conversations WHERE owner = ? AND deleted IS NULL "
        "ORDER BY pinned DESC, updated DESC LIMIT ?",
        (owner, limit),
    )
    return [_entry(row) for row in rows]


def search(connection: sqlite3.Connection, owner: str, query: str, limit: int) -> list[Entry]:
    """Conversations with all words of the query in the title or in one message, as many as fit the limit: those in
    which it was said last. Where whole words alone are in so many, no others are looked for."""
    wanted = phrases(query)
    if not wanted:
        return []
    lines = {}
    for row in _titles(connection, _match(owner, wanted), limit):
        entry = _entry(row)
        lines[entry.id] = found(entry, query, [(entry.title, None)]) or entry
    hits: dict[int, int] = {}
    if any(len(phrase.rpartition(" ")[2]) > max(INDEXED_BEGINNINGS) for phrase in wanted):
        hits = _hits(connection, _match(owner, wanted, whole=True), limit)
    if len(hits) < limit:
        hits = _hits(connection, _match(owner, wanted), limit)
    for conversation, message in hits.items():
        row = connection.execute(
            "SELECT c.id, c.title, c.updated, c.pinned, m.id AS message, m.content FROM conversations c, messages m "
            "WHERE c.number = ? AND m.number = ?",
            (conversation, message),
        ).fetchone()
        entry = _entry(row)
        lines.setdefault(entry.id, found(entry, query, [(row["content"], row["message"])]) or entry)
    return list(in_order(lines.values(), limit))


def _match(owner: str, wanted: Sequence[str], *, whole: bool = False) -> str:
    """A query in the index's own language. What a person has typed is words in quotes there, whatever it was."""
    more = "" if whole else " *"
    return " ".join([f'owner : "{owner_word(owner)}"', *(f'words : "{phrase}"{more}' for phrase in wanted)])


def _titles(connection: sqlite3.Connection, match: str, limit: int) -> Iterable[sqlite3.Row]:
    return connection.execute(
        "SELECT c.id, c.title, c.updated, c.pinned FROM titles t JOIN conversations c ON c.number = t.rowid "
        "WHERE titles MATCH ? AND c.deleted IS NULL ORDER BY t.rowid DESC LIMIT ?",
        (match, limit),
    )


def _hits(connection: sqlite3.Connection, match: str, limit: int) -> dict[int, int]:
    """The latest message with it, by conversation: numbers alone, for most hits are in conversations that have one."""
    hits: dict[int, int] = {}
    for conversation, message in connection.execute(
        "SELECT m.conversation, m.number FROM texts t JOIN messages m ON m.number = t.rowid "
        "JOIN conversations c ON c.number = m.conversation "
        "WHERE texts MATCH ? AND c.deleted IS NULL ORDER BY t.rowid DESC LIMIT ?",
        (match, MOST_HITS),
    ):
        hits.setdefault(conversation, message)
        if len(hits) >= limit:
            break
    return hits


def _entry(row: sqlite3.Row) -> Entry:
    return Entry(row["id"], row["title"], row["updated"], bool(row["pinned"]))
