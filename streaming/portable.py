"""Conversations as files: JSON that holds all of them and can be read again, Markdown that a person can read.

Reads its own JSON, of this version and of earlier ones, and Open WebUI's. Pure. What is read is hostile: whatever it
holds, the outcome is conversations or an InvalidRequest in words. Ids are made new: a file names no place of ours.
"""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from pydantic_core import from_json as parse
from pydantic_core import to_json as dump

from streaming import openwebui
from streaming.attachments import Attachment, with_attachments
from streaming.conversation import AnswerState, Conversation, Node, Settings, clean_title, new_id
from streaming.errors import InvalidRequest
from streaming.events import Finished, Span
from streaming.messages import Message, Sampling, is_unicode

FORMAT, VERSION = "streaming-conversations", 1
MOST_CHARACTERS = 50_000_000  # of a file
MOST_CONVERSATIONS = 10_000
LATEST = 253_402_300_799.0  # the end of the year 9999: later times cannot be shown
_ENDINGS: dict[AnswerState, str] = {
    "running": "still being written",
    "stopped": "stopped",
    "cut": "cut at the token limit",
    "failed": "failed",
    "interrupted": "interrupted",
}
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")

_Seconds = Annotated[FiniteFloat, Field(ge=0, le=LATEST)]
_Place = Annotated[int, Field(ge=0)]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _MessageForm(_Form):
    """`follows` is the place of an earlier message in the list."""

    follows: _Place | None
    role: Literal["user", "assistant"]
    content: str
    reasoning: str = ""
    attachments: list[Attachment] = []
    created: _Seconds
    model: str = ""
    state: Literal["complete", "stopped", "cut", "failed", "interrupted"] = "complete"
    error: str = ""
    thought_s: _Seconds = 0.0
    finished: Finished | None = None
    guessed: list[tuple[_Place, _Place]] = []


class _ConversationForm(_Form):
    """`shown` is the place of the last message on the path that is shown. An empty title is made from the text."""

    title: str = ""
    created: _Seconds
    updated: _Seconds
    pinned: bool = False
    model: str = ""
    system: str = ""
    sampling: dict[str, Any] = {}
    shown: _Place | None
    messages: Annotated[list[_MessageForm], Field(max_length=openwebui.MOST_MESSAGES)]


# -- out


def to_json(conversations: Iterable[Conversation]) -> str:
    """All versions of all messages, settings and figures. What is being written is as it stands, and interrupted."""
    forms = [_form(conversation).model_dump(exclude_defaults=True) for conversation in conversations]
    return dump({"format": FORMAT, "version": VERSION, "conversations": forms}, indent=1, fallback=str).decode()


def _form(conversation: Conversation) -> _ConversationForm:
    places = {node.id: place for place, node in enumerate(conversation.nodes)}
    return _ConversationForm.model_construct(
        title=conversation.given_title,
        created=conversation.created,
        updated=conversation.updated,
        pinned=conversation.pinned,
        model=_whole(conversation.model),
        system=_whole(conversation.settings.system),
        sampling=conversation.settings.sampling.to_dict(),
        shown=places[conversation.head] if conversation.head is not None else None,
        messages=[
            _MessageForm.model_construct(
                follows=places[node.parent] if node.parent is not None else None,
                role=node.message.role,
                content=node.message.content,
                reasoning=node.message.reasoning,
                attachments=list(node.attachments),
                created=node.created,
                model=_whole(node.model),
                state="interrupted" if node.state == "running" else node.state,
                error=_whole(node.error),
                thought_s=node.thought_s,
                finished=node.finished,
                guessed=list(node.guessed),
            )
            for node in conversation.nodes
        ],
    )


def _whole(text: str) -> str:
    """What nobody has checked, without half characters."""
    return text.encode(errors="replace").decode()


def to_markdown(conversation: Conversation) -> str:
    """The messages that are shown, as they were written, each under who wrote it."""
    parts = [f"# {conversation.title or 'Conversation'}"]
    if conversation.settings.system:
        parts.append(f"## System\n\n{_closed(conversation.settings.system)}")
    for node in conversation.path():
        who = "User" if node.message.role == "user" else clean_title(node.model) or "Assistant"
        parts.append(f"## {who}")
        if node.message.reasoning:
            parts.append("\n".join(f"> {line}" for line in node.message.reasoning.splitlines()))
        parts.append(_closed(with_attachments(node.message.content, node.attachments)))
        if ending := _ENDINGS.get(node.state):
            parts.append(f"*({ending})*")
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _closed(text: str) -> str:
    """The text, and the end of a code block that it leaves open, as an answer does that was cut: what comes after it
    would be taken for code."""
    open_fence = ""
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line)
        if not found:
            continue
        fence, rest = found.groups()
        if not open_fence:
            open_fence = "" if fence[0] == "`" and "`" in rest else fence
        elif fence.startswith(open_fence) and not rest.strip():
            open_fence = ""
    return f"{text}\n{open_fence}" if open_fence else text


# -- in


def from_json(text: str) -> list[Conversation]:
    """The conversations of a file, without an owner. Raises InvalidRequest that says which part is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequest(
            f"This file has {len(text):,} characters: up to {MOST_CHARACTERS:,} can be imported.", "import"
        )
    if not is_unicode(text):
        raise InvalidRequest("This file cannot be imported: it holds half a character.", "import")
    try:
        raw = parse(text.removeprefix("\ufeff"), allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"This file cannot be imported: it is not JSON ({error}).", "import") from error
    read: Callable[[bytes], Conversation]
    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        found, read = _own(raw), _read
    elif (chats := openwebui.entries(raw)) is not None:
        found, read = chats, openwebui.read_chat
    else:
        raise InvalidRequest(
            "This file cannot be imported: it is neither an export of this app nor one of Open WebUI.", "import"
        )
    if len(found) > MOST_CONVERSATIONS:
        raise InvalidRequest(
            f"This file has {len(found):,} conversations: up to {MOST_CONVERSATIONS:,} can be imported.", "import"
        )
    return [_checked(read, number, dump(one)) for number, one in enumerate(found, 1)]


def _own(raw: dict[str, Any]) -> list[Any]:
    version, found = raw.get("version"), raw.get("conversations")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1 or not isinstance(found, list):
        raise InvalidRequest("This file cannot be imported: its version or its conversations are missing.", "import")
    if version > VERSION:
        raise InvalidRequest(
            f"This file cannot be imported: it has version {version:,} of the format, and this app reads up to "
            f"{VERSION}. Use a newer version of the app.",
            "import",
        )
    return found


def _checked(read: Callable[[bytes], Conversation], number: int, raw: bytes) -> Conversation:
    """Say of which conversation an error is."""
    try:
        return read(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        words = f"{where}: {first['msg']}" if where else str(first["msg"])
    except InvalidRequest as error:
        words = str(error)
    raise InvalidRequest(f"Conversation {number} of this file cannot be imported: {words.rstrip('.')}.", "import")


def _read(raw: bytes) -> Conversation:
    form = _ConversationForm.model_validate_json(raw)
    ids = [new_id() for _ in form.messages]
    nodes = [_node(message, ids, place) for place, message in enumerate(form.messages)]
    conversation = Conversation("").rebuilt(nodes, _at(form.shown, ids, len(ids)))
    conversation.rename(form.title)
    conversation.created, conversation.updated = form.created, form.updated
    conversation.pinned, conversation.model = form.pinned, form.model
    conversation.settings = Settings(form.system, Sampling.from_dict(form.sampling))
    return conversation


def _node(form: _MessageForm, ids: list[str], place: int) -> Node:
    return Node(
        ids[place],
        _at(form.follows, ids, place),
        Message(form.role, form.content, form.reasoning),
        form.created,
        form.state,
        form.error,
        form.thought_s,
        form.finished,
        form.model,
        tuple(form.attachments),
        _guessed(form),
    )


def _guessed(form: _MessageForm) -> tuple[Span, ...]:
    edges = [edge for span in form.guessed for edge in span]
    if edges != sorted(edges) or edges[-1:] > [len(form.reasoning) + len(form.content)]:
        raise InvalidRequest("what was guessed is not said in order, or is not part of the text")
    return tuple(form.guessed)


def _at(place: int | None, ids: list[str], end: int) -> str | None:
    if place is None:
        return None
    if place >= end:
        raise InvalidRequest("a message is named that is not there, or comes later")
    return ids[place]
