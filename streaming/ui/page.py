"""The page: what is where, and which event calls which handler of session.py. Looks are in assets/page.css.

History and live answer are two Chatbots in one column. Only the live one is updated while an answer streams, so that
neither the server nor the browser pays for the history; at the end one update moves the answer over.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from streaming.chats import Chats
from streaming.engines.base import Engine
from streaming.models import title
from streaming.ui import assets
from streaming.ui.session import Session, Update
from streaming.ui.settings import Drawer, build_drawer, own_presets

LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
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
    new: gr.Button


def build_page(chats: Chats, engine: Engine) -> gr.Blocks:
    """Lay out the page and wire it to `chats`. launch.py serves it."""
    model = title(engine.status().model)
    page = gr.Blocks(title="Streaming", analytics_enabled=False, fill_width=True)
    with page:
        gr.HTML(assets.fill("header.html", model=model), elem_id="header", js_on_load=None)
        new = gr.Button("New chat", elem_id="new-chat")
        gr.HTML(assets.read("help.html"), elem_id="help", js_on_load=None)
        tools = gr.HTML([], html_template="", elem_id="tools", js_on_load=assets.read("page.js"))
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
        browser = gr.BrowserState({}, storage_key="streaming-visitor", secret="streaming")
        parts = Parts(browser, banner, history, live, tools, problem, composer, status, drawer)
        _wire(page, parts, Session(chats, engine), Buttons(send, stop, new))
    return page


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


def _wire(page: gr.Blocks, parts: Parts, session: Session, buttons: Buttons) -> None:
    """Connect events and handlers. What changes something runs first, then `watch` on few components, then `rest`."""
    browser, drawer, outputs = parts.browser, parts.drawer, parts.outputs()
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}

    async def load(request: gr.Request, kept: Any) -> Values:
        return parts.assign(session.load(kept, request))

    async def settings(request: gr.Request, kept: Any) -> Values:
        return parts.assign(session.settings(kept, request))

    async def send(request: gr.Request, text: str, kept: Any, *values: Any) -> Values:
        return parts.assign(await session.send(text, kept, values, request))

    async def act(request: gr.Request, action: gr.EventData, kept: Any, *values: Any) -> Values:
        return parts.assign(await session.act(action._data, kept, values, request))

    async def new(request: gr.Request, kept: Any) -> Values:
        return parts.assign(await session.new(kept, request))

    async def watch(request: gr.Request, kept: Any) -> AsyncIterator[tuple[Any, Any]]:
        async for update in session.watch(kept, request):
            yield update

    async def rest(request: gr.Request, kept: Any) -> Values:
        return parts.assign(session.rest(kept, request)) or gr.skip()

    page.load(session.watch_engine, None, [parts.banner, drawer.thinking], **quiet)
    page.load(own_presets, [drawer.presets], [drawer.preset], **quiet)
    page.load(settings, [browser], drawer.fields, **quiet)
    typed = [parts.composer.submit, buttons.send.click]
    for event in (
        page.load(load, [browser], outputs, **quiet),
        gr.on(typed, send, [parts.composer, browser, *drawer.fields], outputs, **quiet),
        parts.tools.submit(act, [browser, *drawer.fields], outputs, **quiet),
        buttons.new.click(new, [browser], outputs, trigger_mode="multiple", **quiet),
    ):
        watched = event.then(watch, [browser], [parts.live, parts.status], trigger_mode="multiple", **quiet)
        watched.then(rest, [browser], outputs, trigger_mode="multiple", **quiet)
    page.unload(session.leave)
    buttons.stop.click(session.stop, [browser], None, queue=False, trigger_mode="multiple", **quiet)
