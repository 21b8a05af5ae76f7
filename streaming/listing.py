"""A line of somebody's list of conversations: pinned ones first, then what was last used.

Pure: the store makes lines of its rows, this file of conversations in memory, and both put them in the same order.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from streaming.conversation import Conversation
from streaming.search import find


@dataclass(frozen=True, slots=True)
class Entry:
    """One conversation. `hit` is where a query was found: the text before, the match, the text after; `hit_node` the
    message that it is in, none if it is the title."""

    id: str
    title: str
    updated: float
    pinned: bool
    running: bool = False
    hit: tuple[str, str, str] | None = None
    hit_node: str | None = None


def entry_of(conversation: Conversation, query: str = "") -> Entry | None:
    """The line of a conversation in memory; none, if it is in the bin or the query is not in it."""
    if conversation.deleted is not None:
        return None
    title = conversation.title
    entry = Entry(conversation.id, title, conversation.updated, conversation.pinned)
    if not query.strip():
        return entry
    return found(entry, query, [(title, None)]) or found(
        entry, query, ((node.message.content, node.id) for node in reversed([*conversation.nodes]))
    )


def found(entry: Entry, query: str, texts: Iterable[tuple[str, str | None]]) -> Entry | None:
    """The line with the first hit among texts of its conversation, given with the ids of their messages."""
    for text, node_id in texts:
        hit = find(query, text)
        if hit is not None:
            return Entry(
                entry.id, entry.title, entry.updated, entry.pinned, entry.running, hit.parts(), hit_node=node_id
            )
    return None


def in_order(entries: Iterable[Entry], limit: int) -> tuple[Entry, ...]:
    """The first `limit` of these."""
    return tuple(sorted(entries, key=lambda entry: (not entry.pinned, -entry.updated, entry.id))[:limit])
