"""What the page's buttons do: thin handlers over Chats, none of which blocks the event loop or holds a generation.

A visitor is known by the id in the browser's storage, or by the login. Conversations are always the server's copy:
the browser sends an id and new text, never a history.
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
from streaming.runs import Run
from streaming.ui import settings, view
from streaming.ui.followers import Followers

UPDATE_EVERY_S = 0.08  # as often as the eye needs; the first text goes out at once
LOOK_EVERY_S = 0.25  # without news: the clock of a thought goes on, and a closed browser is noticed


@dataclass(frozen=True, slots=True)
class Visitor:
    owner: str
    conversation_id: str


Update = dict[str, Any]


class Session:
    """Handlers yield an Update: new values by the name of the component (see page.py)."""

    def __init__(self, chats: Chats, engine: Engine) -> None:
        self._chats = chats
        self._engine = engine
        self._followers = Followers()

    async def restore(self, browser: Any, request: gr.Request) -> AsyncIterator[Update]:
        """The page was opened: show the conversation it last had, and go on with its answer."""
        visitor = _visitor(browser, request)
        try:
            snapshot = self._chats.snapshot(visitor.owner, visitor.conversation_id)
        except NotFound:
            snapshot = Snapshot()
        update = _browser(visitor.owner, snapshot.conversation_id)
        if snapshot.settings is not None:
            update["drawer"] = settings.write_settings(snapshot.settings)
        yield update
        async for more in self._follow(snapshot, request):
            yield more

    async def send(
        self, text: str, browser: Any, drawer: tuple[Any, ...], request: gr.Request
    ) -> AsyncIterator[Update]:
        """The composer's text, as the next message."""
        if not isinstance(text, str) or not text.strip():
            return
        visitor = _visitor(browser, request)

        def start(chosen: Settings) -> Snapshot:
            return self._chats.send(visitor.owner, visitor.conversation_id, text, chosen)

        async for update in self._start(visitor, start, drawer, request):
            yield update

    async def act(
        self, action: Any, browser: Any, drawer: tuple[Any, ...], request: gr.Request
    ) -> AsyncIterator[Update]:
        """A tool under a message, a key or an example: `action` is {"op", "id", "text"}, as page.js sent it."""
        visitor = _visitor(browser, request)
        op, node_id, text = (str(action.get(name, "")) for name in ("op", "id", "text"))

        def start(chosen: Settings) -> Snapshot:
            if op == "send":
                return self._chats.send(visitor.owner, visitor.conversation_id, text, chosen)
            if op == "edit":
                return self._chats.edit(visitor.owner, visitor.conversation_id, node_id, text, chosen)
            return self._chats.retry(visitor.owner, visitor.conversation_id, node_id, chosen)

        if op == "undo":
            try:
                text = self._chats.undo(visitor.owner, visitor.conversation_id)
                snapshot = self._chats.snapshot(visitor.owner, visitor.conversation_id)
            except StreamingError as error:
                yield {"problem": view.problem(str(error))}
            else:
                yield {"composer": text, "problem": ""} | self._rest(snapshot)
        elif op in ("send", "edit", "retry"):
            async for update in self._start(visitor, start, drawer, request, clear=False):
                yield update

    async def new(self, browser: Any, request: gr.Request) -> AsyncIterator[Update]:
        """An empty page. The answer that was being written goes on by itself."""
        async for update in self._follow(Snapshot(), request):
            yield _browser(_visitor(browser, request).owner, "") | update | {"problem": ""}

    def stop(self, browser: Any, request: gr.Request) -> None:
        """Stop the answer of this conversation, and no other."""
        visitor = _visitor(browser, request)
        self._chats.stop(visitor.owner, visitor.conversation_id)

    async def watch_engine(self) -> AsyncIterator[Update]:
        """Show how the model's loading goes, until it has ended. Whoever serves the page need not know to start it."""
        self._engine.start()
        while True:
            status = self._engine.status()
            update: Update = {"banner": view.banner(status)}
            if status.state != "loading":
                yield update | {"thinking": gr.update(visible=status.can_think)}
                return
            yield update
            await asyncio.sleep(0.5)

    # -- inside

    async def _start(
        self,
        visitor: Visitor,
        start: Callable[[Settings], Snapshot],
        drawer: tuple[Any, ...],
        request: gr.Request,
        clear: bool = True,
    ) -> AsyncIterator[Update]:
        try:
            chosen = settings.read_settings(drawer)
            snapshot = await asyncio.to_thread(start, chosen)  # reads the template: too long for the event loop
        except StreamingError as error:
            yield {"problem": view.problem(str(error))}
            async for update in self._follow(self._current(visitor), request):
                yield update
            return
        yield _browser(visitor.owner, snapshot.conversation_id) | {"problem": ""} | ({"composer": ""} if clear else {})
        async for update in self._follow(snapshot, request):
            yield update

    def _current(self, visitor: Visitor) -> Snapshot:
        try:
            return self._chats.snapshot(visitor.owner, visitor.conversation_id)
        except NotFound:
            return Snapshot()

    async def _follow(self, snapshot: Snapshot, request: gr.Request) -> AsyncIterator[Update]:
        """Show a conversation, and the answer that is being written in it to its end."""
        async with self._followers.take_over(request.session_hash or "") as wanted:
            if snapshot.run is not None:
                async for update in self._watch(snapshot, snapshot.run, wanted):
                    yield update
                snapshot = self._chats.snapshot(snapshot.owner, snapshot.conversation_id)
            if wanted():
                yield self._rest(snapshot)

    async def _watch(self, snapshot: Snapshot, run: Run, wanted: Callable[[], bool]) -> AsyncIterator[Update]:
        *history, question, _ = snapshot.nodes
        update: Update = {"history": view.turns(history), "tools": view.tools(history, last=False)}
        while not (now := run.view()).ended and wanted():
            shown_at = time.monotonic()
            status = view.status_line(self._engine.status(), now)
            yield update | {"live": view.live_turns(question, now), "status": status}
            update = {}
            with suppress(TimeoutError):
                await asyncio.wait_for(run.changed(now.position), LOOK_EVERY_S)
            if now.tokens:
                await asyncio.sleep(max(0.0, UPDATE_EVERY_S - (time.monotonic() - shown_at)))

    def _rest(self, snapshot: Snapshot) -> Update:
        """A conversation in which nothing is being written."""
        last = snapshot.nodes[-1].finished if snapshot.nodes else None
        return {
            "history": view.turns(snapshot.nodes),
            "tools": view.tools(snapshot.nodes),
            "live": [],
            "status": view.status_line(self._engine.status(), None, last),
        }


def _visitor(browser: Any, request: gr.Request) -> Visitor:
    kept = browser if isinstance(browser, dict) else {}
    owner, conversation_id = str(kept.get("owner") or ""), str(kept.get("conversation") or "")
    if request.username:
        owner = f"user:{request.username}"
    elif len(owner) < 16 or owner.startswith("user:"):
        owner, conversation_id = secrets.token_urlsafe(24), ""
    return Visitor(owner, conversation_id)


def _browser(owner: str, conversation_id: str) -> Update:
    return {"browser": {"owner": owner, "conversation": conversation_id}}
