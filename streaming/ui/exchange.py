"""Conversations out of the app and in again: exports, imports, and copies for the clipboard.

What is exported goes as a text to the tab that asks, and never lies in a file that another could ask for.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from streaming import portable
from streaming.attachments import clean_name
from streaming.chats import Chats
from streaming.errors import InvalidRequest, StreamingError
from streaming.ui import view
from streaming.ui.visitors import Action, Visitor

LARGEST_IMPORT = 4 * portable.MOST_CHARACTERS  # bytes: no more can be a text that is not too long

Said = tuple[str, dict[str, Any]]  # the problem line, and a note for the script


class Exchange:
    """The handlers."""

    def __init__(self, chats: Chats) -> None:
        self._chats = chats

    async def export(self, action: Any, browser: Any, request: gr.Request) -> Said:
        """A conversation as {"op": "json" | "markdown" | "copy", "id"}, or everything ("all"), to the tab that asks."""
        owner, asked = Visitor.of(browser, request).owner, Action.of(action)
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "all": lambda: _file("conversations.json", portable.to_json(self._chats.export_all(owner))),
            "json": lambda: self._as_json(owner, asked.id),
            "markdown": lambda: self._as_markdown(owner, asked.id),
            "copy": lambda: {"copy": portable.to_markdown(self._chats.export(owner, asked.id))},
        }
        if asked.op not in makers:
            return "", view.note()
        try:
            return "", view.note(**await asyncio.to_thread(makers[asked.op]))
        except StreamingError as error:
            return view.problem(str(error)), view.note()

    async def take_in(self, path: Any, browser: Any, request: gr.Request) -> Said:
        """The conversations of a file that this app, or Open WebUI, has exported."""
        owner = Visitor.of(browser, request).owner

        def add() -> int:
            conversations = portable.from_json(_text_of(Path(path)))
            for conversation in conversations:
                self._chats.add(owner, conversation)
            return len(conversations)

        if not isinstance(path, str):
            return "", view.note()
        try:
            count = await asyncio.to_thread(add)
        except StreamingError as error:
            return view.problem(str(error)), view.note()
        return "", view.note(toast=f"{count:,} conversation{'s' if count != 1 else ''} imported")

    def _as_json(self, owner: str, conversation_id: str) -> dict[str, Any]:
        conversation = self._chats.export(owner, conversation_id)
        return _file(f"{clean_name(conversation.title)}.json", portable.to_json([conversation]))

    def _as_markdown(self, owner: str, conversation_id: str) -> dict[str, Any]:
        conversation = self._chats.export(owner, conversation_id)
        return _file(f"{clean_name(conversation.title)}.md", portable.to_markdown(conversation))


def _text_of(path: Path) -> str:
    """What is in an uploaded file, which is then deleted."""
    try:
        if path.stat().st_size > LARGEST_IMPORT:
            raise InvalidRequest(f"{clean_name(path.name)} is too large to be imported.", "import")
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"{clean_name(path.name)} is no text, and so no export of conversations.", "import"
        ) from None
    finally:
        path.unlink(missing_ok=True)


def _file(name: str, text: str) -> dict[str, Any]:
    kind = "application/json" if name.endswith(".json") else "text/markdown"
    return {"file": {"name": name, "type": kind, "text": text}}
