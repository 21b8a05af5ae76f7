"""The page: what is where, and which event calls which handler of session.py. Looks are in assets/page.css.

History and live answer are two Chatbots in one column. Only the live one is updated while an answer streams, so that
neither the server nor the browser pays for the history; at the end one update moves the answer over.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.events import Dependency

from streaming.chats import Chats
from streaming.engines.base import Engine
from streaming.models import title
from streaming.ui import assets
from streaming.ui.session import Session, Update
from streaming.ui.settings import Drawer, build_drawer, own_presets
from streaming.ui.side import SideList

LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
SCRIPTS = ("base", "menu", "turns", "reader", "list", "address", "keys", "page")
EXAMPLES = (
    ("Explain", "Why is the sky blue? Explain it to a curious ten-year-old."),
    ("Write", "Write a short poem about the sea at night."),
    ("Plan", "Plan a quiet weekend in a small town, hour by hour."),
    ("Code", "Write a Python function that finds the longest word in a text."),
)

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
    status: gr.HTML
    drawer: Drawer
    feed: gr.HTML  # the side list, on its way to the script
    notes: gr.HTML  # what the script is to do once

    def outputs(self) -> list[Any]:
        named = [
            self.browser,
            self.banner,
            self.history,
            self.live,
            self.tools,
            self.problem,
            self.composer,
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


def build_page(chats: Chats, engine: Engine, *, secret: str | None = None) -> gr.Blocks:
    """Lay out the page and wire it to `chats`. launch.py serves it. What the browser keeps can be read with the
    `secret`; without one it is readable until the process ends."""
    model = title(engine.status().model)
    page = gr.Blocks(title="Streaming", analytics_enabled=False, fill_width=True)
    with page:
        gr.HTML(assets.read("side.html"), elem_id="side-place", js_on_load=None, apply_default_css=False)
        gr.HTML(assets.fill("header.html", model=model), elem_id="header", js_on_load=None)
        gr.HTML(assets.read("help.html"), elem_id="help", js_on_load=None)
        feed, notes = _script("feed"), _script("notes")
        tools = _script(*SCRIPTS, elem_id="tools")
        with gr.Sidebar(position="right", open=False, width=340, elem_id="drawer", label="Settings"):
            drawer = build_drawer()
        with gr.Column(elem_id="column"):
            banner = gr.HTML("", elem_id="banner", js_on_load=None)
            gr.HTML(assets.greeting(model, EXAMPLES), elem_id="greeting", js_on_load=None)
            history = _chatbot("history", "Conversation")
            live = _chatbot("live", "Answer being written")
        with gr.Column(elem_id="dock"):
            problem = gr.HTML("", elem_id="problem", js_on_load=None)
            with gr.Row(elem_id="composer-row"):
                composer = gr.Textbox(
                    placeholder=f"Message {model}",
                    label="Message",
                    show_label=False,
                    container=False,
                    lines=1,
                    max_lines=8,
                    autofocus=True,
                    elem_id="composer",
                )
                send = gr.Button("Send", elem_id="send", min_width=36)
                stop = gr.Button("Stop", elem_id="stop", min_width=36)
            status = gr.HTML("", elem_id="status", js_on_load=None)
        browser = gr.BrowserState({}, storage_key="streaming-visitor", secret=secret)
        parts = Parts(browser, banner, history, live, tools, problem, composer, status, drawer, feed, notes)
        session, side = Session(chats, engine), SideList(chats)
        loaded = _wire(page, parts, session, Buttons(send, stop))
        _wire_side(parts, side, loaded)

        async def leave(request: gr.Request) -> None:
            session.leave(request.session_hash or "")
            await side.leave(request.session_hash or "")

        page.unload(leave)
    return page


def _script(*names: str, elem_id: str | None = None) -> gr.HTML:
    """A component without looks: its value goes to the script, whose wishes come back as its events."""
    return gr.HTML({}, html_template="", elem_id=elem_id or names[0], js_on_load=assets.script(*names))


def _chatbot(elem_id: str, label: str) -> gr.Chatbot:
    return gr.Chatbot(
        elem_id=elem_id,
        label=label,
        show_label=False,
        container=False,
        height="auto",
        autoscroll=False,
        group_consecutive_messages=False,
        latex_delimiters=LATEX,
        buttons=[],
        feedback_options=None,
    )


QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}


def _wire(page: gr.Blocks, parts: Parts, session: Session, buttons: Buttons) -> Dependency:
    """Connect the chat's events. What changes something runs first, then `watch` on few components, then `rest`.

    Returns the event that loads the page: from its end on the browser knows who it is.
    """
    browser, drawer, outputs = parts.browser, parts.drawer, parts.outputs()

    async def load(request: gr.Request, kept: Any) -> Values:
        return parts.assign(await session.load(kept, request))

    async def send(request: gr.Request, text: str, kept: Any, *values: Any) -> Values:
        return parts.assign(await session.send(text, kept, values, request))

    async def act(request: gr.Request, action: gr.EventData, kept: Any, *values: Any) -> Values:
        return parts.assign(await session.act(action._data, kept, values, request))

    async def open_(request: gr.Request, action: gr.EventData, kept: Any) -> Values:
        return parts.assign(await session.open(action._data, kept, request)) or gr.skip()

    async def watch(request: gr.Request, kept: Any) -> AsyncIterator[tuple[Any, Any]]:
        async for update in session.watch(kept, request):
            yield update

    async def rest(request: gr.Request, kept: Any) -> Values:
        return parts.assign(session.rest(kept, request)) or gr.skip()

    page.load(session.watch_engine, None, [parts.banner, drawer.thinking], **QUIET)
    page.load(own_presets, [drawer.presets], [drawer.preset], **QUIET)
    loaded = page.load(load, [browser], outputs, **QUIET)
    typed = [parts.composer.submit, buttons.send.click]
    for event in (
        loaded,
        gr.on(typed, send, [parts.composer, browser, *drawer.fields], outputs, **QUIET),
        parts.tools.submit(act, [browser, *drawer.fields], outputs, **QUIET),
        parts.tools.select(open_, [browser], outputs, trigger_mode="multiple", **QUIET),
    ):
        watched = event.then(watch, [browser], [parts.live, parts.status], trigger_mode="multiple", **QUIET)
        watched.then(rest, [browser], outputs, trigger_mode="multiple", **QUIET)
    buttons.stop.click(session.stop, [browser], None, queue=False, trigger_mode="multiple", **QUIET)
    return loaded


def _wire_side(parts: Parts, side: SideList, loaded: Dependency) -> None:
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
