"""The page: what is where. Which event calls which handler is in wiring.py, looks are in assets/page.css.

History and live answer are two Chatbots in one column. Only the live one is updated while an answer streams, so that
neither the server nor the browser pays for the history; at the end one update moves the answer over.
"""

import gradio as gr

from streaming.chats import Chats
from streaming.engines.base import Engine
from streaming.models import title
from streaming.picker import Picker
from streaming.ui import assets
from streaming.ui.exchange import Exchange
from streaming.ui.models import ModelPanel
from streaming.ui.session import Session
from streaming.ui.settings import build_drawer
from streaming.ui.side import SideList
from streaming.ui.visitors import BROWSER_KEY
from streaming.ui.wiring import QUIET, Buttons, Parts, wire, wire_exchange, wire_files, wire_models, wire_side

LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
SCRIPTS = (
    "base",
    "theme",
    "menu",
    "turns",
    "reader",
    "list",
    "address",
    "presence",
    "transfer",
    "models",
    "keys",
    "page",
)
EXAMPLES = (
    ("Explain", "Why is the sky blue? Explain it to a curious ten-year-old."),
    ("Write", "Write a short poem about the sea at night."),
    ("Plan", "Plan a quiet weekend in a small town, hour by hour."),
    ("Code", "Write a Python function that finds the longest word in a text."),
)


def build_page(
    chats: Chats,
    engine: Engine,
    picker: Picker | None = None,
    *,
    secret: str | None = None,
    hub_login: bool = False,
) -> gr.Blocks:
    """Lay out the page and wire it to `chats`. launch.py serves it. A model is chosen by the `picker`. What the browser
    keeps can be read with the `secret`; without one it is readable until the process ends. With `hub_login` a visitor
    may sign in at the Hub."""
    model = title(engine.status().model)
    page = gr.Blocks(title="Streaming", analytics_enabled=False, fill_width=True)
    with page:
        gr.HTML(
            assets.read("side.html"),
            elem_id="side-place",
            elem_classes="with-login" if hub_login else None,
            js_on_load=None,
            apply_default_css=False,
        )
        gr.HTML(assets.fill("header.html", model=model), elem_id="header", js_on_load=None)
        gr.HTML(assets.read("help.html"), elem_id="help", js_on_load=None)
        gr.HTML(assets.read("models.html"), elem_id="models", js_on_load=None)
        share = gr.HTML("", elem_id="share", js_on_load=None)
        page.load(lambda: assets.share(page.share_url) if page.share_url else "", None, share, **QUIET)
        if hub_login:
            gr.LoginButton("Sign in with Hugging Face", "Sign out {}", size="sm", elem_id="login")
        feed, notes, told, replies = (_relay(name) for name in ("feed", "notes", "engine", "replies"))
        take_in = gr.UploadButton("Import", elem_id="import", file_types=[".json"])
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
            with gr.Column(elem_id="composer-box"):
                files = _script("files")
                with gr.Row(elem_id="composer-row"):
                    attach = gr.UploadButton("Attach files", elem_id="attach", min_width=36, file_count="multiple")
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
        browser = gr.BrowserState({}, storage_key=BROWSER_KEY, secret=secret)
        parts = Parts(
            browser, banner, history, live, tools, problem, composer, files, status, drawer, feed, notes, told, replies
        )
        buttons = Buttons(send, stop, attach, take_in)
        session, side, models = Session(chats, engine), SideList(chats), ModelPanel(engine, picker)
        loaded = wire(page, parts, session, buttons)
        wire_side(parts, side, loaded)
        wire_models(page, parts, models)
        wire_files(parts, buttons)
        wire_exchange(parts, Exchange(chats), buttons)

        async def leave(request: gr.Request) -> None:
            session.leave(request.session_hash or "")
            await side.leave(request.session_hash or "")
            await models.leave(request.session_hash or "")

        page.unload(leave)
    return page


def _relay(name: str) -> gr.HTML:
    """Between the server and the page's script."""
    return _script("relay", elem_id=name)


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
