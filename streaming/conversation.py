"""A conversation: a tree of messages in which every edit and every retry is a new version beside the old one.

Pure data. Knows neither Gradio nor SQL nor engines. Not thread-safe: whoever holds it guards it (see chats.py).
"""

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Literal

from streaming.errors import InvalidRequest, NotFound
from streaming.events import Finished
from streaming.messages import Message, Sampling

AnswerState = Literal["complete", "running", "stopped", "cut", "failed"]


def new_id() -> str:
    """An unguessable name: knowing one is the only way to reach what it names."""
    return secrets.token_urlsafe(12)


@dataclass(frozen=True, slots=True)
class Node:
    """One message at its place in the tree. The fields after `created` are those of an answer.

    `state` "cut" means that the token limit ended it. `thought_s` are the seconds spent on reasoning.
    """

    id: str
    parent: str | None
    message: Message
    created: float
    state: AnswerState = "complete"
    error: str = ""
    thought_s: float = 0.0
    finished: Finished | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a conversation asks of its engine beside the messages."""

    system: str = ""
    sampling: Sampling = field(default_factory=Sampling)


class Conversation:
    """The tree, and `head`: the last message of the path that is shown."""

    def __init__(self, owner: str) -> None:
        self.id = new_id()
        self.owner = owner
        self.settings = Settings()
        self.head: str | None = None
        self._nodes: dict[str, Node] = {}

    def path(self) -> list[Node]:
        """The messages that are shown, oldest first."""
        return self._path_to(self.head)

    def node(self, node_id: str) -> Node:
        if node_id not in self._nodes:
            raise NotFound("This message is no longer part of the conversation. Reload the page to see it as it is.")
        return self._nodes[node_id]

    def user_message(self, node_id: str) -> Node:
        node = self.node(node_id)
        if node.message.role != "user":
            raise InvalidRequest("Only a user's message can be edited or answered.")
        return node

    def question_of(self, answer_id: str) -> Node:
        """The user message that an answer answers: where a retry starts."""
        answer = self.node(answer_id)
        if answer.message.role != "assistant" or answer.parent is None:
            raise InvalidRequest("Only an answer can be tried again.")
        return self.user_message(answer.parent)

    def messages(self, end: str | None) -> list[Message]:
        """The messages from the first one down to `end`: what an engine gets to read."""
        return [node.message for node in self._path_to(end)]

    def _path_to(self, node_id: str | None) -> list[Node]:
        path: list[Node] = []
        while node_id is not None:
            path.append(self._nodes[node_id])
            node_id = path[-1].parent
        return path[::-1]

    # -- changes; each moves the head

    def ask(self, parent: str | None, text: str) -> Node:
        """Add a user message after `parent`. After the head it goes on; elsewhere it is a new version beside what
        stands there, and what followed the old version stays with that one."""
        return self._add(parent, Message("user", text))

    def begin_answer(self, question_id: str) -> Node:
        """An empty answer to a user message, beside earlier ones, to be filled in by `finish_answer`."""
        return self._add(self.user_message(question_id).id, Message("assistant", ""), "running")

    def undo(self) -> str:
        """Step back before the last question. Returns its text, so that it can go back into the box."""
        for node in reversed(self.path()):
            if node.message.role == "user":
                self.head = node.parent
                return node.message.content
        raise InvalidRequest("There is nothing to undo.")

    def finish_answer(
        self,
        answer_id: str,
        message: Message,
        state: AnswerState,
        *,
        error: str = "",
        thought_s: float = 0.0,
        finished: Finished | None = None,
    ) -> None:
        """Put down what became of an answer. It keeps its place, wherever the reader has gone meanwhile."""
        self._nodes[answer_id] = replace(
            self.node(answer_id), message=message, state=state, error=error, thought_s=thought_s, finished=finished
        )

    def _add(self, parent: str | None, message: Message, state: AnswerState = "complete") -> Node:
        node = Node(new_id(), parent, message, time.time(), state)
        self._nodes[node.id] = node
        self.head = node.id
        return node
