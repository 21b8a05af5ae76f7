"""The side list: a visitor's conversations, newest first or as searched, and what is done to one of them there.

Each visible tab has one follower that waits for a change, whichever tab it comes from. It is apart from the answers'
events: nothing here happens while one streams, but at its beginning and its end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from streaming.chats import Chats
from streaming.errors import StreamingError
from streaming.ui import view
from streaming.ui.followers import Followers
from streaming.ui.visitors import Action, Visitor

MOST_SHOWN = 200  # the search finds the rest
PAUSE_S = 0.3  # several changes at once are one update

Said = tuple[str, dict[str, Any]]  # the problem line, and a note for the script


class SideList:
    """The handlers of the list."""

    def __init__(self, chats: Chats) -> None:
        self._chats = chats
        self._followers = Followers()

    async def follow(self, action: Any, browser: Any, request: gr.Request) -> AsyncIterator[Any]:
        """The list that answers to `action`'s text, now and after every change, until the tab asks for another."""
        visitor, query = Visitor.of(browser, request), Action.of(action).text
        async with self._followers.follow(visitor.tab) as follower:
            while follower.wanted:
                version = self._chats.version(visitor.owner)
                entries = await asyncio.to_thread(self._chats.listing, visitor.owner, query, limit=MOST_SHOWN)
                yield view.side_list(query, entries, full=len(entries) == MOST_SHOWN)
                await follower.wait(self._chats.changed(visitor.owner, version))
                await asyncio.sleep(PAUSE_S)
        yield gr.skip()

    async def change(self, action: Any, browser: Any, request: gr.Request) -> Said:
        """Rename, pin, delete or restore a conversation: `action` is {"op", "id", "text"}."""
        owner, asked = Visitor.of(browser, request).owner, Action.of(action)
        changes: dict[str, Callable[[], None]] = {
            "rename": lambda: self._chats.rename(owner, asked.id, asked.text),
            "pin": lambda: self._chats.pin(owner, asked.id, True),
            "unpin": lambda: self._chats.pin(owner, asked.id, False),
            "delete": lambda: self._chats.delete(owner, asked.id),
            "restore": lambda: self._chats.restore(owner, asked.id),
        }
        if asked.op not in changes:
            return "", view.note()
        try:
            await asyncio.to_thread(changes[asked.op])
        except StreamingError as error:
            return view.problem(str(error)), view.note()
        return "", view.note(toast="Deleted", undo=asked.id) if asked.op == "delete" else view.note()

    async def leave(self, tab: str) -> None:
        """The tab was closed, or nobody looks at it: nothing waits for it any more."""
        await self._followers.dismiss(tab)
