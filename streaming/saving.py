"""What is to be saved of a conversation, and how it gets into the tables and out of them again.

Runs on whatever connection it is given, in whatever thread; see store.py for when, database.py for the file.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from streaming.conversation import BIN_S, Conversation, Node
from streaming.listing import Entry, found, in_order
from streaming.rows import Row, conversation_row, node_row, read_conversation, read_node
from streaming.schema import owner_word
from streaming.search import phrases, words

BIN_MARGIN_S = 3_600  # until what can no longer be restored is done away with: nobody is at it any more
MOST_HITS = 20_000  # messages that are looked at for one search, newest first


@dataclass(frozen=True, slots=True)
class Change:
    """A conversation as it stands, and which of its messages are new or different, or gone, since it was last saved."""

    conversation: Conversation
    nodes: dict[str, Node]
    removed: frozenset[str]

    def after(self, earlier: "Change | None") -> "Change":
        """Both changes as one, this one being the later."""
        if earlier is None:
            return self
        nodes = {node_id: node for node_id, node in (earlier.nodes | self.nodes).items() if node_id not in self.removed}
        return Change(self.conversation, nodes, earlier.removed | self.removed)


def save(connection: sqlite3.Connection, changes: Iterable[Change]) -> None:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for change in changes:
            _save(connection, change)
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _save(connection: sqlite3.Connection, change: Change) -> None:
    row = conversation_row(change.conversation)
    earlier = connection.execute("SELECT number, title FROM conversations WHERE id = ?", (row["id"],)).fetchone()
    if earlier is None:
        number = _insert(connection, "conversations", row)
    else:
        number = earlier["number"]
        _update(connection, "conversations", row)
    if earlier is None or earlier["title"] != row["title"]:
        _index(connection, -number, row["owner"], row["title"])
    for node_id in change.removed:
        _forget(connection, "id = ?", node_id)
    for node in change.nodes.values():
        _save_node(connection, number, row["owner"], node)


def _save_node(connection: sqlite3.Connection, conversation: int, owner: str, node: Node) -> None:
    row = node_row(node)
    earlier = connection.execute("SELECT number, state, content FROM messages WHERE id = ?", (node.id,)).fetchone()
    if earlier is None:
        number = _insert(connection, "messages", row | {"conversation": conversation})
    else:
        number = earlier["number"]
        _update(connection, "messages", row)
    as_before = earlier is not None and earlier["state"] != "running" and earlier["content"] == node.message.content
    if node.state != "running" and not as_before:  # what is being written can be found when it is there
        _index(connection, number, owner, node.message.content)


def _insert(connection: sqlite3.Connection, table: str, row: Row) -> int:
    columns, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    return connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", row).lastrowid or 0


def _update(connection: sqlite3.Connection, table: str, row: Row) -> None:
    values = ", ".join(f"{name} = :{name}" for name in row)
    connection.execute(f"UPDATE {table} SET {values} WHERE id = :id", row)


def _index(connection: sqlite3.Connection, number: int, owner: str, text: str) -> None:
    connection.execute("DELETE FROM search WHERE rowid = ?", (number,))
    connection.execute(
        "INSERT INTO search (rowid, owner, words) VALUES (?, ?, ?)", (number, owner_word(owner), words(text))
    )


def _forget(connection: sqlite3.Connection, which: str, value: object) -> None:
    """Take messages out, and out of the index."""
    connection.execute(f"DELETE FROM search WHERE rowid IN (SELECT number FROM messages WHERE {which})", (value,))
    connection.execute(f"DELETE FROM messages WHERE {which}", (value,))


# -- once in a while


def interrupt(connection: sqlite3.Connection) -> None:
    """Answers that were being written when the app ended: mark them, and let them be found."""
    connection.execute("BEGIN IMMEDIATE")
    for number, owner, content in connection.execute(
        "SELECT m.number, c.owner, m.content FROM messages m JOIN conversations c ON c.number = m.conversation "
        "WHERE m.state = 'running'"
    ).fetchall():
        _index(connection, number, owner, content)
    connection.execute("UPDATE messages SET state = 'interrupted' WHERE state = 'running'")
    connection.execute("COMMIT")


def empty_bin(connection: sqlite3.Connection, now: float) -> None:
    """Do away with conversations that were deleted long ago."""
    connection.execute("BEGIN IMMEDIATE")
    for (number,) in connection.execute(
        "SELECT number FROM conversations WHERE deleted IS NOT NULL AND deleted < ?", (now - BIN_S - BIN_MARGIN_S,)
    ).fetchall():
        _forget(connection, "conversation = ?", number)
        connection.execute("DELETE FROM search WHERE rowid = ?", (-number,))
        connection.execute("DELETE FROM conversations WHERE number = ?", (number,))
    connection.execute("COMMIT")


# -- out of the tables again


def load(connection: sqlite3.Connection, owner: str, conversation_id: str) -> Conversation | None:
    """A conversation of this owner, the bin included."""
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
    which it was said last. The query is words, never a language: each is put in quotes."""
    wanted = phrases(query)
    if not wanted:
        return []
    match = f'owner : "{owner_word(owner)}" ' + " ".join(f'words : "{phrase}" *' for phrase in wanted)
    hits: dict[str, Entry] = {}
    for row in _hits(connection, match):
        if len(hits) >= limit and row["content"] is not None:
            break
        if row["id"] not in hits:
            entry = _entry(row)
            text = (row["title"], None) if row["content"] is None else (row["content"], row["message"])
            hits[entry.id] = found(entry, query, [text]) or entry
    return list(in_order(hits.values(), limit))


def _hits(connection: sqlite3.Connection, match: str) -> Iterator[sqlite3.Row]:
    """Titles, then messages, the newest first of each."""
    columns = "c.id, c.title, c.updated, c.pinned"
    yield from connection.execute(
        f"SELECT {columns}, NULL AS message, NULL AS content FROM search s JOIN conversations c ON c.number = -s.rowid "
        "WHERE search MATCH ? AND s.rowid < 0 AND c.deleted IS NULL ORDER BY s.rowid LIMIT ?",
        (match, MOST_HITS),
    )
    yield from connection.execute(
        f"SELECT {columns}, m.id AS message, m.content FROM search s JOIN messages m ON m.number = s.rowid "
        "JOIN conversations c ON c.number = m.conversation "
        "WHERE search MATCH ? AND s.rowid > 0 AND c.deleted IS NULL ORDER BY s.rowid DESC LIMIT ?",
        (match, MOST_HITS),
    )


def _entry(row: sqlite3.Row) -> Entry:
    return Entry(row["id"], row["title"], row["updated"], bool(row["pinned"]))
