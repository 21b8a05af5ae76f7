"""A conversation and its messages as rows of the database, and back.

Pure: no connection is touched. Texts of a person or a model come checked (see messages.py); of everything else half a
character becomes a question mark, and a number that is none becomes 0, so that nothing can stop a row from being saved.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from streaming.attachments import Attachment
from streaming.conversation import Conversation, Node, Settings
from streaming.errors import InvalidRequest
from streaming.events import Finished, Timings, Usage
from streaming.messages import Message, Sampling

Row = dict[str, Any]


def conversation_row(conversation: Conversation) -> Row:
    settings = conversation.settings
    return {
        "id": conversation.id,
        "owner": conversation.owner,
        "title": conversation.title,
        "given_title": conversation.given_title,
        "created": _number(conversation.created),
        "updated": _number(conversation.updated),
        "pinned": int(conversation.pinned),
        "deleted": conversation.deleted,
        "model": _text(conversation.model),
        "system": _text(settings.system),
        "sampling": _json(settings.sampling.to_dict()),
        "head": conversation.head,
    }


def node_row(node: Node) -> Row:
    return {
        "id": node.id,
        "parent": node.parent,
        "role": node.message.role,
        "content": node.message.content,
        "reasoning": node.message.reasoning,
        "created": _number(node.created),
        "state": node.state,
        "error": _text(node.error),
        "thought_s": _number(node.thought_s),
        "finished": _json(asdict(node.finished)) if node.finished is not None else None,
        "model": _text(node.model),
        "attachments": _json([asdict(attachment) for attachment in node.attachments]),
        "guessed": _json(node.guessed),
    }


def read_conversation(row: Mapping[str, Any], nodes: list[Node]) -> Conversation:
    conversation = Conversation(row["owner"])
    conversation.id = row["id"]
    conversation.given_title = row["given_title"]
    conversation.created, conversation.updated = row["created"], row["updated"]
    conversation.pinned, conversation.deleted = bool(row["pinned"]), row["deleted"]
    conversation.model = row["model"]
    conversation.settings = Settings(row["system"], _sampling(json.loads(row["sampling"])))
    return conversation.rebuilt(nodes, row["head"])


def _sampling(raw: Mapping[str, Any]) -> Sampling:
    """Without what was saved beyond today's bounds: one number must not take a conversation away."""
    return Sampling.from_dict({name: value for name, value in _known(Sampling, raw).items() if _is_valid(name, value)})


def _is_valid(name: str, value: Any) -> bool:
    try:
        Sampling.from_dict({name: value})
    except InvalidRequest:
        return False
    return True


def read_node(row: Mapping[str, Any]) -> Node:
    return Node(
        id=row["id"],
        parent=row["parent"],
        message=Message(row["role"], row["content"], row["reasoning"]),
        created=row["created"],
        state=row["state"],
        error=row["error"],
        thought_s=row["thought_s"],
        finished=_finished(json.loads(row["finished"])) if row["finished"] is not None else None,
        model=row["model"],
        attachments=tuple(Attachment(**_known(Attachment, raw)) for raw in json.loads(row["attachments"])),
        guessed=tuple((start, end) for start, end in json.loads(row["guessed"])),
    )


def _finished(raw: dict[str, Any]) -> Finished:
    parts = {"usage": Usage(**_known(Usage, raw["usage"])), "timings": Timings(**_known(Timings, raw["timings"]))}
    return Finished(**_known(Finished, raw) | parts)


def _known(kind: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    """What today's form of a value still has of the one that was saved."""
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in raw.items() if name in names}


def _json(value: object) -> str:
    return json.dumps(value, default=str)


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()


def _number(value: float) -> float:
    return value if math.isfinite(value) else 0.0
