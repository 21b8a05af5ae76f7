"""What the page's buttons do: thin handlers over Chats, none of which blocks the event loop or holds a generation.

Conversations are always the server's copy: the browser sends an id and new text, never a history. Every action is
three events (see wiring.py): a handler that changes something, `watch` while an answer is written, `rest` at its end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import gradio as gr

from streaming.chats import Chats, Snapshot
from streaming.engines.base import Engine
from streaming.errors import NotFound, StreamingError
from streaming.ui import settings, view
from streaming.ui.actions import ANSWERS, CHANGES
from streaming.ui.attaching import held, hold
from streaming.ui.followers import Followers
from streaming.ui.visitors import Action, Visitor, linked

UPDATE_EVERY_S = 0.08  # as often as the eye needs; the first text goes out at once
MOST_TABS = 10_000  # remembered; a client that makes up tabs cannot fill the memory
LOOK_EVERY_S = 0.25  # without news: the clock of a thought goes on, and a closed browser is noticed
NOT_YOURS = "That conversation is not here, or it is not yours. This is a new one."

Update = dict[str, Any]  # new values by the name of the component, see wiring.Parts


class Session:
    """The handlers. They remember only what each tab shows, so that a late event cannot bring back an old chat."""

    def __init__(self, chats: Chats, engine: Engine) -> None:
        self._chats = chats
        self._engine = engine
        self._followers = Followers()
        self._showing: dict[str, str] = {}  # which conversation is on each tab
        self._unsettled: set[str] = set()  # tabs that still show a live answer

    async def load(self, browser: Any, request: gr.Request) -> Update:
        """The page was opened: show the conversation of its address, or else the one that this browser last had."""
        visitor, link = Visitor.of(browser, request), linked(request)
        try:
            snapshot = await asyncio.to_thread(self._chats.snapshot, visitor.owner, link or visitor.conversation_id)
        except NotFound:
            refused = {"problem": view.problem(NOT_YOURS)} if link else {}
            return self._shown(Snapshot(), visitor) | refused
        return self._shown(snapshot, visitor) | _drawer(snapshot)

    async def open(self, action: Any, browser: Any, request: gr.Request) -> Update:
        """Show another conversation, or a new one. The answer that was being written goes on by itself.

        `action` is {"id", "node"}: a message of it that the reader has found by searching, if any.
        """
        visitor, asked = Visitor.of(browser, request), Action.of(action)
        self._remember(visitor.tab, asked.id)
        await self._followers.dismiss(visitor.tab)
        try:
            snapshot, refused = await asyncio.to_thread(self._find, visitor.owner, asked), ""
        except NotFound:
            snapshot, refused = Snapshot(), view.problem(NOT_YOURS)
        if self._showing.get(visitor.tab) != asked.id:  # the reader has gone on to another one meanwhile
            return {}
        update = self._shown(snapshot, visitor) | _drawer(snapshot)
        return update | {"problem": refused} if refused else update

    async def send(self, text: Any, files: Any, browser: Any, drawer: tuple[Any, ...], request: gr.Request) -> Update:
        """The composer's text and the files that go along, as the next message. Nothing happens without a text."""
        if not isinstance(text, str) or not text.strip():
            return {"problem": ""}
        visitor = Visitor.of(browser, request)

        def start() -> Snapshot:
            chosen, attachments = settings.read_settings(drawer), held(files)
            return self._chats.send(
                visitor.owner,
                visitor.conversation_id,
                text,
                chosen,
                after=visitor.seen,
                attachments=attachments,
            )

        return await self._change(visitor, start, {"composer": "", "files": []})

    async def act(self, action: Any, browser: Any, drawer: tuple[Any, ...], request: gr.Request) -> Update:
        """A tool under a message, a key or an example: `action` is what the script sent, see Action."""
        visitor, asked = Visitor.of(browser, request), Action.of(action)
        if asked.op == "undo":
            return await self._undo(visitor)
        if asked.op in ANSWERS:
            answer = ANSWERS[asked.op]
            return await self._change(
                visitor, lambda: answer(self._chats, visitor, asked, settings.read_settings(drawer))
            )
        if asked.op in CHANGES:
            return await self._change(visitor, lambda: CHANGES[asked.op](self._chats, visitor, asked))
        return {"problem": ""}

    def stop(self, browser: Any, request: gr.Request) -> None:
        """Stop the answer of this conversation, and no other."""
        visitor = Visitor.of(browser, request)
        with suppress(NotFound):  # there is nothing to stop
            self._chats.stop(visitor.owner, visitor.conversation_id)

    async def watch(self, browser: Any, request: gr.Request) -> AsyncIterator[tuple[Any, Any]]:
        """The live answer and the status line, as long as an answer is being written. Leaving it stops nothing."""
        visitor = Visitor.of(browser, request)
        snapshot = await self._current(visitor)
        if snapshot.run is None or self._showing.get(visitor.tab) != visitor.conversation_id:
            yield gr.skip(), gr.skip()  # without a yield Gradio would empty both
            return
        _, asked = view.split(snapshot.nodes)
        async with self._followers.follow(visitor.tab) as follower:
            while follower.wanted:
                now, shown_at = snapshot.run.view(), time.monotonic()
                if now.ended:
                    yield view.live_turns(asked, now), gr.skip()  # it is at rest when it is at its place
                    break
                yield view.live_turns(asked, now), view.status_line(self._engine.status(), now)
                with suppress(TimeoutError):
                    await asyncio.wait_for(snapshot.run.changed(now.position), LOOK_EVERY_S)
                if now.tokens:
                    await asyncio.sleep(max(0.0, UPDATE_EVERY_S - (time.monotonic() - shown_at)))
        # Gradio tells the last words of a handler again when it has ended, which may be after "New chat" was answered.
        yield gr.skip(), gr.skip()

    async def rest(self, browser: Any, request: gr.Request) -> Update:
        """The answer that was live, at its place in the history. Nothing to do if nothing was live."""
        visitor = Visitor.of(browser, request)
        if visitor.tab not in self._unsettled or self._showing.get(visitor.tab) != visitor.conversation_id:
            return {}
        snapshot = await self._current(visitor)
        if snapshot.run is not None:  # meanwhile the next one is being written, and will come here too
            return {}
        update = self._shown(snapshot, visitor)
        return update if snapshot.unsaved else update | {"problem": gr.skip()}  # a refusal stays to be read

    def leave(self, tab: str) -> None:
        """The tab was closed or reloaded: forget it. Its answers go on."""
        self._showing.pop(tab, None)
        self._unsettled.discard(tab)

    # -- inside

    async def _change(self, visitor: Visitor, change: Callable[[], Snapshot], also: Update | None = None) -> Update:
        """Change the conversation. If that is refused, say why and leave the text where it is."""
        await self._followers.dismiss(visitor.tab)
        try:
            snapshot = await asyncio.to_thread(change)  # renders the prompt: too long for the event loop
        except StreamingError as error:
            return self._shown(await self._current(visitor), visitor) | {"problem": view.problem(str(error))}
        return self._shown(snapshot, visitor) | (also or {})

    async def _undo(self, visitor: Visitor) -> Update:
        """Back before the last question: it and its files go back to where they were written."""
        before = await self._current(visitor)
        asked = next((node for node in reversed(before.nodes) if node.message.role == "user"), None)
        try:
            text = await asyncio.to_thread(self._chats.undo, visitor.owner, visitor.conversation_id)
        except StreamingError as error:
            return {"problem": view.problem(str(error))}
        return self._shown(await self._current(visitor), visitor) | {
            "composer": text,
            "files": hold(asked.attachments) if asked is not None else [],
        }

    def _find(self, owner: str, asked: Action) -> Snapshot:
        """A conversation, on the branch that has the message asked for."""
        snapshot = self._chats.snapshot(owner, asked.id)
        if not asked.node or snapshot.run is not None or any(node.id == asked.node for node in snapshot.nodes):
            return snapshot
        return self._chats.go_to(owner, asked.id, asked.node, 0)

    async def _current(self, visitor: Visitor) -> Snapshot:
        try:
            return await asyncio.to_thread(self._chats.snapshot, visitor.owner, visitor.conversation_id)
        except NotFound:
            return Snapshot()

    def _remember(self, tab: str, conversation_id: str) -> None:
        self._showing[tab] = conversation_id
        if len(self._showing) > MOST_TABS:
            self.leave(next(iter(self._showing)))

    def _shown(self, snapshot: Snapshot, visitor: Visitor) -> Update:
        """A conversation: what is settled, and what is live if an answer is being written."""
        engine, nodes, tab = self._engine.status(), snapshot.nodes, visitor.tab
        self._remember(tab, snapshot.conversation_id)
        update: Update = {
            "browser": visitor.kept(snapshot.conversation_id, nodes[-1].id if nodes else None),
            "tools": view.script_value(snapshot),
            "problem": view.problem("", snapshot.unsaved),
        }
        if snapshot.run is not None:
            self._unsettled.add(tab)
            now = snapshot.run.view()
            settled, asked = view.split(nodes)
            return update | {
                "history": view.turns(settled),
                "live": view.live_turns(asked, now),
                "status": view.status_line(engine, now),
            }
        self._unsettled.discard(tab)
        last = nodes[-1].finished if nodes else None
        return update | {
            "history": view.turns(nodes),
            "live": [],
            "status": view.status_line(engine, None, last),
        }


def _drawer(snapshot: Snapshot) -> Update:
    """The settings as they were when something was last sent in this conversation."""
    return {"drawer": settings.show_settings(snapshot.settings)} if snapshot.settings else {}
