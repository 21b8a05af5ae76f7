"""Everybody's conversations and the runs that answer in them: what the page is a view of, and the only way to them.

The copy here is the truth, never the browser's. Thread-safe: one short lock, under which nothing is computed, no engine
is called and no disk is touched; but a call may read the disk before it takes it, so none belongs on an event loop, but
`version`, `changed` and stopping what runs. Every call names its owner; what belongs to somebody else does not exist.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from streaming.allowance import Allowance
from streaming.attachments import Attachment
from streaming.conversation import Conversation, Node, Settings
from streaming.engines.base import Engine
from streaming.errors import ConversationBusy, EngineBusy, InvalidRequest
from streaming.library import Library
from streaming.listing import Entry
from streaming.runs import Run, View
from streaming.store import Store
from streaming.turns import Turn

MOST_RUNS = 8  # of one owner, waiting ones included, unless said otherwise
BUSY = "An answer is still being written here. Stop it, or wait for its end."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation as it stands: the shown path, oldest first, and the run that fills its last answer, if any.

    `versions` tells of each shown message that has others beside it which one it is, and of how many. `unsaved` says
    what is amiss with saving, if anything is: that nothing is saved now, or that the file has been damaged.
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
    owner that run or wait at a time, `allowance` what one may ask for in a while.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store | None = None,
        *,
        most_runs: int = MOST_RUNS,
        allowance: Allowance | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._most_runs = most_runs
        self._allowance = allowance or Allowance()
        self._library = Library(store, lambda: {*self._writing, *self._claimed})
        self._writing: dict[str, _Writing] = {}
        self._claimed: dict[str, str] = {}  # the owners of conversations that are being changed

    # -- what there is

    def snapshot(self, owner: str, conversation_id: str) -> Snapshot:
        """What a page shows. Raises NotFound for what the owner does not have."""
        if not conversation_id:
            return Snapshot(unsaved=self._library.unsaved)
        with self._library.opened(owner, conversation_id) as conversation:
            return self._snapshot(conversation)

    def listing(self, owner: str, query: str = "", *, limit: int = 200) -> tuple[Entry, ...]:
        """The owner's conversations, pinned ones first, then what was last used: all, or those with the words of the
        query in their title or in one of their messages."""
        lines = self._library.listing(owner, query, limit)
        return tuple(replace(line, running=line.id in self._writing) for line in lines)

    def version(self, owner: str) -> int:
        """Grows with each change of what `listing` would show."""
        return self._library.version(owner)

    async def changed(self, owner: str, version: int) -> None:
        """Return as soon as the owner's version is higher than this."""
        await self._library.newer(owner, version)

    def export(self, owner: str, conversation_id: str) -> Conversation:
        """A copy: what is changed in it changes nothing here."""
        with self._library.opened(owner, conversation_id) as conversation:
            return conversation.copy()

    def export_all(self, owner: str) -> Iterator[Conversation]:
        """Copies of everything the owner has, but for the bin."""
        return self._library.copies(owner)

    # -- each of these starts an answer and returns its conversation; on an error nothing has changed

    def send(
        self,
        owner: str,
        conversation_id: str,
        text: str,
        settings: Settings,
        *,
        after: str | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> Snapshot:
        """Say something at the end of a conversation (a new one, if the id is empty) and have it answered.

        `after` is the last message that was seen where this was written. If others have come since, this becomes a
        version beside them.
        """

        def place(conversation: Conversation) -> Turn:
            end = conversation.head if after is None else conversation.node(after).id
            return Turn(end, text, attachments)

        return self._answer(owner, conversation_id, settings, place)

    def edit(self, owner: str, conversation_id: str, node_id: str, text: str, settings: Settings) -> Snapshot:
        """Say something else in place of an earlier user message and have that answered. Its files stay with it."""

        def place(conversation: Conversation) -> Turn:
            earlier = conversation.user_message(node_id)
            return Turn(earlier.parent, text, earlier.attachments)

        return self._answer(owner, conversation_id, settings, place)

    def retry(self, owner: str, conversation_id: str, answer_id: str, settings: Settings) -> Snapshot:
        """Have the question of an answer answered again, with today's settings."""
        return self._answer(
            owner, conversation_id, settings, lambda conversation: Turn(conversation.question_of(answer_id).id)
        )

    def continue_answer(self, owner: str, conversation_id: str, answer_id: str, settings: Settings) -> Snapshot:
        """Have the last answer go on where it ends: it was cut, stopped or interrupted, or a person wrote it."""

        def place(conversation: Conversation) -> Turn:
            answer = conversation.unfinished(answer_id)
            return Turn(answer.parent, unfinished=answer)

        return self._answer(owner, conversation_id, settings, place)

    def stop(self, owner: str, conversation_id: str) -> None:
        """Stop the running answer, if there is one. Other conversations are not touched."""
        with self._library.lock:
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
        with self._library.opened(owner, conversation_id) as conversation:
            if conversation.node(node_id).state == "running":
                raise ConversationBusy(BUSY)
            branch = conversation.renewed(owner, node_id)
            branch.created = branch.updated = time.time()
            self._library.keep(branch)
            return self._snapshot(branch)

    def add(self, owner: str, conversation: Conversation) -> str:
        """Take in a copy of a conversation from elsewhere, under ids of its own. Returns its id."""
        with self._library.lock:
            copy = conversation.renewed(owner)
            self._library.keep(copy)
            return copy.id

    # -- each of these may come while an answer is written

    def rename(self, owner: str, conversation_id: str, title: str) -> None:
        """Give a title; an empty one brings back the first words."""
        with self._library.opened(owner, conversation_id) as conversation:
            conversation.rename(title)
            self._library.changed(conversation)

    def pin(self, owner: str, conversation_id: str, pinned: bool) -> None:
        with self._library.opened(owner, conversation_id) as conversation:
            conversation.pinned = pinned
            self._library.changed(conversation)

    def delete(self, owner: str, conversation_id: str) -> None:
        """Put a conversation into the bin. A running answer in it is stopped."""
        self.stop(owner, conversation_id)
        with self._library.opened(owner, conversation_id) as conversation:
            conversation.deleted = time.time()
            self._library.changed(conversation)

    def restore(self, owner: str, conversation_id: str) -> None:
        """Take it out of the bin again."""
        with self._library.opened(owner, conversation_id, binned=True) as conversation:
            conversation.deleted = None
            self._library.changed(conversation)

    # -- inside

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
            self._library.unsaved,
        )

    def _change(self, owner: str, conversation_id: str, change: Callable[[Conversation], object]) -> Snapshot:
        with self._library.opened(owner, conversation_id) as conversation:
            self._check_free(conversation)
            change(conversation)
            self._library.changed(conversation)
            return self._snapshot(conversation)

    def _check_free(self, conversation: Conversation) -> None:
        if conversation.id in self._claimed or conversation.id in self._writing:
            raise ConversationBusy(BUSY)

    @contextmanager
    def _claim(self, owner: str, conversation_id: str) -> Iterator[Conversation]:
        """Keep everybody else from changing a conversation while its next answer is being started."""
        if conversation_id:
            with self._library.opened(owner, conversation_id) as conversation:
                self._check_free(conversation)
                self._take_turn(conversation)
        else:
            conversation = Conversation(owner)
            with self._library.lock:
                self._take_turn(conversation)
        try:
            yield conversation
        finally:
            with self._library.lock:
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
            goes_on = turn.said is not None
            self._allowance.admit(owner)
            generation = self._engine.stream(messages, settings.sampling, user=owner, continues=goes_on)
            model = self._engine.status().model
            with self._library.lock:
                conversation.settings = settings
                answer_id = turn.begin(conversation, model)
                run = Run(
                    generation,
                    lambda view: self._end(conversation, turn, answer_id, view),
                    said=turn.said,
                    thought_s=turn.unfinished.thought_s if turn.unfinished is not None else 0.0,
                    guessed=turn.unfinished.guessed if turn.unfinished is not None else (),
                )
                self._writing[conversation.id] = _Writing(owner, turn, answer_id, run)
                self._library.keep(conversation)
            if self._store is not None:
                self._store.follow(conversation.id, lambda: self._put_down(conversation))
            run.start()
        return self.snapshot(owner, conversation.id)

    def _put_down(self, conversation: Conversation) -> None:
        """Save what there is of an answer under way. The store's thread calls it."""
        with self._library.lock:
            writing = self._writing.get(conversation.id)
            if writing is None:
                return
            view = writing.run.view()
            said = conversation.node(writing.answer_id).message
            if (view.text, view.reasoning) != (said.content, said.reasoning):
                writing.turn.put_down(conversation, writing.answer_id, view)
                self._library.note(conversation)

    def _end(self, conversation: Conversation, turn: Turn, answer_id: str, view: View) -> None:
        if self._store is not None:
            self._store.unfollow(conversation.id)
        self._allowance.charge(conversation.owner, view.tokens)
        with self._library.lock:
            turn.put_down(conversation, answer_id, view)
            self._writing.pop(conversation.id, None)
            self._library.changed(conversation)
