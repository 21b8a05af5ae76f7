"""What is to be saved of a conversation, and how it gets into the tables.

Runs on whatever connection it is given, in whatever thread; see store.py for when, database.py for the file.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from streaming.conversation import BIN_S, Conversation, Node
from streaming.rows import Row, conversation_row, node_row
from streaming.schema import owner_word
from streaming.search import words

BIN_MARGIN_S = 3_600  # until what can no longer be restored is done away with: nobody is at it any more


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
        _index(connection, "titles", number, row["owner"], row["title"])
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
        _index(connection, "texts", number, owner, node.message.content)


def _insert(connection: sqlite3.Connection, table: str, row: Row) -> int:
    columns, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    return connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", row).lastrowid or 0


def _update(connection: sqlite3.Connection, table: str, row: Row) -> None:
    values = ", ".join(f"{name} = :{name}" for name in row)
    connection.execute(f"UPDATE {table} SET {values} WHERE id = :id", row)


def _index(connection: sqlite3.Connection, index: str, number: int, owner: str, text: str) -> None:
    connection.execute(f"DELETE FROM {index} WHERE rowid = ?", (number,))
    connection.execute(
        f"INSERT INTO {index} (rowid, owner, words) VALUES (?, ?, ?)", (number, owner_word(owner), words(text))
    )


def _forget(connection: sqlite3.Connection, which: str, value: object) -> None:
    """Take messages out, and out of the index."""
    connection.execute(f"DELETE FROM texts WHERE rowid IN (SELECT number FROM messages WHERE {which})", (value,))
    connection.execute(f"DELETE FROM messages WHERE {which}", (value,))


# -- once in a while


def interrupt(connection: sqlite3.Connection) -> None:
    """Answers that were being written when the app ended: mark them, and let them be found."""
    connection.execute("BEGIN IMMEDIATE")
    for number, owner, content in connection.execute(
        "SELECT m.number, c.owner, m.content FROM messages m JOIN conversations c ON c.number = m.conversation "
        "WHERE m.state = 'running'"
    ).fetchall():
        _index(connection, "texts", number, owner, content)
    connection.execute("UPDATE messages SET state = 'interrupted' WHERE state = 'running'")
    connection.execute("COMMIT")


def empty_bin(connection: sqlite3.Connection, now: float) -> None:
    """Do away with conversations that were deleted long ago."""
    connection.execute("BEGIN IMMEDIATE")
    for (number,) in connection.execute(
        "SELECT number FROM conversations WHERE deleted IS NOT NULL AND deleted < ?", (now - BIN_S - BIN_MARGIN_S,)
    ).fetchall():
        _forget(connection, "conversation = ?", number)
        connection.execute("DELETE FROM titles WHERE rowid = ?", (number,))
        connection.execute("DELETE FROM conversations WHERE number = ?", (number,))
    connection.execute("COMMIT")
