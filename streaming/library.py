"""Whose conversation is whose: found in memory or on the disk, given out under a lock, saved when it has changed.

Knows no engine and no run. Thread-safe: one short lock, under which no disk is touched; but a call may read the disk
before it takes it, so none belongs on an event loop, but `version` and `newer`. What belongs to somebody else does
not exist.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from streaming.conversation import BIN_S, Conversation
from streaming.errors import NotFound
from streaming.listing import Entry, entry_of, in_order
from streaming.news import News
from streaming.shelf import Shelf
from streaming.store import Store

GONE = "This conversation is no longer here. Start a new one."


class Library:
    """`in_use` names the conversations that have to stay in memory; it is called with the lock held."""

    def __init__(self, store: Store | None, in_use: Callable[[], Collection[str]]) -> None:
        self.lock = threading.Lock()
        self._store = store
        self._in_use = in_use
        self._shelf = Shelf(store)
        self._news = News()

    @property
    def unsaved(self) -> str:
        """What is amiss with saving, in words for everybody; empty, if nothing is, or if it was not asked for."""
        return self._store.unsaved or self._store.notice if self._store is not None else ""

    @contextmanager
    def opened(self, owner: str, conversation_id: str, *, binned: bool = False) -> Iterator[Conversation]:
        """A conversation, with the lock held; one in the bin only if `binned`. Raises NotFound."""
        fetched, dropped = None, 0
        while True:
            with self.lock:
                conversation = self._shelf.get(conversation_id)
                if conversation is None and fetched is not None and dropped == self._shelf.dropped:
                    conversation = fetched
                    self._shelf.add(conversation, fetched=True, in_use=self._in_use())
                if conversation is not None:
                    if conversation.owner != owner or not _is_there(conversation, binned):
                        raise NotFound(GONE)
                    yield conversation
                    return
                dropped = self._shelf.dropped
            fetched = self._shelf.fetch(owner, conversation_id)
            if fetched is None:
                raise NotFound(GONE)

    def keep(self, conversation: Conversation) -> None:
        """Take one in, or note that it has changed. With the lock held."""
        if conversation.id not in self._shelf:
            self._shelf.add(conversation, fetched=False, in_use=self._in_use())
        self.changed(conversation)

    def changed(self, conversation: Conversation) -> None:
        """Save it, and tell those who look at the list. With the lock held."""
        self._shelf.save(conversation)
        self._news.tell(conversation.owner)

    def note(self, conversation: Conversation) -> None:
        """Save it, though no list looks different. With the lock held."""
        self._shelf.save(conversation)

    def listing(self, owner: str, query: str, limit: int) -> tuple[Entry, ...]:
        """The owner's list: what is in memory as it is there, the rest as it is on the disk."""
        query = query.strip()
        with self.lock:
            here = [
                one.copy()
                for one in self._shelf.of(owner)
                if not query
                or self._store is None
                or not self._store.is_saved(one.id)  # else the disk knows it as well
            ]
        lines: dict[str, Entry | None] = {}
        if self._store is not None:
            lines = {entry.id: entry for entry in self._store.entries(owner, query, limit + len(here))}
        lines |= {conversation.id: entry_of(conversation, query) for conversation in here}
        return in_order((line for line in lines.values() if line is not None), limit)

    def copies(self, owner: str) -> Iterator[Conversation]:
        """Copies of everything the owner has, but for the bin."""
        ids = dict.fromkeys(self._store.ids(owner) if self._store is not None else [])
        with self.lock:
            ids |= dict.fromkeys(one.id for one in self._shelf.of(owner))
        for conversation_id in ids:
            with self.lock:
                conversation = self._shelf.get(conversation_id)
                conversation = conversation.copy() if conversation is not None else None
            if conversation is None:
                conversation = self._shelf.fetch(owner, conversation_id)
            if conversation is not None and conversation.deleted is None:
                yield conversation

    def version(self, owner: str) -> int:
        return self._news.version(owner)

    async def newer(self, owner: str, version: int) -> None:
        """Return as soon as the owner's version is higher than this."""
        await self._news.changed(owner, version)


def _is_there(conversation: Conversation, binned: bool) -> bool:
    return conversation.deleted is None or (binned and conversation.deleted >= time.time() - BIN_S)
