"""Everybody's conversations and the runs that answer in them: what the page is a view of.

The copy here is the truth, never the browser's. Thread-safe: one short lock, under which nothing is computed, no engine
is called and no disk is touched; but a call may read the disk before it takes it, so none belongs on an event loop, but
`version`, `changed` and stopping what runs. Every call names its owner; what belongs to somebody else does not exist.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from streaming.conversation import BIN_S, Conversation, Node, Settings
from streaming.engines.base import Engine
from streaming.errors import ConversationBusy, EngineBusy, InvalidRequest, NotFound
from streaming.listing import Entry, entry_of, in_order
from streaming.news import News
from streaming.runs import Run, View
from streaming.shelf import Shelf
from streaming.store import Store
from streaming.turns import Turn

MOST_RUNS = 8  # of one owner, waiting ones included, unless said otherwise
GONE = "This conversation is no longer here. Start a new one."
BUSY = "An answer is still being written here. Stop it, or wait for its end."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation as it stands: the shown path, oldest first, and the run that fills its last answer, if any.

    `versions` tells of each shown message that has others beside it which one it is, and of how many. `unsaved` says
    why nothing is being saved, if so.
    """

    owner: str = ""
    conversation_id: str = ""
    nodes: tuple[Node, ...] = ()
    settings: Settings | None = None
    run: Run | None = None
    title: str = ""
    pinned: bool = False
    model: str = ""
    versions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unsaved: str = ""


@dataclass(frozen=True, slots=True)
class _Writing:
    """An answer under way: whose it is, where, which it is, and the run that writes it."""

    owner: str
    turn: Turn
    answer_id: str
    run: Run


class Chats:
    """Conversations by id. A conversation that was never sent to is not kept: its id is the empty string.

    With a `store` they are on the disk too; without one they go with the process. `most_runs` bounds the answers of one
    owner that run or wait at a time.
    """

    def __init__(self, engine: Engine, store: Store | None = None, *, most_runs: int = MOST_RUNS) -> None:
        self._engine = engine
        self._store = store
        self._most_runs = most_runs
        self._lock = threading.Lock()
        self._shelf = Shelf(store)
        self._writing: dict[str, _Writing] = {}
        self._claimed: dict[str, str] = {}  # the owners of conversations that are being changed
        self._news = News()

    # -- what there is

    def snapshot(self, owner: str, conversation_id: str) -> Snapshot:
        """What a page shows. Raises NotFound for what the owner does not have."""
        if not conversation_id:
            return Snapshot(unsaved=self._unsaved())
        with self._opened(owner, conversation_id) as conversation:
            return self._snapshot(conversation)

    def listing(self, owner: str, query: str = "", *, limit: int = 200) -> tuple[Entry, ...]:
        """The owner's conversations, pinned ones first, then what was last used: all, or those with the words of the
        query in their title or in one of their messages."""
        query = query.strip()
        with self._lock:
            here = [
                (one.copy(), one.id in self._writing)
                for one in self._shelf.of(owner)
                if not query
                or self._store is None
                or not self._store.is_saved(one.id)  # else the disk knows it as well
            ]
        lines: dict[str, Entry | None] = {}
        if self._store is not None:
            lines = {entry.id: entry for entry in self._store.entries(owner, query, limit + len(here))}
        for conversation, running in here:
            line = entry_of(conversation, query)
            lines[conversation.id] = replace(line, running=running) if line is not None else None
        return in_order((line for line in lines.values() if line is not None), limit)

    def version(self, owner: str) -> int:
        """Grows with each change of what `listing` would show."""
        return self._news.version(owner)

    async def changed(self, owner: str, version: int) -> None:
        """Return as soon as the owner's version is higher than this."""
        await self._news.changed(owner, version)

    def export(self, owner: str, conversation_id: str) -> Conversation:
        """A copy: what is changed in it changes nothing here."""
        with self._opened(owner, conversation_id) as conversation:
            return conversation.copy()

    def export_all(self, owner: str) -> Iterator[Conversation]:
        """Copies of everything the owner has, but for the bin."""
        ids = dict.fromkeys(self._store.ids(owner) if self._store is not None else [])
        with self._lock:
            ids |= dict.fromkeys(one.id for one in self._shelf.of(owner))
        for conversation_id in ids:
            with self._lock:
                conversation = self._shelf.get(conversation_id)
                conversation = conversation.copy() if conversation is not None else None
            if conversation is None:
                conversation = self._shelf.fetch(owner, conversation_id)
            if conversation is not None and conversation.deleted is None:
                yield conversation

    # -- each of these starts an answer and returns its conversation; on an error nothing has changed

    def send(
        self,
        owner: str,
        conversation_id: str,
        text: str,
        settings: Settings,
        *,
        after: str | None = None,
    ) -> Snapshot:
        """Say something at the end of a conversation (a new one, if the id is empty) and have it answered.

        `after` is the last message that was seen where this was written. If others have come since, this becomes a
        version beside them.
        """

        def place(conversation: Conversation) -> Turn:
            end = conversation.head if after is None else conversation.node(after).id
            return Turn(end, text)

        return self._answer(owner, conversation_id, settings, place)

    def edit(self, owner: str, conversation_id: str, node_id: str, text: str, settings: Settings) -> Snapshot:
        """Say something else in place of an earlier user message and have that answered."""

        def place(conversation: Conversation) -> Turn:
            earlier = conversation.user_message(node_id)
            return Turn(earlier.parent, text)

        return self._answer(owner, conversation_id, settings, place)

    def retry(self, owner: str, conversation_id: str, answer_id: str, settings: Settings) -> Snapshot:
        """Have the question of an answer answered again, with today's settings."""
        return self._answer(
            owner, conversation_id, settings, lambda conversation: Turn(conversation.question_of(answer_id).id)
        )

    def stop(self, owner: str, conversation_id: str) -> None:
        """Stop the running answer, if there is one. Other conversations are not touched."""
        with self._lock:
            writing = self._writing.get(conversation_id)
        if writing is not None and writing.owner == owner:
            writing.run.stop()
        else:
            self.snapshot(owner, conversation_id)  # it is there, and at rest

    # -- each of these changes what is shown, and waits for no answer

    def edit_answer(self, owner: str, conversation_id: str, node_id: str, text: str) -> Snapshot:
        """Put a text of one's own beside an answer, and go on from there."""
        if not text.strip():
            raise InvalidRequest("There is nothing to keep: the answer is empty.", "messages")
        return self._change(owner, conversation_id, lambda conversation: conversation.edit_answer(node_id, text))

    def go_to(self, owner: str, conversation_id: str, node_id: str, step: int) -> Snapshot:
        """Show the version `step` further on from a message (0: itself), with what was said last after it."""
        return self._change(owner, conversation_id, lambda conversation: conversation.go_to(node_id, step))

    def delete_message(self, owner: str, conversation_id: str, node_id: str) -> Snapshot:
        """Take one message out. What followed it stays."""
        return self._change(owner, conversation_id, lambda conversation: conversation.delete_message(node_id))

    def undo(self, owner: str, conversation_id: str) -> str:
        """Step back before the last question; returns its text."""
        texts: list[str] = []
        self._change(owner, conversation_id, lambda conversation: texts.append(conversation.undo()))
        return texts[0]

    def fork(self, owner: str, conversation_id: str, node_id: str) -> Snapshot:
        """A new conversation that begins with the path up to a message."""
        with self._opened(owner, conversation_id) as conversation:
            if conversation.node(node_id).state == "running":
                raise ConversationBusy(BUSY)
            branch = conversation.renewed(owner, node_id)
            branch.created = branch.updated = time.time()
            return self._keep(branch)

    def add(self, owner: str, conversation: Conversation) -> str:
        """Take in a copy of a conversation from elsewhere, under ids of its own. Returns its id."""
        with self._lock:
            return self._keep(conversation.renewed(owner)).conversation_id

    # -- each of these may come while an answer is written

    def rename(self, owner: str, conversation_id: str, title: str) -> None:
        """Give a title; an empty one brings back the first words."""
        with self._opened(owner, conversation_id) as conversation:
            conversation.rename(title)
            self._changed(conversation)

    def pin(self, owner: str, conversation_id: str, pinned: bool) -> None:
        with self._opened(owner, conversation_id) as conversation:
            conversation.pinned = pinned
            self._changed(conversation)

    def delete(self, owner: str, conversation_id: str) -> None:
        """Put a conversation into the bin. A running answer in it is stopped."""
        self.stop(owner, conversation_id)
        with self._opened(owner, conversation_id) as conversation:
            conversation.deleted = time.time()
            self._changed(conversation)

    def restore(self, owner: str, conversation_id: str) -> None:
        """Take it out of the bin again."""
        with self._opened(owner, conversation_id, deleted=True) as conversation:
            conversation.deleted = None
            self._changed(conversation)

    # -- inside

    @contextmanager
    def _opened(self, owner: str, conversation_id: str, *, deleted: bool = False) -> Iterator[Conversation]:
        """A conversation, with the lock held. If it is not in memory it is read before the lock is taken."""
        fetched, dropped = None, 0
        while True:
            with self._lock:
                conversation = self._shelf.get(conversation_id)
                if conversation is None and fetched is not None and dropped == self._shelf.dropped:
                    conversation = fetched
                    self._shelf.add(conversation, fetched=True, in_use=self._in_use())
                if conversation is not None:
                    binned = conversation.deleted
                    if conversation.owner != owner or (
                        binned is not None and (not deleted or binned < time.time() - BIN_S)
                    ):
                        raise NotFound(GONE)
                    yield conversation
                    return
                dropped = self._shelf.dropped
            fetched = self._shelf.fetch(owner, conversation_id)
            if fetched is None:
                raise NotFound(GONE)

    def _snapshot(self, conversation: Conversation) -> Snapshot:
        writing = self._writing.get(conversation.id)
        return Snapshot(
            conversation.owner,
            conversation.id,
            tuple(conversation.path()),
            conversation.settings,
            writing.run if writing is not None else None,
            conversation.title,
            conversation.pinned,
            conversation.model,
            conversation.versions(),
            self._unsaved(),
        )

    def _keep(self, conversation: Conversation) -> Snapshot:
        """Take a new one in. With the lock held."""
        if conversation.id not in self._shelf:
            self._shelf.add(conversation, fetched=False, in_use=self._in_use())
        self._changed(conversation)
        return self._snapshot(conversation)

    def _in_use(self) -> set[str]:
        return {*self._writing, *self._claimed}

    def _unsaved(self) -> str:
        return self._store.unsaved if self._store is not None else ""

    def _changed(self, conversation: Conversation) -> None:
        """Save it, and tell those who look at the list. With the lock held."""
        self._shelf.save(conversation)
        self._news.tell(conversation.owner)

    def _change(self, owner: str, conversation_id: str, change: Callable[[Conversation], object]) -> Snapshot:
        with self._opened(owner, conversation_id) as conversation:
            self._check_free(conversation)
            change(conversation)
            self._changed(conversation)
            return self._snapshot(conversation)

    def _check_free(self, conversation: Conversation) -> None:
        if conversation.id in self._claimed or conversation.id in self._writing:
            raise ConversationBusy(BUSY)

    @contextmanager
    def _claim(self, owner: str, conversation_id: str) -> Iterator[Conversation]:
        """Keep everybody else from changing a conversation while its next answer is being started."""
        if conversation_id:
            with self._opened(owner, conversation_id) as conversation:
                self._check_free(conversation)
                self._take_turn(conversation)
        else:
            conversation = Conversation(owner)
            with self._lock:
                self._take_turn(conversation)
        try:
            yield conversation
        finally:
            with self._lock:
                del self._claimed[conversation.id]

    def _take_turn(self, conversation: Conversation) -> None:
        owner = conversation.owner
        own = sum(writing.owner == owner for writing in self._writing.values())
        if own + sum(claimed == owner for claimed in self._claimed.values()) >= self._most_runs:
            raise EngineBusy(
                f"{self._most_runs} of your answers are being written or wait. Stop one, or wait for the end of one."
            )
        self._claimed[conversation.id] = owner

    def _answer(
        self, owner: str, conversation_id: str, settings: Settings, find_place: Callable[[Conversation], Turn]
    ) -> Snapshot:
        with self._claim(owner, conversation_id) as conversation:
            turn = find_place(conversation)
            messages = turn.prompt(conversation, settings)
            generation = self._engine.stream(messages, settings.sampling, user=owner)
            model = self._engine.status().model
            with self._lock:
                conversation.settings = settings
                answer_id = turn.begin(conversation, model)
                run = Run(
                    generation,
                    lambda view: self._end(conversation, turn, answer_id, view),
                    said=turn.said,
                    thought_s=turn.unfinished.thought_s if turn.unfinished is not None else 0.0,
                )
                self._writing[conversation.id] = _Writing(owner, turn, answer_id, run)
                self._keep(conversation)
            if self._store is not None:
                self._store.follow(conversation.id, lambda: self._put_down(conversation))
            run.start()
        return self.snapshot(owner, conversation.id)

    def _put_down(self, conversation: Conversation) -> None:
        """Save what there is of an answer under way. The store's thread calls it."""
        with self._lock:
            writing = self._writing.get(conversation.id)
            if writing is None:
                return
            view = writing.run.view()
            said = conversation.node(writing.answer_id).message
            if (view.text, view.reasoning) != (said.content, said.reasoning):
                writing.turn.put_down(conversation, writing.answer_id, view)
                self._shelf.save(conversation)

    def _end(self, conversation: Conversation, turn: Turn, answer_id: str, view: View) -> None:
        if self._store is not None:
            self._store.unfollow(conversation.id)
        with self._lock:
            turn.put_down(conversation, answer_id, view)
            self._writing.pop(conversation.id, None)
            self._changed(conversation)
