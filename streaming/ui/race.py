"""The second page: one prompt through several ways of decoding, side by side, and what came of it.

Knows what is where and what a click does; race_view.py draws, streaming/race.py runs. A race belongs to the tab that
started it and ends with it. Threading: handlers are on the event loop, and wait for nothing else.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr
import pandas

from streaming.allowance import Allowance
from streaming.engines.base import Engine, Status
from streaming.errors import InvalidRequest, StreamingError
from streaming.messages import Beam
from streaming.models import title
from streaming.race import Lane, Race
from streaming.ui import assets, view, ways
from streaming.ui.race_view import colour, lanes_html, results_html, waiting_html
from streaming.ui.visitors import BROWSER_KEY, Visitor
from streaming.ui.wiring import QUIET

FEWEST_TOKENS, MOST_TOKENS, TOKENS = 8, 512, 96
NOT_AT_FIRST = (ways.name_of(Beam(4)),)  # they take their time
LOOK_EVERY_S = 0.5
NOTHING_TO_RACE = (
    "Only a model in this process can be raced: a server makes its tokens its own way. "
    "Start the app with --engine local."
)
CODE = """```python
def area(width, height):
    return width * height


def volume(width, height, depth):
    return width * height * depth


def surface(width, height, depth):
    return 2 * (width * height + width * depth + height * depth)
```"""
QUOTE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
    "truth is so well fixed in the minds of the surrounding families, that he is considered the rightful property of "
    "some one or other of their daughters."
)
EXAMPLES = (
    ("Repeat code: guessing pays", f"Repeat this code exactly as it is:\n\n{CODE}"),
    ("Quote a text: guessing pays", f"Quote this text word for word:\n\n{QUOTE}"),
    ("Tell a story: nothing to guess from", "Write a short story about a lighthouse keeper who finds a letter."),
    ("Explain: nothing to guess from", "Why is the sky blue? Explain it in a few sentences."),
)


def add_race(page: gr.Blocks, engine: Engine, allowance: Allowance, *, secret: str | None = None) -> None:
    """Give the app a page /race beside its first one, on which visitors are who they are there."""
    races = Races(engine, allowance)
    with page.route("Race", "race", show_in_navbar=False):
        header = gr.HTML(_header(engine), elem_id="header", js_on_load=assets.script("base", "theme"))
        with gr.Column(elem_id="race"):
            gr.HTML(assets.read("race-about.html"), elem_id="race-about", js_on_load=None)
            notice = gr.HTML("", elem_id="race-notice", js_on_load=None)
            with gr.Column(elem_id="race-form"):
                prompt = gr.Textbox(EXAMPLES[0][1], label="Prompt", lines=4, max_lines=10, elem_id="race-prompt")
                gr.Examples(
                    [[text] for _, text in EXAMPLES],
                    [prompt],
                    example_labels=[name for name, _ in EXAMPLES],
                    label="Examples",
                    elem_id="race-examples",
                    api_visibility="private",
                )
                with gr.Row(elem_id="race-controls"):
                    chosen = gr.CheckboxGroup([], label="Beside plain decoding", elem_id="race-lanes")
                    tokens = gr.Slider(FEWEST_TOKENS, MOST_TOKENS, TOKENS, step=8, label="Longest answer, in tokens")
                    start = gr.Button("Start", variant="primary", elem_id="race-start", interactive=False)
                    stop = gr.Button("Stop", elem_id="race-stop")
            board = gr.HTML("", elem_id="race-board", js_on_load=assets.script("base", "race"))
            results = gr.HTML("", elem_id="race-results", js_on_load=None)
            chart = gr.LinePlot(
                None,
                x="seconds",
                y="tokens",
                color="lane",
                title="Tokens over time",
                x_title="seconds",
                y_title="tokens",
                color_title=" ",
                height=320,
                visible=False,
                buttons=["export"],
                elem_id="race-chart",
            )
        browser = gr.BrowserState({}, storage_key=BROWSER_KEY, secret=secret)
        page.load(lambda: _header(engine), None, header, **QUIET)
        page.load(races.meet, [browser], [browser], **QUIET)
        page.load(races.look, None, [notice, chosen, start, board], **QUIET)
        begun = gr.on([start.click, prompt.submit], races.begin, None, [results, chart], trigger_mode="once", **QUIET)
        ran = begun.then(races.run, [browser, prompt, chosen, tokens], [notice, board], trigger_mode="once", **QUIET)
        ran.then(races.end, None, [results, chart], **QUIET)
        stop.click(races.stop, None, None, queue=False, trigger_mode="multiple", **QUIET)
        page.unload(races.leave)


def _header(engine: Engine) -> str:
    return assets.fill("race.html", model=title(engine.status().model))


class Races:
    """The races of all tabs, each by its tab. To the `allowance`, a race is one request."""

    def __init__(self, engine: Engine, allowance: Allowance | None = None) -> None:
        self._engine = engine
        self._allowance = allowance or Allowance()
        self._races: dict[str, Race] = {}

    def meet(self, browser: Any, request: gr.Request) -> dict[str, str]:
        """What the browser is to keep: who it is, also if it has never been in the chat."""
        visitor = Visitor.of(browser, request)
        return visitor.kept(visitor.conversation_id, visitor.seen)

    async def look(self) -> AsyncIterator[tuple[str, Any, Any, Any]]:
        """What can be raced here. Unknown until the model is loaded, and nothing on a server's engine."""
        self._engine.start()
        while (status := self._engine.status()).state == "loading":
            yield view.banner(status), gr.skip(), gr.skip(), gr.skip()
            await asyncio.sleep(LOOK_EVERY_S)
        plain, *others = (lane.name for lane in lanes_of(status))
        first = [name for name in others if name not in NOT_AT_FIRST]
        notice = view.banner(status) if others or status.state != "ready" else view.problem(NOTHING_TO_RACE)
        board = waiting_html([plain, *first]) if others else ""
        yield notice, gr.CheckboxGroup(others, value=first), gr.Button(interactive=bool(others)), board

    def begin(self) -> tuple[str, Any]:
        """Clear what is left of the race before."""
        return "", gr.LinePlot(None, visible=False)

    async def run(
        self, request: gr.Request, browser: Any, prompt: Any, chosen: Any, tokens: Any
    ) -> AsyncIterator[tuple[str, Any]]:
        tab = request.session_hash or ""
        self.stop(request)
        self._races.pop(tab, None)
        owner, refused, race = Visitor.of(browser, request).owner, "", None
        try:
            race = Race(
                self._engine,
                prompt if isinstance(prompt, str) else "",
                lanes=_chosen(lanes_of(self._engine.status()), chosen),
                new_tokens=_bounded(tokens),
                user=owner,
            )
            self._allowance.admit(owner)
            self._races[tab] = race
            async for sights in race.run():
                yield "", lanes_html(sights, running=True)
        except StreamingError as error:
            refused = str(error)
        finally:
            if race is not None:
                self._allowance.charge(owner, sum(sight.tokens for sight in race.sights()))
        yield view.problem(refused), gr.skip() if race is None else lanes_html(race.sights(), running=False)

    def end(self, request: gr.Request) -> tuple[str, Any]:
        """What came of it: a table, a chart, and all of it to take away."""
        race = self._races.pop(request.session_hash or "", None)
        if race is None or not (curves := race.curves()):
            return "", gr.LinePlot(None, visible=False)
        frame = pandas.DataFrame(curves, columns=["lane", "seconds", "tokens"])
        colours = {lane: colour(lane) for lane, *_ in curves}
        return results_html(race), gr.LinePlot(frame, color_map=colours, visible=True)

    def stop(self, request: gr.Request) -> None:
        if race := self._races.get(request.session_hash or ""):
            race.stop()

    def leave(self, request: gr.Request) -> None:
        self.stop(request)
        self._races.pop(request.session_hash or "", None)


def lanes_of(engine: Status) -> list[Lane]:
    """The plain way, by which the others are measured, and what else this engine can do: beams last, they are slow."""
    names = sorted(ways.offered(engine), key=lambda name: isinstance(ways.named(name), Beam))
    return [Lane(name, ways.named(name)) for name in names]


def _chosen(lanes: list[Lane], chosen: Any) -> list[Lane]:
    names = {lane.name for lane in lanes}
    if not isinstance(chosen, list) or not all(isinstance(name, str) and name in names for name in chosen):
        raise InvalidRequest("There is no such way of decoding here: reload the page, and choose again.", "strategy")
    return [lane for lane in lanes if lane.strategy is None or lane.name in chosen]


def _bounded(tokens: Any) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int | float) or not FEWEST_TOKENS <= tokens <= MOST_TOKENS:
        raise InvalidRequest(f"An answer has from {FEWEST_TOKENS} to {MOST_TOKENS} tokens here.", "max_new_tokens")
    return int(tokens)
