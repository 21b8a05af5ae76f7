"""What the page's buttons do: thin handlers over Chats, none of which blocks the event loop or holds a generation.

A visitor is known by the id in the browser's storage, or by the login. Conversations are always the server's copy:
the browser sends an id and new text, never a history. Every action is three events (see page.py): a handler that
changes something, `watch` while an answer is written, `rest` when it is done.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gradio as gr

from streaming.chats import Chats, Snapshot
from streaming.conversation import Settings
from streaming.engines.base import Engine
from streaming.errors import NotFound, StreamingError
from streaming.ui import settings, view
from streaming.ui.followers import Followers

UPDATE_EVERY_S = 0.08  # as often as the eye needs; the first text goes out at once
MOST_TABS = 10_000  # remembered; a client that makes up tabs cannot fill the memory
LOOK_EVERY_S = 0.25  # without news: the clock of a thought goes on, and a closed browser is noticed

Update = dict[str, Any]  # new values by the name of the component, see page.Parts


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at which conversation ("": a new one) in which tab."""

    owner: str
    conversation_id: str
    tab: str


class Session:
    """The handlers. They remember only what each tab shows, so that a late event cannot bring back an old chat."""

    def __init__(self, chats: Chats, engine: Engine) -> None:
        self._chats = chats
        self._engine = engine
        self._followers = Followers()
        self._showing: dict[str, str] = {}  # which conversation is on each tab
        self._unsettled: set[str] = set()  # tabs that still show a live answer

    def load(self, browser: Any, request: gr.Request) -> Update:
        """The page was opened: show the conversation that this browser last had."""
        visitor = _visitor(browser, request)
        snapshot = self._current(visitor)
        return self._shown(snapshot, visitor.tab) | _browser(visitor.owner, snapshot.conversation_id)

    def settings(self, browser: Any, request: gr.Request) -> Update:
        """The drawer as it was when something was last sent in this conversation."""
        chosen = self._current(_visitor(browser, request)).settings
        return {"drawer": settings.write_settings(chosen) if chosen else settings.UNCHANGED}

    async def send(self, text: str, browser: Any, drawer: tuple[Any, ...], request: gr.Request) -> Update:
        """The composer's text, as the next message. Nothing happens if there is none."""
        if not isinstance(text, str) or not text.strip():
            return {"problem": ""}
        visitor = _visitor(browser, request)
        return await self._change(
            visitor,
            lambda chosen: self._chats.send(visitor.owner, visitor.conversation_id, text, chosen),
            drawer,
            {"composer": ""},
        )

    async def act(self, action: Any, browser: Any, drawer: tuple[Any, ...], request: gr.Request) -> Update:
        """A tool under a message, a key or an example: `action` is {"op", "id", "text"}, as page.js sent it."""
        visitor = _visitor(browser, request)
        owner, conversation = visitor.owner, visitor.conversation_id
        asked = action if isinstance(action, dict) else {}
        op, node, text = (str(asked.get(name, "")) for name in ("op", "id", "text"))
        if op == "undo":
            return await self._undo(visitor)
        changes: dict[str, Callable[[Settings], Snapshot]] = {
            "send": lambda chosen: self._chats.send(owner, conversation, text, chosen),
            "edit": lambda chosen: self._chats.edit(owner, conversation, node, text, chosen),
            "retry": lambda chosen: self._chats.retry(owner, conversation, node, chosen),
        }
        if op not in changes:
            return {"problem": ""}
        return await self._change(visitor, changes[op], drawer)

    async def new(self, browser: Any, request: gr.Request) -> Update:
        """An empty page. The answer that was being written goes on by itself."""
        visitor = _visitor(browser, request)
        await self._followers.dismiss(visitor.tab)
        return self._shown(Snapshot(), visitor.tab) | _browser(visitor.owner, "") | {"problem": ""}

    def stop(self, browser: Any, request: gr.Request) -> None:
        """Stop the answer of this conversation, and no other."""
        visitor = _visitor(browser, request)
        with suppress(NotFound):  # there is nothing to stop
            self._chats.stop(visitor.owner, visitor.conversation_id)

    async def watch(self, browser: Any, request: gr.Request) -> AsyncIterator[tuple[Any, Any]]:
        """The live answer and the status line, as long as an answer is being written. Leaving it stops nothing."""
        visitor = _visitor(browser, request)
        snapshot = self._current(visitor)
        if snapshot.run is None or self._showing.get(visitor.tab) != visitor.conversation_id:
            yield gr.skip(), gr.skip()  # without a yield Gradio would empty both
            return
        question = snapshot.nodes[-2]
        async with self._followers.follow(visitor.tab) as wanted:
            while wanted():
                now, shown_at = snapshot.run.view(), time.monotonic()
                if now.ended:
                    yield view.live_turns(question, now), gr.skip()  # it is at rest when it is at its place
                    return
                yield view.live_turns(question, now), view.status_line(self._engine.status(), now)
                with suppress(TimeoutError):
                    await asyncio.wait_for(snapshot.run.changed(now.position), LOOK_EVERY_S)
                if now.tokens:
                    await asyncio.sleep(max(0.0, UPDATE_EVERY_S - (time.monotonic() - shown_at)))

    def rest(self, browser: Any, request: gr.Request) -> Update:
        """The answer that was live, at its place in the history. Nothing to do if nothing was live."""
        visitor = _visitor(browser, request)
        if visitor.tab not in self._unsettled or self._showing.get(visitor.tab) != visitor.conversation_id:
            return {}
        snapshot = self._current(visitor)
        if snapshot.run is not None:  # meanwhile the next one is being written, and will come here too
            return {}
        return self._shown(snapshot, visitor.tab)

    def leave(self, request: gr.Request) -> None:
        """The tab was closed or reloaded: forget it. Its answers go on."""
        self._forget(request.session_hash or "")

    async def watch_engine(self) -> AsyncIterator[tuple[str, Any]]:
        """The banner while the model loads, and at the end whether it can think. Starts the engine if nobody has."""
        self._engine.start()
        while (status := self._engine.status()).state == "loading":
            yield view.banner(status), gr.skip()
            await asyncio.sleep(0.5)
        yield view.banner(status), gr.update(visible=status.can_think)

    # -- inside

    async def _change(
        self,
        visitor: Visitor,
        change: Callable[[Settings], Snapshot],
        drawer: tuple[Any, ...],
        also: Update | None = None,
    ) -> Update:
        """Start an answer. If that is refused, say why and leave the text where it is."""
        await self._followers.dismiss(visitor.tab)
        try:
            chosen = settings.read_settings(drawer)
            snapshot = await asyncio.to_thread(change, chosen)  # renders the prompt: too long for the event loop
        except StreamingError as error:
            return self._shown(self._current(visitor), visitor.tab) | {"problem": view.problem(str(error))}
        return (
            self._shown(snapshot, visitor.tab)
            | _browser(visitor.owner, snapshot.conversation_id)
            | {"problem": ""}
            | (also or {})
        )

    def _forget(self, tab: str) -> None:
        self._showing.pop(tab, None)
        self._unsettled.discard(tab)

    async def _undo(self, visitor: Visitor) -> Update:
        try:
            text = self._chats.undo(visitor.owner, visitor.conversation_id)
        except StreamingError as error:
            return {"problem": view.problem(str(error))}
        return self._shown(self._current(visitor), visitor.tab) | {"composer": text, "problem": ""}

    def _current(self, visitor: Visitor) -> Snapshot:
        try:
            return self._chats.snapshot(visitor.owner, visitor.conversation_id)
        except NotFound:
            return Snapshot()

    def _shown(self, snapshot: Snapshot, tab: str) -> Update:
        """A conversation: what is settled, and what is live if an answer is being written."""
        engine = self._engine.status()
        nodes = snapshot.nodes
        self._showing[tab] = snapshot.conversation_id
        if len(self._showing) > MOST_TABS:
            self._forget(next(iter(self._showing)))
        if snapshot.run is not None:
            self._unsettled.add(tab)
            now = snapshot.run.view()
            return {
                "history": view.turns(nodes[:-2]),
                "tools": view.tools(nodes[:-2], last=False),
                "live": view.live_turns(nodes[-2], now),
                "status": view.status_line(engine, now),
            }
        self._unsettled.discard(tab)
        last = nodes[-1].finished if nodes else None
        return {
            "history": view.turns(nodes),
            "tools": view.tools(nodes),
            "live": [],
            "status": view.status_line(engine, None, last),
        }


def _visitor(browser: Any, request: gr.Request) -> Visitor:
    kept = browser if isinstance(browser, dict) else {}
    owner, conversation_id = str(kept.get("owner") or ""), str(kept.get("conversation") or "")
    if request.username:
        owner = f"user:{request.username}"
    elif not 16 <= len(owner) <= 64 or owner.startswith("user:"):
        owner, conversation_id = secrets.token_urlsafe(24), ""
    return Visitor(owner, conversation_id, request.session_hash or "")


def _browser(owner: str, conversation_id: str) -> Update:
    return {"browser": {"owner": owner, "conversation": conversation_id}}
