"""Everybody's conversations and the runs that answer in them: what the page is a view of.

The copy here is the truth, never the browser's. Thread-safe: one short lock, under which nothing is computed and no
engine is called. Every call names its owner, and what belongs to somebody else does not exist.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from streaming.conversation import Conversation, Node, Settings
from streaming.engines.base import Engine
from streaming.errors import ConversationBusy, EngineBusy, InvalidRequest, NotFound
from streaming.listing import Entry, entry_of, in_order
from streaming.news import News
from streaming.runs import Run, View
from streaming.turns import Turn

MOST_CONVERSATIONS = 2_000  # kept in memory; beyond it the longest unused ones go
MOST_RUNS = 8  # of one owner, waiting ones included, unless said otherwise
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
    """An answer under way: whose it is, which it is, and the run that writes it."""

    owner: str
    answer_id: str
    run: Run


class Chats:
    """Conversations by id. A conversation that was never sent to is not kept: its id is the empty string.

    `most_runs` bounds the answers of one owner that run or wait at a time.
    """

    def __init__(self, engine: Engine, *, most_runs: int = MOST_RUNS) -> None:
        self._engine = engine
        self._most_runs = most_runs
        self._lock = threading.Lock()
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._writing: dict[str, _Writing] = {}
        self._claimed: dict[str, str] = {}  # the owners of conversations that are being changed
        self._news = News()

    # -- what there is

    def snapshot(self, owner: str, conversation_id: str) -> Snapshot:
        """What a page shows. Raises NotFound for what the owner does not have."""
        if not conversation_id:
            return Snapshot()
        with self._opened(owner, conversation_id) as conversation:
            return self._snapshot(conversation)

    def listing(self, owner: str, query: str = "", *, limit: int = 200) -> tuple[Entry, ...]:
        """The owner's conversations, pinned ones first, then what was last used: all, or those with the words of the
        query in their title or in one of their messages."""
        with self._lock:
            own = [(one.copy(), one.id in self._writing) for one in self._conversations.values() if one.owner == owner]
        lines = ((entry_of(conversation, query), running) for conversation, running in own)
        return in_order((replace(line, running=running) for line, running in lines if line is not None), limit)

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
        with self._lock:
            ids = [one.id for one in self._conversations.values() if one.owner == owner and one.deleted is None]
        for conversation_id in ids:
            try:
                yield self.export(owner, conversation_id)
            except NotFound:  # deleted meanwhile
                continue

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
        run = self.snapshot(owner, conversation_id).run
        if run is not None:
            run.stop()

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
        """A conversation, with the lock held."""
        with self._lock:
            conversation = self._conversations.get(conversation_id)
            if (
                conversation is None
                or conversation.owner != owner
                or (conversation.deleted is not None and not deleted)
            ):
                raise NotFound("This conversation is no longer here. Start a new one.")
            self._conversations.move_to_end(conversation_id)
            yield conversation

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
        )

    def _keep(self, conversation: Conversation) -> Snapshot:
        """Take a new one in. With the lock held."""
        self._conversations[conversation.id] = conversation
        self._changed(conversation)
        for conversation_id in list(self._conversations):
            if len(self._conversations) <= MOST_CONVERSATIONS:
                break
            if conversation_id not in self._writing and conversation_id not in self._claimed:
                del self._conversations[conversation_id]
        return self._snapshot(conversation)

    def _changed(self, conversation: Conversation) -> None:
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
                self._writing[conversation.id] = _Writing(owner, answer_id, run)
                self._keep(conversation)
            run.start()
        return self.snapshot(owner, conversation.id)

    def _end(self, conversation: Conversation, turn: Turn, answer_id: str, view: View) -> None:
        with self._lock:
            turn.put_down(conversation, answer_id, view)
            self._writing.pop(conversation.id, None)
            self._changed(conversation)
