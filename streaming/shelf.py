"""The conversations that are in memory: those in use, and as many of the others as there is room for.

With a store the rest is on the disk, and whatever changes goes there; without one the longest unused are forgotten.
Not thread-safe: Chats guards it, but for `fetch`, which may read the disk and is called without a lock.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from streaming.conversation import Conversation, Node
from streaming.saving import Change
from streaming.store import Store

MOST_IN_MEMORY = 200  # where the rest is on the disk
MOST_WITHOUT_STORE = 2_000


@dataclass(slots=True)
class _Kept:
    """A conversation, and its messages as they were when they were last given to the store."""

    conversation: Conversation
    put: dict[str, Node]


class Shelf:
    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.dropped = 0  # how often something was dropped: what was read before may be older than what is on the disk

    def __contains__(self, conversation_id: str) -> bool:
        return conversation_id in self._kept

    def get(self, conversation_id: str) -> Conversation | None:
        kept = self._kept.get(conversation_id)
        if kept is None:
            return None
        self._kept.move_to_end(conversation_id)
        return kept.conversation

    def of(self, owner: str) -> list[Conversation]:
        return [kept.conversation for kept in self._kept.values() if kept.conversation.owner == owner]

    def fetch(self, owner: str, conversation_id: str) -> Conversation | None:
        """A copy from the disk."""
        return self._store.load(owner, conversation_id) if self._store is not None else None

    def add(self, conversation: Conversation, *, fetched: bool, in_use: Collection[str]) -> None:
        """Put one more here; what is `in_use` stays, others may have to go."""
        put = {node.id: node for node in conversation.nodes} if fetched else {}
        self._kept[conversation.id] = _Kept(conversation, put)
        most = MOST_WITHOUT_STORE if self._store is None else MOST_IN_MEMORY
        may_go = self._may_go(in_use)
        for conversation_id in list(self._kept)[:-1]:
            if len(self._kept) <= most:
                return
            if may_go(conversation_id):
                del self._kept[conversation_id]
                self.dropped += 1

    def save(self, conversation: Conversation) -> None:
        """Give the store what has changed since the last time."""
        if self._store is None:
            return
        kept = self._kept[conversation.id]
        now = {node.id: node for node in conversation.nodes}
        changed = {node_id: node for node_id, node in now.items() if kept.put.get(node_id) is not node}
        removed = frozenset(kept.put.keys() - now.keys())
        kept.put = now
        self._store.put(Change(conversation.copy(), changed, removed))

    def _may_go(self, in_use: Collection[str]) -> Callable[[str], bool]:
        store = self._store
        return lambda name: name not in in_use and (store is None or store.is_saved(name))
