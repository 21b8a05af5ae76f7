"""What the page shows of a conversation: pure functions from nodes, runs and the engine's status to component values.

Chatbot content is always a list of text parts: as a plain string Gradio would strip its indentation.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from streaming.attachments import Attachment
from streaming.chats import Snapshot
from streaming.conversation import Node
from streaming.engines.base import Status
from streaming.events import Finished, Span, Usage
from streaming.listing import Entry
from streaming.runs import View
from streaming.ui.markup import dimmed_after, to_markdown

Turn = dict[str, Any]
SEPARATOR = '<span class="dot"> · </span>'


def turns(nodes: Sequence[Node]) -> list[Turn]:
    """The Chatbot's messages; a thought comes before its answer as a message of its own."""
    shown: list[Turn] = []
    for node in nodes:
        if node.message.reasoning:
            shown.append(_thought(node.message.reasoning, f"Thought for {node.thought_s:.1f} s", done=True))
        shown.append(_turn(node.message.role, node.message.content))
    return shown


def split(nodes: Sequence[Node]) -> tuple[Sequence[Node], Node | None]:
    """What is settled while the last of the nodes is being written, and the question that it answers."""
    asked = nodes[-2] if len(nodes) > 1 and nodes[-2].message.role == "user" else None
    return (nodes[:-2], asked) if asked else (nodes[:-1], None)


def live_turns(question: Node | None, view: View) -> list[Turn]:
    """The question and as much of its answer as there is; what may still change is dim."""
    shown = [_turn("user", question.message.content)] if question else []
    if view.reasoning or view.tentative.reasoning:
        thinking = view.phase == "thinking"
        title = f"{'Thinking…' if thinking else 'Thought for'} {view.thought_s:.1f} s"
        shown.append(_thought(view.reasoning, title, done=not thinking, tail=view.tentative.reasoning))
    if view.text or view.tentative.text or not view.reasoning:
        shown.append(_turn("assistant", view.text, view.tentative.text))
    return shown


def _marks(guessed: Sequence[Span], reasoning: str) -> tuple[list[Span], list[Span]]:
    """Those of the thought, and those of the answer by its own characters."""
    middle = len(reasoning)
    thought = [(start, min(end, middle)) for start, end in guessed if start < middle]
    answer = [(max(start, middle) - middle, end - middle) for start, end in guessed if end > middle]
    return thought, answer


def script_value(snapshot: Snapshot) -> dict[str, Any]:
    """What the page's script needs to know of a conversation."""
    settled, asked = split(snapshot.nodes) if snapshot.run is not None else (snapshot.nodes, None)
    return {
        "conversation": snapshot.conversation_id,
        "title": snapshot.title,
        "question": asked.message.content if asked else "",
        "asked": _files(asked) if asked else [],
        "rows": tools(settled, snapshot.versions, last=snapshot.run is None),
    }


def tools(
    nodes: Sequence[Node], versions: Mapping[str, tuple[int, int]] = MappingProxyType({}), *, last: bool = True
) -> list[dict[str, Any]]:
    """For each message of `turns` what the page's script needs for its tools: id, kind, raw text, note, figures."""
    rows: list[dict[str, Any]] = []
    for node in nodes:
        thought, answer = _marks(node.guessed, node.message.reasoning)
        if node.message.reasoning:
            rows.append({"id": node.id, "kind": "thought"})
            if thought:
                rows[-1] |= {"text": node.message.reasoning, "guessed": thought}
        row: dict[str, Any] = {"id": node.id, "kind": node.message.role, "text": node.message.content}
        if answer:
            row["guessed"] = answer
        if node.message.role == "assistant":
            row |= {"figures": _figures(node.finished), "note": _note(node), "failed": node.state == "failed"}
        if node.attachments:
            row["files"] = _files(node)
        if node.id in versions:
            row["version"] = versions[node.id]
        rows.append(row)
    if rows and last:
        rows[-1] |= {"last": True, "continues": nodes[-1].can_go_on}
    return rows


def _files(node: Node) -> list[dict[str, str]]:
    return [{"name": file.name, "about": _extent(file)} for file in node.attachments]


def _extent(file: Attachment) -> str:
    if file.pages:
        return f"{file.pages:,} page{'s' if file.pages > 1 else ''}"
    return f"{len(file.text):,} characters"


def note(**said: Any) -> dict[str, Any]:
    """Something for the page's script to do once; never the same twice, since Gradio shows no value twice."""
    return {"number": secrets.token_hex(8)} | said


def side_list(query: str, entries: Iterable[Entry], *, full: bool) -> dict[str, Any]:
    """The list at the side; the page's script puts the days to it, since only the browser knows its time zone."""
    shown = [
        {
            "id": entry.id,
            "title": entry.title,
            "updated": entry.updated,
            "pinned": entry.pinned,
            "running": entry.running,
            "hit": entry.hit,
            "node": entry.hit_node,
        }
        for entry in entries
    ]
    return {"query": query, "entries": shown, "full": full}


def _turn(role: str, text: str, tail: str = "") -> Turn:
    return {"role": role, "content": [{"type": "text", "text": to_markdown(text) + dimmed_after(text, tail)}]}


def _thought(reasoning: str, title: str, *, done: bool, tail: str = "") -> Turn:
    return _turn("assistant", reasoning, tail) | {"metadata": {"title": title, "status": "done" if done else "pending"}}


def _note(node: Node) -> str:
    if node.state == "failed":
        return node.error
    notes = {
        "stopped": "Stopped",
        "cut": "Cut off at the token limit",
        "interrupted": "Interrupted: the app ended while this was being written",
    }
    parts = [notes[node.state]] if node.state in notes else []
    dropped = node.finished.usage.dropped_messages if node.finished else 0
    if dropped:
        parts.append(f"{dropped} earlier message{'s' if dropped > 1 else ''} left out to fit the context")
    return " · ".join(parts)


def _figures(finished: Finished | None) -> str:
    if finished is None or not finished.usage.completion_tokens:
        return ""
    usage, timings = finished.usage, finished.timings
    parts = [f"{timings.decode_tps:.1f} tok/s"] if timings.decode_tps else []
    parts += [f"first token {timings.ttft_s:.2f} s", f"{usage.completion_tokens:,} tokens"]
    return " · ".join(parts)


def status_line(engine: Status, view: View | None, last: Finished | None = None) -> str:
    """One line under the composer. `data-phase` tells the page's script and style whether an answer is under way."""
    if view is None or view.ended:
        finished = view.finished if view is not None else last
        return _status("idle", _at_rest(engine, finished))
    if view.phase == "queued":
        return _status("queued", [_waiting(view)])
    if view.phase == "prefill" and view.prefill is not None:
        return _status("prefill", [f"reading {view.prefill.done:,} of {view.prefill.total:,} tokens"])
    parts = [f"<b>{view.tps:.1f} tok/s</b>"] if view.tps else []
    parts += [f"first token {view.ttft_s:.2f} s"] if view.ttft_s is not None else []
    prompt = view.prefill.total if view.prefill is not None else 0
    parts.append(_context(prompt + view.tokens, engine))
    parts += [f"{engine.running} answers at once"] if engine.running > 1 else []
    return _status(view.phase, parts, _live_marks(view))


def _live_marks(view: View) -> list[dict[str, Any]]:
    """For each message of the live answer, its thought first, the raw text and where accepted guesses brought it."""
    if not view.guessed:
        return []
    thought, answer = _marks(view.guessed, view.reasoning)
    before = [{"text": view.reasoning, "guessed": thought}] if view.reasoning else []
    return [*before, {"text": view.text, "guessed": answer}]


def _waiting(view: View) -> str:
    if view.queued is None:
        return "starting"
    if view.queued.detail:
        return escape(view.queued.detail)
    ahead = view.queued.position - 1
    return f"waiting, {ahead} ahead of you" if ahead else "waiting, you are next"


def _at_rest(engine: Status, finished: Finished | None) -> list[str]:
    if finished is None:
        return []
    parts = [f"<b>{finished.timings.decode_tps:.1f} tok/s</b>"] if finished.timings.decode_tps else []
    parts += [f"first token {finished.timings.ttft_s:.2f} s"] if finished.usage.completion_tokens else []
    parts.append(_context(finished.usage.prompt_tokens + finished.usage.completion_tokens, engine))
    if finished.usage.cached_tokens:
        parts.append(f"{finished.usage.cached_tokens:,} reused")
    return parts + _guesses(finished.usage)


def _guesses(usage: Usage) -> list[str]:
    """What came of the tokens that a draft, or the prompt, had proposed. Each step makes one token by itself."""
    if not usage.proposed_tokens:
        return []
    steps = usage.completion_tokens - usage.accepted_tokens
    rate = f"{usage.accepted_tokens / usage.proposed_tokens:.0%} of guesses accepted"
    return [rate, f"{usage.completion_tokens / steps:.1f} tokens a step"] if steps else [rate]


def _context(tokens: int, engine: Status) -> str:
    return f"{tokens:,} of {engine.context_tokens:,} tokens" if engine.context_tokens else f"{tokens:,} tokens"


def _status(phase: str, parts: list[str], marks: Sequence[Any] = ()) -> str:
    """The `marks` are here for the page's script: a component of their own would cost each answer some frames."""
    told = f' data-guessed="{escape(json.dumps(marks))}"' if marks else ""
    return f'<div class="status-line" data-phase="{phase}"{told}>{SEPARATOR.join(parts) or "&nbsp;"}</div>'


def problem(message: str, unsaved: str = "") -> str:
    """Why a request was refused, right above the composer, where the text still is; and why nothing is being saved."""
    lines = f'<div class="problem" role="alert">{escape(message)}</div>' if message else ""
    return lines + (f'<div class="problem unsaved" role="status">{escape(unsaved)}</div>' if unsaved else "")


def banner(engine: Status) -> str:
    """Lasting words about the model: it is loading, it could not be loaded, or what one should know about it."""
    if engine.state == "loading":
        return f'<div class="banner loading" role="status">{escape(engine.detail or "Loading the model")}</div>'
    if engine.state in ("failed", "closed"):
        return f'<div class="banner failed" role="alert">{escape(engine.detail or "The model is not available.")}</div>'
    notes = (*engine.notices, *([engine.detail] if engine.detail else ()))
    return "".join(f'<div class="banner" role="note">{escape(note)}</div>' for note in notes)
