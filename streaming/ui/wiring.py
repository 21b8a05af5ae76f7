"""Which event of the page calls which handler, and which components that may update.

What streams updates two components only: Gradio rebuilds each component that an event names, even one that it skips.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.events import Dependency

from streaming.ui.attaching import attach
from streaming.ui.exchange import Exchange
from streaming.ui.models import ModelPanel
from streaming.ui.session import Session, Update
from streaming.ui.settings import Drawer, own_presets
from streaming.ui.side import SideList

Values = dict[Any, Any]  # new values by component, as Gradio takes them


@dataclass(frozen=True, slots=True)
class Parts:
    """The components that handlers update, by the names that Update uses."""

    browser: gr.BrowserState
    banner: gr.HTML
    history: gr.Chatbot
    live: gr.Chatbot
    tools: gr.HTML
    problem: gr.HTML
    composer: gr.Textbox
    files: gr.HTML  # what goes along with the next message
    status: gr.HTML
    drawer: Drawer
    feed: gr.HTML  # the side list, on its way to the script
    notes: gr.HTML  # what the script is to do once
    engine: gr.HTML  # which model answers, and what becomes of the choice of another
    replies: gr.HTML  # to the panel in which it is chosen

    def outputs(self) -> list[Any]:
        named = [
            self.browser,
            self.banner,
            self.history,
            self.live,
            self.tools,
            self.problem,
            self.composer,
            self.files,
            self.status,
        ]
        return [*named, *self.drawer.fields]

    def assign(self, update: Update) -> Values:
        """An Update as Gradio wants it; what it does not name stays as it is."""
        values: Values = {}
        for name, value in update.items():
            if name == "drawer":
                values |= dict(zip(self.drawer.fields, value, strict=True))
            else:
                values[getattr(self, name)] = value
        return values


@dataclass(frozen=True, slots=True)
class Buttons:
    send: gr.Button
    stop: gr.Button
    attach: gr.UploadButton
    take_in: gr.UploadButton


QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}


def wire(page: gr.Blocks, parts: Parts, session: Session, buttons: Buttons) -> Dependency:
    """Connect the chat's events. What changes something runs first, then `watch` on few components, then `rest`.

    Returns the event that loads the page: from its end on the browser knows who it is.
    """
    browser, drawer, outputs = parts.browser, parts.drawer, parts.outputs()

    async def load(request: gr.Request, kept: Any) -> Values:
        return parts.assign(await session.load(kept, request))

    async def send(request: gr.Request, text: str, files: Any, kept: Any, *values: Any) -> Values:
        return parts.assign(await session.send(text, files, kept, values, request))

    async def act(request: gr.Request, action: gr.EventData, kept: Any, *values: Any) -> Values:
        return parts.assign(await session.act(action._data, kept, values, request))

    async def open_(request: gr.Request, action: gr.EventData, kept: Any) -> Values:
        return parts.assign(await session.open(action._data, kept, request)) or gr.skip()

    async def watch(request: gr.Request, kept: Any) -> AsyncIterator[tuple[Any, Any]]:
        async for update in session.watch(kept, request):
            yield update

    async def rest(request: gr.Request, kept: Any) -> Values:
        return parts.assign(await session.rest(kept, request)) or gr.skip()

    page.load(own_presets, [drawer.presets], [drawer.preset], **QUIET)
    loaded = page.load(load, [browser], outputs, **QUIET)
    typed = [parts.composer.submit, buttons.send.click]
    for event in (
        loaded,
        gr.on(typed, send, [parts.composer, parts.files, browser, *drawer.fields], outputs, **QUIET),
        parts.tools.submit(act, [browser, *drawer.fields], outputs, **QUIET),
        parts.tools.select(open_, [browser], outputs, trigger_mode="multiple", **QUIET),
    ):
        watched = event.then(watch, [browser], [parts.live, parts.status], trigger_mode="multiple", **QUIET)
        watched.then(rest, [browser], outputs, trigger_mode="multiple", **QUIET)
    buttons.stop.click(session.stop, [browser], None, queue=False, trigger_mode="multiple", **QUIET)
    return loaded


def wire_side(parts: Parts, side: SideList, loaded: Dependency) -> None:
    """Connect the list's events, which touch nothing of the chat."""
    browser, feed, said = parts.browser, parts.feed, [parts.problem, parts.notes]

    async def follow(request: gr.Request, action: gr.EventData, kept: Any) -> AsyncIterator[Any]:
        async for update in side.follow(action._data, kept, request):
            yield update

    async def change(request: gr.Request, action: gr.EventData, kept: Any) -> Any:
        return await side.change(action._data, kept, request)

    async def hide(request: gr.Request) -> None:
        await side.leave(request.session_hash or "")

    loaded.then(follow, [browser], [feed], trigger_mode="multiple", **QUIET)
    feed.submit(follow, [browser], [feed], trigger_mode="multiple", **QUIET)
    feed.edit(change, [browser], said, trigger_mode="multiple", **QUIET)
    feed.clear(hide, None, None, trigger_mode="multiple", **QUIET)


def wire_models(page: gr.Blocks, parts: Parts, models: ModelPanel) -> None:
    """Connect what the page shows of the model, and the panel in which another is chosen."""
    engine, drawer = parts.engine, parts.drawer
    shown = [engine, parts.banner, drawer.thinking, drawer.strategy, drawer.marks]

    async def follow(request: gr.Request) -> AsyncIterator[Any]:
        async for update in models.follow(request):
            yield update

    async def ask(action: gr.EventData) -> Any:
        return await models.ask(action._data)

    async def hide(request: gr.Request) -> None:
        await models.leave(request.session_hash or "")

    page.load(follow, None, shown, **QUIET)
    engine.submit(follow, None, shown, trigger_mode="multiple", **QUIET)
    engine.edit(ask, None, [parts.replies], trigger_mode="multiple", **QUIET)
    engine.clear(hide, None, None, trigger_mode="multiple", **QUIET)


def wire_files(parts: Parts, buttons: Buttons) -> None:
    """Connect what brings files in."""

    async def take(paths: Any, files: Any) -> tuple[str, Any, None]:
        return *await attach(paths, files), None  # the button forgets, so that the same file can come again

    buttons.attach.upload(take, [buttons.attach, parts.files], [parts.problem, parts.files, buttons.attach], **QUIET)


def wire_exchange(parts: Parts, exchange: Exchange, buttons: Buttons) -> None:
    """Connect export and import. The list tells by itself what has come in."""
    browser, said = parts.browser, [parts.problem, parts.notes]

    async def export(request: gr.Request, action: gr.EventData, kept: Any) -> Any:
        return await exchange.export(action._data, kept, request)

    async def take_in(request: gr.Request, path: Any, kept: Any) -> Any:
        return *await exchange.take_in(path, kept, request), None

    parts.feed.download(export, [browser], said, trigger_mode="multiple", **QUIET)
    buttons.take_in.upload(take_in, [buttons.take_in, browser], [*said, buttons.take_in], **QUIET)
