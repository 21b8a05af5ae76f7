"""A chat that Open WebUI exports, as a conversation: whole tree, thoughts apart, documents whose text is in it.

What we have no place for is left out: tools, sources, images, feedback. Pure. Raises InvalidRequest, or pydantic's
ValidationError where the form is another one; what is asked of a file as a whole is in portable.py.
"""

import heapq
import html
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from streaming.attachments import Attachment
from streaming.conversation import Conversation, Node, Settings, clean_title, new_id
from streaming.errors import InvalidRequest
from streaming.messages import Message

MOST_MESSAGES = 50_000  # of one conversation
_YEAR_5000 = 1e11  # in seconds; what is later counts milliseconds
_THOUGHT = re.compile(
    r'\s*<details type="reasoning"(?P<attributes>[^>]*)>\s*<summary>[^<]*</summary>(?P<text>.*?)</details>\s*', re.S
)
_DURATION = re.compile(r'duration="(\d{1,6})"')
_QUOTED = re.compile(r"^> ?", re.M)
_Seconds = Annotated[FiniteFloat, Field(ge=0, lt=_YEAR_5000 * 1000)]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True)


class _Content(_Form):
    content: str | None = None


class _Document(_Form):
    data: _Content | None = None


class _File(_Form):
    name: str | None = None
    file: _Document | None = None


class _Message(_Form):
    role: str
    content: str | list[dict[str, Any]] | None = None
    parentId: str | None = None
    timestamp: _Seconds | None = None
    model: str | None = None
    files: list[_File] | None = None
    done: bool | None = None


class _History(_Form):
    messages: Annotated[dict[str, _Message], Field(max_length=MOST_MESSAGES)] = {}
    currentId: str | None = None


class _Parameters(_Form):
    system: str | None = None


class _Chat(_Form):
    title: str | None = None
    models: list[str] | None = None
    system: str | None = None
    params: _Parameters | None = None
    history: _History | None = None
    messages: Annotated[list[_Message], Field(max_length=MOST_MESSAGES)] | None = None


class _Entry(_Form):
    title: str | None = None
    created_at: _Seconds | None = None
    updated_at: _Seconds | None = None
    pinned: bool | None = None
    chat: _Chat


def entries(raw: Any) -> list[dict[str, Any]] | None:
    """The single chats of an export, each as the list has it; None if this is no such export."""
    if isinstance(raw, dict) and "chat" not in raw and isinstance(raw.get("history"), dict):
        raw = {"chat": raw}  # one chat, without what the list says of it
    found = raw if isinstance(raw, list) else [raw]
    return found if found and all(isinstance(entry, dict) and "chat" in entry for entry in found) else None


def read_chat(raw: bytes) -> Conversation:
    entry = _Entry.model_validate_json(raw)
    chat = entry.chat
    messages = chat.history.messages if chat.history and chat.history.messages else _in_a_row(chat.messages or [])
    created = _seconds(entry.created_at)
    nodes: list[Node] = []
    place: dict[str | None, str | None] = {None: None}  # where the followers of a message hang here
    systems = [chat.system, chat.params.system if chat.params else None]
    for id in _in_order(messages):
        message = messages[id]
        parent = place[message.parentId]
        if message.role not in ("user", "assistant"):
            systems.append(_text(message) if message.role == "system" else None)
            place[id] = parent
            continue
        nodes.append(_node(message, parent, created))
        place[id] = nodes[-1].id
    current = chat.history.currentId if chat.history else None
    last = nodes[-1].id if nodes else None
    conversation = Conversation("").rebuilt(nodes, place.get(current) or last)
    conversation.given_title = clean_title(entry.title or chat.title or "")
    conversation.pinned = bool(entry.pinned)
    conversation.model = next(iter(chat.models or []), "")
    conversation.settings = Settings(system=next(filter(None, systems), ""))
    conversation.created = created or (nodes[0].created if nodes else conversation.created)
    conversation.updated = _seconds(entry.updated_at) or max((node.created for node in nodes), default=created)
    return conversation


def _in_a_row(messages: list[_Message]) -> dict[str, _Message]:
    """The oldest form: what is shown, and nothing else."""
    return {
        str(index): message.model_copy(update={"parentId": str(index - 1) if index else None})
        for index, message in enumerate(messages)
    }


def _in_order(messages: dict[str, _Message]) -> Iterator[str]:
    """The ids, parents first, otherwise by time. Raises InvalidRequest for what is no tree."""
    after: dict[str | None, list[tuple[float, int, str]]] = {}
    for index, (id, message) in enumerate(messages.items()):
        if message.parentId is not None and message.parentId not in messages:
            raise InvalidRequest("a message follows one that is not in the file")
        after.setdefault(message.parentId, []).append((_seconds(message.timestamp), index, id))
    ready = after.get(None, [])
    heapq.heapify(ready)
    count = 0
    while ready:
        count += 1
        *_, id = heapq.heappop(ready)
        yield id
        for follower in after.get(id, []):
            heapq.heappush(ready, follower)
    if count < len(messages):
        raise InvalidRequest("messages follow each other in a circle")


def _node(message: _Message, parent: str | None, created: float) -> Node:
    text, thought, thought_s = _text(message), "", 0.0
    if message.role == "assistant" and (found := _THOUGHT.match(text)):
        thought = _QUOTED.sub("", html.unescape(found["text"])).strip()
        duration = _DURATION.search(found["attributes"])
        text, thought_s = text[found.end() :], float(duration[1]) if duration else 0.0
    return Node(
        new_id(),
        parent,
        Message(cast(Literal["user", "assistant"], message.role), text, thought),
        _seconds(message.timestamp) or created,
        "interrupted" if message.done is False else "complete",
        thought_s=thought_s,
        model=message.model or "" if message.role == "assistant" else "",
        attachments=tuple(_documents(message)),
    )


def _text(message: _Message) -> str:
    """A list has texts and images; the images stay behind."""
    if isinstance(message.content, list):
        texts = (part.get("text") for part in message.content)
        return "\n".join(text for text in texts if isinstance(text, str))
    return message.content or ""


def _documents(message: _Message) -> Iterator[Attachment]:
    for file in message.files or []:
        if file.file and file.file.data and file.file.data.content:
            yield Attachment(file.name or "", "text/plain", file.file.data.content)


def _seconds(time: float | None) -> float:
    """The export has seconds in some places and milliseconds in others. 0 where it has nothing."""
    return (time or 0.0) / (1000 if (time or 0.0) > _YEAR_5000 else 1)
