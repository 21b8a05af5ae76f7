"""The two pages that page_cost compares, each served from a process of its own with a conversation already on it."""

import io
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from typing import Any

import gradio as gr

from benchmarks.whole_history_page import build
from streaming.chats import Chats
from streaming.config import Config
from streaming.conversation import Settings
from streaming.engines.base import Generation
from streaming.engines.script import Say, Script
from streaming.engines.scripted import ScriptedEngine
from streaming.events import Event, Finished
from streaming.messages import Message, Sampling
from streaming.ui import launch, page, view

OWNER = "benchmark-visitor"
UPDATE_S = 0.08  # how often our page updates; its peer does the same

Updates = Callable[[], int]


def serve(kind: str, messages: list[str], words: list[str], rate: float, port: int, pipe: Connection) -> None:
    """Runs in the child: sends "up", then when the model ended (a time.time()), then the number of updates so far."""
    updates = (
        ours(messages, words, rate, port, pipe) if kind == "ours" else whole_history(messages, words, rate, port, pipe)
    )
    pipe.send("up")
    while pipe.recv() == "updates":
        pipe.send(updates())


def ours(messages: list[str], words: list[str], rate: float, port: int, pipe: Connection) -> Updates:
    """Our page on the scripted engine: it answers "go" with the words, and sends anything else back at once."""

    def script(asked: Sequence[Message]) -> list[Say]:
        text = asked[-1].content
        return [Say("".join(words), rate)] if text == "go" else [Say(text)]

    engine = _Timed(script, pipe)
    chats = Chats(engine)
    conversation = _fill(chats, messages)
    blocks = page.build_page(chats, engine)
    for block in blocks.blocks.values():
        if isinstance(block, gr.BrowserState) and block.storage_key == "streaming-visitor":
            block.default_value = {"owner": OWNER, "conversation": conversation}
    count = _Counter(view.live_turns)
    view.live_turns = count  # type: ignore[assignment]
    with redirect_stdout(io.StringIO()):  # it tells where to look; the table is ours
        launch.App(Config(port=port, engine="scripted"), engine, blocks).launch(block=False)
    return lambda: count.calls


def whole_history(messages: list[str], words: list[str], rate: float, port: int, pipe: Connection) -> Updates:
    """The tutorials' page."""
    history = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(messages)]
    blocks = build(history, words, rate, UPDATE_S, pipe.send)
    blocks.launch(server_port=port, prevent_thread_lock=True, quiet=True)
    return lambda: round(len(words) / rate / UPDATE_S)


def _fill(chats: Chats, messages: list[str]) -> str:
    conversation = ""
    for text in messages[::2]:
        snapshot = chats.send(OWNER, conversation, text, Settings())
        conversation = snapshot.conversation_id
        while chats.snapshot(OWNER, conversation).run is not None:
            time.sleep(0.001)
    return conversation


class _Timed(ScriptedEngine):
    """Tells when the answer to "go" ended."""

    def __init__(self, script: Script, pipe: Connection) -> None:
        super().__init__(script, context_tokens=1_000_000, max_new_tokens=100_000)
        self._pipe = pipe

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
        model: str | None = None,
    ) -> Generation:
        generation = super().stream(prompt, sampling, user=user, continues=continues, model=model)
        deliver = generation.emit
        last = prompt if isinstance(prompt, str) else prompt[-1].content

        def emit(event: Event) -> None:
            if isinstance(event, Finished) and last == "go":
                self._pipe.send(time.time())
            deliver(event)

        generation.emit = emit  # type: ignore[method-assign]
        return generation


class _Counter:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._function(*arguments)
