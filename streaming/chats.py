"""Everybody's conversations and the runs that answer in them: what the page is a view of.

The copy here is the truth, never the browser's. Thread-safe: one short lock, under which nothing is computed and no
engine is called. Every call names its owner, and what belongs to somebody else does not exist.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streaming.conversation import AnswerState, Conversation, Node, Settings
from streaming.engines.base import Engine
from streaming.errors import ConversationBusy, InvalidRequest, NotFound, StreamingError
from streaming.messages import Message
from streaming.runs import Run, View

MOST_CONVERSATIONS = 2_000  # kept in memory; beyond it the longest unused ones go


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation as it stands: the shown path, oldest first, and the run that fills its last answer, if any."""

    owner: str = ""
    conversation_id: str = ""
    nodes: tuple[Node, ...] = ()
    settings: Settings | None = None
    run: Run | None = None


class Chats:
    """Conversations by id. A conversation that was never sent to is not kept: its id is the empty string."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._runs: dict[str, Run] = {}
        self._claimed: set[str] = set()

    def snapshot(self, owner: str, conversation_id: str) -> Snapshot:
        """What a page shows. Raises NotFound for what the owner does not have."""
        with self._lock:
            if not conversation_id:
                return Snapshot()
            conversation = self._find(owner, conversation_id)
            run = self._runs.get(conversation.id)
            return Snapshot(owner, conversation.id, tuple(conversation.path()), conversation.settings, run)

    # -- each of these three starts an answer and returns its conversation; on an error nothing has changed

    def send(self, owner: str, conversation_id: str, text: str, settings: Settings) -> Snapshot:
        """Say something at the end of a conversation (a new one, if the id is empty) and have it answered."""
        return self._answer(owner, conversation_id, settings, lambda conversation: (conversation.head, text))

    def edit(self, owner: str, conversation_id: str, node_id: str, text: str, settings: Settings) -> Snapshot:
        """Say something else in place of an earlier user message and have that answered."""
        return self._answer(
            owner, conversation_id, settings, lambda conversation: (conversation.user_message(node_id).parent, text)
        )

    def retry(self, owner: str, conversation_id: str, answer_id: str, settings: Settings) -> Snapshot:
        """Have the question of an answer answered again, with today's settings."""
        return self._answer(
            owner, conversation_id, settings, lambda conversation: (conversation.question_of(answer_id).id, None)
        )

    def undo(self, owner: str, conversation_id: str) -> str:
        """Step back before the last question; returns its text."""
        with self._claim(owner, conversation_id) as conversation, self._lock:
            return conversation.undo()

    def stop(self, owner: str, conversation_id: str) -> None:
        """Stop the running answer, if there is one. Other conversations are not touched."""
        run = self.snapshot(owner, conversation_id).run
        if run is not None:
            run.stop()

    # -- inside

    def _find(self, owner: str, conversation_id: str) -> Conversation:
        conversation = self._conversations.get(conversation_id)
        if conversation is None or conversation.owner != owner:
            raise NotFound("This conversation is no longer here. Start a new one.")
        self._conversations.move_to_end(conversation_id)
        return conversation

    @contextmanager
    def _claim(self, owner: str, conversation_id: str) -> Iterator[Conversation]:
        """Keep everybody else from changing a conversation while its next answer is being started."""
        with self._lock:
            conversation = self._find(owner, conversation_id) if conversation_id else Conversation(owner)
            if conversation.id in self._claimed or conversation.id in self._runs:
                raise ConversationBusy("An answer is still being written here. Stop it, or wait for its end.")
            self._claimed.add(conversation.id)
        try:
            yield conversation
        finally:
            with self._lock:
                self._claimed.discard(conversation.id)

    def _answer(
        self,
        owner: str,
        conversation_id: str,
        settings: Settings,
        place: Callable[[Conversation], tuple[str | None, str | None]],
    ) -> Snapshot:
        """`place` says after which message the answer comes, and what the user says there first (None: nothing)."""
        with self._claim(owner, conversation_id) as conversation:
            end, text = place(conversation)
            if text is not None and not text.strip():
                raise InvalidRequest("There is nothing to answer: the message is empty.", "messages")
            messages = [Message("system", settings.system)] if settings.system.strip() else []
            messages += conversation.messages(end)
            messages += [Message("user", text)] if text is not None else []
            generation = self._engine.stream(messages, settings.sampling, user=owner)
            with self._lock:
                conversation.settings = settings
                question_id = conversation.ask(end, text).id if text is not None else end or ""
                answer = conversation.begin_answer(question_id)
                run = Run(generation, lambda view: self._end(conversation, answer.id, view))
                self._conversations[conversation.id] = conversation
                self._runs[conversation.id] = run
                self._forget_oldest()
            run.start()
        return self.snapshot(owner, conversation.id)

    def _end(self, conversation: Conversation, answer_id: str, view: View) -> None:
        with self._lock:
            conversation.finish_answer(
                answer_id,
                Message("assistant", view.text, view.reasoning),
                _state(view),
                error=str(view.error) if view.error else "",
                thought_s=view.thought_s,
                finished=view.finished,
            )
            self._runs.pop(conversation.id, None)

    def _forget_oldest(self) -> None:
        for conversation_id in list(self._conversations):
            if len(self._conversations) <= MOST_CONVERSATIONS:
                return
            if conversation_id not in self._runs and conversation_id not in self._claimed:
                del self._conversations[conversation_id]


def _state(view: View) -> AnswerState:
    if isinstance(view.error, StreamingError) or view.finished is None:
        return "failed"
    states: dict[str, AnswerState] = {"stop": "complete", "length": "cut", "cancelled": "stopped"}
    return states[view.finished.reason]
