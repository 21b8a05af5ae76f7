"""The panel in which a model is chosen, and what each open page shows of the model: its name, how loading goes, and
what it can be asked for.

Each visible tab has one follower, so that a change reaches all of them, whoever made it. Nothing blocks the event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from itertools import count
from typing import Any

import gradio as gr

from streaming.disk import size_text
from streaming.engines.base import Engine, Status
from streaming.errors import StreamingError
from streaming.models import title
from streaming.picker import Choice, Picker, Picking
from streaming.ui import view, ways
from streaming.ui.followers import Followers
from streaming.ui.visitors import Action

LOOK_EVERY_S = 0.5
IDLE = Picking("idle")
GROUPS = {
    "loaded": "In use",
    "cached": "On this machine",
    "server": "At the server",
    "suggested": "Suggestions for this machine",
    "asked": "",
}

Shown = tuple[dict[str, Any], str, bool, tuple[str, ...], bool]


class ModelPanel:
    """The handlers. Without a picker, or where it is not offered, the page only shows which model it is."""

    def __init__(self, engine: Engine, picker: Picker | None) -> None:
        self._engine = engine
        self._picker = picker if picker is not None and picker.offered else None
        self._followers = Followers()
        self._replies = count(1)

    async def follow(self, request: gr.Request) -> AsyncIterator[tuple[Any, ...]]:
        """For the model's script, the banner, and the drawer's thinking, strategy and marks: what has changed of the
        model, as long as the tab is seen. Starts the engine if nobody has."""
        self._engine.start()
        before: Shown = ({}, "", False, (), False)
        first = True
        async with self._followers.follow(request.session_hash or "") as follower:
            while follower.wanted:
                now = self._shown()
                if first or now != before:
                    yield _changes(before, now, first=first)
                before, first = now, False
                await follower.wait(asyncio.sleep(LOOK_EVERY_S))
        yield (gr.skip(),) * len(before)

    async def leave(self, tab: str) -> None:
        """The tab was closed, or nobody looks at it."""
        await self._followers.dismiss(tab)

    async def ask(self, action: Any) -> dict[str, Any]:
        """What the panel asks for, as {"op", "text"}: "list" and "look-up" get an answer; "choose" and "cancel" show in
        what `follow` says, and get a `problem` where they are refused."""
        picker, asked = self._picker, Action.of(action)
        if picker is None:
            return self._reply(problem="Models are chosen here where the app was started with --allow-model.")
        try:
            return self._reply(**await asyncio.to_thread(_answer, picker, asked))
        except StreamingError as error:
            return self._reply(problem=str(error))

    def _reply(self, **told: Any) -> dict[str, Any]:
        """Each is numbered: the same refusal twice is two."""
        return {"number": next(self._replies), "problem": "", **told}

    def _shown(self) -> Shown:
        status = self._engine.status()
        picking = self._picker.picking() if self._picker is not None else IDLE
        told = {
            "name": status.model,
            "title": title(status.model),
            "offered": self._picker is not None,
            "hub": self._picker is not None and self._picker.hub,
            "picking": {**asdict(picking), "title": title(picking.name)},
        }
        return told, view.banner(status), status.can_think, _strategies(status), ways.guesses(status)


def _strategies(status: Status) -> tuple[str, ...]:
    return tuple(ways.offered(status)) if status.strategies else ()


def _changes(before: Shown, now: Shown, *, first: bool) -> tuple[Any, ...]:
    """New values for what has changed. At first nothing is hidden: a conversation may have shown its own strategy."""
    told, banner, thinks, strategies, guesses = now
    is_new = [first or new != old for old, new in zip(before, now, strict=True)]
    choose = gr.update(choices=list(strategies) or [ways.PLAIN], visible=bool(strategies))
    return (
        told if is_new[0] else gr.skip(),
        banner if is_new[1] else gr.skip(),
        gr.update(visible=thinks) if is_new[2] else gr.skip(),
        choose if is_new[3] and (strategies or not first) else gr.skip(),
        gr.update(visible=guesses) if is_new[4] and (guesses or not first) else gr.skip(),
    )


def _answer(picker: Picker, asked: Action) -> dict[str, Any]:
    """What the panel gets for its question; nothing where it asks for what there is not."""
    name = asked.text.strip()
    match asked.op:
        case "list":
            return {"groups": _groups(picker.choices())}
        case "look-up":
            return {"found": _line(picker.look_up(name))}
        case "choose":
            picker.choose(name)
        case "cancel":
            picker.cancel()
    return {}


def _groups(choices: list[Choice]) -> list[dict[str, Any]]:
    """The choices under their headings, in the order of GROUPS."""
    groups = [
        {"heading": heading, "choices": [_line(choice) for choice in choices if choice.origin == origin]}
        for origin, heading in GROUPS.items()
    ]
    return [group for group in groups if group["choices"]]


def _line(choice: Choice) -> dict[str, Any]:
    return {
        "name": choice.name,
        "title": choice.title,
        "origin": choice.origin,
        "fits": choice.fits,
        "about": _about(choice),
    }


def _about(choice: Choice) -> str:
    """Size and fit in words."""
    here = choice.origin in ("loaded", "cached")
    parts = [_parameters(choice.parameters)] if choice.parameters else []
    if choice.size_bytes:
        parts.append(f"{size_text(choice.size_bytes)} {'on disk' if here else 'download'}")
    if choice.fits is False:
        parts.append(f"needs {size_text(choice.needs_bytes)} of memory, more than is free here")
    elif choice.needs_bytes:
        parts.append(f"{size_text(choice.needs_bytes)} memory")
    return " · ".join(parts)


def _parameters(count: int) -> str:
    """As model names have them: 135M, 1.7B."""
    return f"{count / 1e9:.1f}B parameters" if count >= 1e9 else f"{count / 1e6:.0f}M parameters"
