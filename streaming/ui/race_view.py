"""How a race looks: its lanes side by side, the table at its end, and the files to take away.

Pure: sights in, HTML out. What a model has written is never markup here.
"""

import base64
from collections.abc import Sequence
from html import escape

from streaming.messages import Assisted, Beam, PromptLookup, Strategy
from streaming.race import Race, Sight
from streaming.ui import ways

STATES = {
    "waiting": "waits",
    "running": "runs now",
    "again": "as it ran",
    "done": "",
    "stopped": "stopped",
    "failed": "failed",
}
COLUMNS = ("tokens", "seconds", "tokens/s", "first token, s", "against plain", "guesses right", "answer")
DISTURBED = "<p>Other answers were being made meanwhile: alone, the lanes would have been faster.</p>"
AS_FAST = 1.05  # what is less quicker than that is chance


def about(strategy: Strategy | None) -> str:
    """What a way of decoding does, for somebody who has not heard of it."""
    match strategy:
        case None:
            return "The most likely token, and then the next: one step each."
        case PromptLookup():
            return "Guesses how the prompt goes on, and checks several tokens in one step. The answer stays the same."
        case Assisted(model):
            return f"{model} guesses what comes next, and the model checks it in one step. The answer stays the same."
        case Beam(number):
            return f"Follows {number} texts at once and keeps the most likely one. What is grey may still change."


def colour(lane: str) -> str:
    match ways.named(lane):
        case PromptLookup():
            return "#149c8a"
        case Assisted():
            return "#c9831a"
        case Beam(number):
            return "#5b7fd6" if number <= 2 else "#a267c9"
        case _:
            return "#85858f"


def waiting_html(lanes: Sequence[str]) -> str:
    """The lanes before the race."""
    cards = (
        _card(Sight(name, "waiting"), f'<p class="lane-about">{escape(about(ways.named(name)))}</p>') for name in lanes
    )
    return f'<div class="lanes">{"".join(cards)}</div>'


def lanes_html(sights: Sequence[Sight], *, running: bool) -> str:
    """The lanes side by side."""
    cards = "".join(_card(sight, _text(sight)) for sight in sights)
    return f'<div class="lanes"{" data-running" if running else ""}>{cards}</div>'


def _card(sight: Sight, text: str) -> str:
    figures = "".join(f"<span>{figure}</span>" for figure in _figures(sight))
    return (
        f'<section class="lane" data-state="{sight.state}" aria-label="{escape(sight.lane)}" '
        f'style="--lane: {colour(sight.lane)}; --progress: {sight.progress:.3f}">'
        f"<h2>{escape(sight.lane)} <small>{STATES[sight.state]}</small>{_speed(sight)}</h2>"
        f'<p class="lane-figures">{figures}</p><div class="lane-text" tabindex="0"><div>{text}</div></div></section>'
    )


def _speed(sight: Sight) -> str:
    if sight.speed_up is None:
        return ""
    quicker = ' class="quicker"' if sight.speed_up >= AS_FAST else ""
    return f" <b{quicker}>{sight.speed_up:.2f} × plain</b>"


def _figures(sight: Sight) -> list[str]:
    told = [f"{sight.tokens} tokens", f"{sight.seconds:.1f} s"] if sight.state != "waiting" else []
    if sight.rate is not None:
        told.append(f"<b>{sight.rate:.1f}</b> tokens/s")
    if sight.ttft_s is not None:
        told.append(f"first after {sight.ttft_s:.2f} s")
    if sight.accepted is not None:
        told.append(f"{sight.accepted:.0%} of guesses right")
    if sight.same_text is not None:
        told.append("the same answer" if sight.same_text else "another answer: what differs is marked")
    return told


def _text(sight: Sight) -> str:
    if sight.parts is not None:
        return "".join(f"<mark>{escape(text)}</mark>" if new else escape(text) for text, new in sight.parts)
    tentative = f'<span class="lane-tentative">{escape(sight.tentative)}</span>' if sight.tentative else ""
    return escape(sight.text) + tentative


def results_html(race: Race) -> str:
    ran = [sight for sight in race.sights() if sight.state != "waiting"]
    rows = "".join(
        f"<tr><th scope='row'><i style='--lane: {colour(sight.lane)}'></i>{escape(sight.lane)}</th>"
        + "".join(f"<td>{cell}</td>" for cell in _cells(sight))
        + "</tr>"
        for sight in ran
    )
    heads = "".join(f"<th scope='col'>{name}</th>" for name in COLUMNS)
    return (
        f'<h2 role="status">{escape(verdict(ran))}</h2>{"" if race.alone else DISTURBED}'
        f'<div class="race-table" tabindex="0"><table><thead><tr><td></td>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f'<p class="race-files">Take away: {_file_link("table.csv", "text/csv", race.table_csv())}'
        f"{_file_link('curves.csv', 'text/csv', race.curves_csv())}"
        f"{_file_link('race.json', 'application/json', race.to_json())}</p>"
    )


def verdict(sights: Sequence[Sight]) -> str:
    """The race in a sentence."""
    if any(sight.state != "done" for sight in sights):
        return "The race was stopped."
    measured = [(sight.speed_up, sight.lane) for sight in sights if sight.speed_up is not None]
    if not measured:
        return "The race is over."
    speed_up, lane = max(measured)
    if speed_up < AS_FAST:
        return "Nothing was faster than plain decoding here."
    return f"{lane} won: {speed_up:.2f} × as fast as plain decoding."


def _cells(sight: Sight) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "–" if value is None else form.format(value)

    return [
        str(sight.tokens),
        f"{sight.seconds:.2f}",
        number(sight.rate, "{:.1f}"),
        number(sight.ttft_s, "{:.2f}"),
        number(sight.speed_up, "{:.2f} ×"),
        number(sight.accepted, "{:.0%}"),
        "–" if sight.same_text is None else "the same" if sight.same_text else "another",
    ]


def _file_link(name: str, kind: str, content: str) -> str:
    """A file that lies in the page itself: no other visitor can come by it."""
    data = base64.b64encode(content.encode()).decode()
    return f'<a download="{name}" href="data:{kind};charset=utf-8;base64,{data}">{name}</a>'
