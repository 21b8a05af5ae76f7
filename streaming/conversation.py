"""A conversation: a tree of messages in which every edit and every retry is a new version beside the old one.

Pure data. Knows neither Gradio nor SQL nor engines. Not thread-safe: whoever holds it guards it (see chats.py). Within
the tree a message comes after the one it follows: the order in which nodes were added is the order of versions.
"""

import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from streaming.attachments import Attachment, with_attachments
from streaming.errors import InvalidRequest, NotFound
from streaming.events import Finished, Span
from streaming.messages import Message, Sampling, is_unicode

AnswerState = Literal["complete", "running", "stopped", "cut", "failed", "interrupted"]
TITLE_CHARS = 60  # of a title made from the first message
LONGEST_TITLE = 200
BIN_S = 7 * 24 * 3600  # how long a deleted conversation can be restored
JOINERS = "\u200c\u200d"  # not to be seen, but part of words and of emoji


def new_id() -> str:
    """An unguessable name: knowing one is the only way to reach what it names."""
    return secrets.token_urlsafe(12)


@dataclass(frozen=True, slots=True)
class Node:
    """One message at its place in the tree. From `state` on the fields are those of an answer, up to `model`.

    `state` "cut" means that the token limit ended it, "interrupted" that the app ended while it was written.
    `thought_s` are the seconds spent on reasoning, `model` is which one answered (none: a person wrote it). `guessed`
    is where in reasoning and content, joined, accepted guesses have brought the text.
    """

    id: str
    parent: str | None
    message: Message
    created: float
    state: AnswerState = "complete"
    error: str = ""
    thought_s: float = 0.0
    finished: Finished | None = None
    model: str = ""
    attachments: tuple[Attachment, ...] = ()
    guessed: tuple[Span, ...] = ()

    @property
    def can_go_on(self) -> bool:
        """Whether this is an answer that somebody might want to have continued."""
        ended_by_itself = self.state == "complete" and self.finished is not None
        return self.message.role == "assistant" and self.state != "running" and not ended_by_itself


@dataclass(frozen=True, slots=True)
class Settings:
    """What a conversation asks of its engine beside the messages."""

    system: str = ""
    sampling: Sampling = field(default_factory=Sampling)


class Conversation:
    """The tree, and `head`: the last message of the path that is shown. `given_title` is empty until somebody gives
    one; `updated` is when something was last said; `deleted` is when it was put into the bin, if it was."""

    def __init__(self, owner: str) -> None:
        if not is_unicode(owner):
            raise InvalidRequest("The name of the owner holds half a character.", "owner")
        self.id = new_id()
        self.owner = owner
        self.settings = Settings()
        self.created = self.updated = time.time()
        self.given_title = ""
        self.pinned = False
        self.deleted: float | None = None
        self.model = ""
        self.head: str | None = None
        self._nodes: dict[str, Node] = {}

    @property
    def title(self) -> str:
        """As given, or the first words of what was said first."""
        return self.given_title or title_of(next(iter(self.path() or self._nodes.values()), None))

    @property
    def nodes(self) -> Collection[Node]:
        """All versions of all messages, each after the one it follows."""
        return self._nodes.values()

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
        answer = self.answer(answer_id)
        if answer.parent is None or self._nodes[answer.parent].message.role != "user":
            raise InvalidRequest("The question that this answered is no longer here: there is nothing to answer again.")
        return self._nodes[answer.parent]

    def answer(self, node_id: str) -> Node:
        node = self.node(node_id)
        if node.message.role != "assistant":
            raise InvalidRequest("This is not an answer.")
        return node

    def unfinished(self, answer_id: str) -> Node:
        """The answer, if it is the last message and can go on where it ends."""
        node = self.answer(answer_id)
        if node.id != self.head:
            raise InvalidRequest("Only the last answer can go on.")
        if not node.can_go_on:
            raise InvalidRequest("This answer is complete.")
        return node

    def messages(self, end: str | None) -> list[Message]:
        """The messages from the first one down to `end`: what an engine gets to read."""
        return [as_read(node.message, node.attachments) for node in self._path_to(end)]

    def versions(self) -> dict[str, tuple[int, int]]:
        """Of each shown message that has others beside it: which one it is, and of how many."""
        beside = self._beside()
        found: dict[str, tuple[int, int]] = {}
        for node in self.path():
            group = beside[node.parent]
            if len(group) > 1:
                found[node.id] = (group.index(node.id) + 1, len(group))
        return found

    def _beside(self) -> dict[str | None, list[str]]:
        """The ids of all messages, oldest first, by what they follow."""
        groups: dict[str | None, list[str]] = {}
        for node in self._nodes.values():
            groups.setdefault(node.parent, []).append(node.id)
        return groups

    def _path_to(self, node_id: str | None) -> list[Node]:
        path: list[Node] = []
        while node_id is not None:
            path.append(self._nodes[node_id])
            node_id = path[-1].parent
        return path[::-1]

    # -- changes; each moves the head

    def ask(self, parent: str | None, text: str, attachments: tuple[Attachment, ...] = ()) -> Node:
        """Add a user message after `parent`. After the head it goes on; elsewhere it is a new version beside what
        stands there, and what followed the old version stays with that one."""
        return self._add(parent, Message("user", text), attachments=attachments)

    def begin_answer(self, question_id: str, model: str = "") -> Node:
        """An empty answer to a user message, beside earlier ones, to be filled in by `finish_answer`."""
        self.model = model or self.model
        return self._add(self.user_message(question_id).id, Message("assistant", ""), "running", model=model)

    def go_on(self, answer_id: str, model: str = "") -> Node:
        """Open an unfinished answer again, to be filled in by `finish_answer`. Returns it as it stood."""
        node = self.unfinished(answer_id)
        self.model = model or self.model
        self._nodes[node.id] = replace(node, state="running", error="", model=model or node.model)
        self.updated = time.time()
        return node

    def edit_answer(self, answer_id: str, text: str) -> Node:
        """A person's own version of an answer, beside it."""
        return self._add(self.answer(answer_id).parent, Message("assistant", text))

    def go_to(self, node_id: str, step: int) -> None:
        """Show the version `step` further on from a message (0: itself), with what was said last after it."""
        node = self.node(node_id)
        group = self._beside()[node.parent]
        wanted = group[min(max(group.index(node.id) + step, 0), len(group) - 1)]
        after = {wanted}
        for other in self._nodes.values():
            if other.parent in after:
                after.add(other.id)
                wanted = other.id
        self.head = wanted

    def delete_message(self, node_id: str) -> None:
        """Take one message out. What followed it, in all versions, follows what it had followed."""
        gone = self.node(node_id)
        for node in self._nodes.values():
            if node.parent == gone.id:
                self._nodes[node.id] = replace(node, parent=gone.parent)
        del self._nodes[gone.id]
        if self.head == gone.id:
            self.head = gone.parent

    def undo(self) -> str:
        """Step back before the last question. Returns its text, so that it can go back into the box."""
        for node in reversed(self.path()):
            if node.message.role == "user":
                self.head = node.parent
                return node.message.content
        raise InvalidRequest("There is nothing to undo.")

    def _add(
        self,
        parent: str | None,
        message: Message,
        state: AnswerState = "complete",
        *,
        model: str = "",
        attachments: tuple[Attachment, ...] = (),
    ) -> Node:
        now = time.time()
        node = Node(new_id(), parent, message, now, state, model=model, attachments=attachments)
        self._nodes[node.id] = node
        self.head, self.updated = node.id, now
        return node

    # -- changes that leave the head where it is

    def finish_answer(
        self,
        answer_id: str,
        message: Message,
        state: AnswerState,
        *,
        error: str = "",
        thought_s: float = 0.0,
        guessed: tuple[Span, ...] = (),
        finished: Finished | None = None,
    ) -> None:
        """Put down what became of an answer. It keeps its place, wherever the reader has gone meanwhile. The model that
        gave it may be another than was expected to."""
        node = self.node(answer_id)
        gave = finished.model if finished is not None else ""
        self.model = gave or self.model
        self._nodes[answer_id] = replace(
            node,
            model=gave or node.model,
            message=message,
            state=state,
            error=error,
            thought_s=thought_s,
            guessed=guessed,
            finished=finished,
        )

    def rename(self, title: str) -> None:
        """Give a title; an empty one takes the given one away."""
        self.given_title = clean_title(title)

    # -- copies

    def rebuilt(self, nodes: Iterable[Node], head: str | None) -> Self:
        """This conversation with these messages instead. Raises InvalidRequest unless they form a tree."""
        nodes = list(nodes)
        self._nodes = {}
        for node in nodes:
            if node.id in self._nodes or (node.parent is not None and node.parent not in self._nodes):
                raise InvalidRequest("The messages of this conversation do not follow each other.")
            self._nodes[node.id] = node
        if head is not None and head not in self._nodes:
            raise InvalidRequest("The conversation ends in a message that is not part of it.")
        self.head = head
        return self

    def copy(self) -> "Conversation":
        """The same, apart: changes of the one do not reach the other."""
        twin = Conversation(self.owner)
        vars(twin).update(vars(self) | {"_nodes": dict(self._nodes)})
        return twin

    def renewed(self, owner: str, end: str | None = None) -> "Conversation":
        """A copy under new ids that belongs to `owner`: the whole tree, or the path down to `end` alone. What is
        being written in the original is as it stands, and interrupted."""
        kept = self._path_to(end) if end is not None else list(self._nodes.values())
        ids = {node.id: new_id() for node in kept}
        nodes = [
            replace(
                node,
                id=ids[node.id],
                parent=ids[node.parent] if node.parent is not None else None,
                state="interrupted" if node.state == "running" else node.state,
            )
            for node in kept
        ]
        head = end if end is not None else self.head
        twin = self.copy()
        twin.id, twin.owner, twin.pinned, twin.deleted = new_id(), owner, False, None
        return twin.rebuilt(nodes, ids[head] if head is not None else None)


def as_read(message: Message, attachments: tuple[Attachment, ...]) -> Message:
    """A message as an engine gets to read it: with the texts of the files that were sent with it."""
    return replace(message, content=with_attachments(message.content, attachments)) if attachments else message


def title_of(node: Node | None) -> str:
    """The first words of a message, or the names of what it brings."""
    if node is None:
        return ""
    text = node.message.content
    if not text.strip():
        text = ", ".join(attachment.name for attachment in node.attachments)
    whole = clean_title(text)
    if len(whole) <= TITLE_CHARS:
        return whole
    cut = whole[: TITLE_CHARS + 1].rpartition(" ")[0]
    return f"{cut if len(cut) > TITLE_CHARS // 2 else whole[:TITLE_CHARS]}…"


def clean_title(text: str) -> str:
    """One line of what can be shown."""
    if not is_unicode(text):
        raise InvalidRequest("The title holds half a character.", "title")
    shown = (character for character in text if character.isprintable() or character.isspace() or character in JOINERS)
    return " ".join("".join(shown).split())[:LONGEST_TITLE].rstrip()
