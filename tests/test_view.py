"""What the page shows: messages, notes, figures and the status line, from plain values."""

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from streaming.chats import Snapshot
from streaming.conversation import Node
from streaming.engines.base import Status
from streaming.events import Finished, Prefill, Queued, Tentative, Timings, Usage
from streaming.listing import Entry
from streaming.messages import Message
from streaming.runs import View
from streaming.ui import view

READY = Status("ready", "tiny", context_tokens=8192)
NOW = View(1, "queued", "", "", (), Tentative(), None, None, 0, None, 0.0, 0.0, None, None)
QUESTION = Node("q", None, Message("user", "  indented\n\ttext"), 0.0)
DONE = Finished("stop", Usage(100, 0, 20, 0), Timings(0.0, 0.25, 40.0))


def answer(**changes: object) -> Node:
    return replace(Node("a", "q", Message("assistant", "yes"), 0.0, finished=DONE), **changes)  # type: ignore[arg-type]


def test_text_keeps_its_indentation() -> None:
    """Reported of Gradio (9717): text given as a plain string loses its leading indent."""
    assert view.turns([QUESTION])[0]["content"] == [{"type": "text", "text": "  indented\n\ttext"}]


def test_a_thought_is_a_message_of_its_own_and_tools_stay_aligned() -> None:
    nodes = [QUESTION, answer(message=Message("assistant", "yes", "hm"), thought_s=2.04)]
    turns, tools = view.turns(nodes), view.tools(nodes)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "assistant"]
    assert turns[1]["metadata"] == {"title": "Thought for 2.0 s", "status": "done"}
    assert [row["kind"] for row in tools] == ["user", "thought", "assistant"]
    assert tools[-1]["last"] is True
    assert tools[-1]["figures"] == "40.0 tok/s · first token 0.25 s · 20 tokens"


def test_notes_say_how_an_answer_ended() -> None:
    assert view.tools([answer(state="stopped")])[0]["note"] == "Stopped"
    assert view.tools([answer(state="cut")])[0]["note"] == "Cut off at the token limit"
    failed = view.tools([answer(state="failed", error="out of memory", finished=None)])[0]
    assert (failed["note"], failed["failed"]) == ("out of memory", True)
    dropped = replace(DONE, usage=replace(DONE.usage, dropped_messages=3))
    assert view.tools([answer(finished=dropped)])[0]["note"] == "3 earlier messages left out to fit the context"


def test_live_turns_show_the_thought_while_it_lasts() -> None:
    thinking = view.live_turns(QUESTION, replace(NOW, phase="thinking", reasoning="hm", thought_s=1.0))
    assert thinking[1]["metadata"] == {"title": "Thinking… 1.0 s", "status": "pending"}
    assert len(thinking) == 2
    answering = view.live_turns(QUESTION, replace(NOW, phase="answering", reasoning="hm", text="yes", thought_s=1.5))
    assert answering[1]["metadata"]["status"] == "done"
    assert answering[2]["content"][0]["text"] == "yes"


def test_the_status_line_follows_the_phases() -> None:
    def line(**changes: object) -> str:
        return view.status_line(READY, replace(NOW, **changes))  # type: ignore[arg-type]

    assert "starting" in line()
    assert "waiting, 2 ahead of you" in line(queued=Queued(3))
    assert "waiting, you are next" in line(queued=Queued(1))
    assert "loading &lt;x&gt;" in line(queued=Queued(1, "loading <x>"))
    assert "reading 1,200 of 3,400 tokens" in line(phase="prefill", prefill=Prefill(1200, 3400))
    live = line(phase="answering", prefill=Prefill(100, 100), tokens=20, tps=40.21, ttft_s=0.09)
    assert "<b>40.2 tok/s</b>" in live
    assert "first token 0.09 s" in live
    assert "120 of 8,192 tokens" in live
    rest = view.status_line(READY, None, DONE)
    assert 'data-phase="idle"' in rest
    assert "120 of 8,192 tokens" in rest


def test_a_problem_and_a_banner_are_escaped() -> None:
    assert "&lt;b&gt;" in view.problem("<b>")
    assert view.problem("") == ""
    assert "&lt;i&gt;" in view.banner(replace(READY, notices=("<i>",)))
    assert 'role="alert"' in view.banner(replace(READY, state="failed", detail="no such model"))
    assert "34 of 93 MB" in view.banner(replace(READY, state="loading", detail="34 of 93 MB"))


def test_the_script_knows_versions() -> None:
    snapshot = Snapshot("o", "c", (QUESTION, answer()), title="Yes", versions={"a": (2, 3)})
    value = view.script_value(snapshot)
    assert (value["conversation"], value["title"]) == ("c", "Yes")
    assert [row.get("version") for row in value["rows"]] == [None, (2, 3)]


def test_an_answer_may_stand_without_its_question() -> None:
    """A question can be deleted; what is being written then is all that is live."""
    assert view.split([QUESTION, answer()]) == ([], QUESTION)
    assert view.split([answer()]) == ([], None)
    assert view.split([answer(), answer()]) == ([answer()], None)
    assert [turn["role"] for turn in view.live_turns(None, NOW)] == ["assistant"]


def test_the_side_list_is_plain_values() -> None:
    entry = Entry("c", "Bread", 5.0, True, False, ("a ", "flour", " b"), "n")
    shown = view.side_list("flour", [entry], full=False)
    assert shown["query"] == "flour"
    assert shown["entries"][0] == {
        "id": "c",
        "title": "Bread",
        "updated": 5.0,
        "pinned": True,
        "running": False,
        "hit": ("a ", "flour", " b"),
        "node": "n",
    }


def test_how_many_are_answered_at_once_is_said_when_it_is_more_than_one() -> None:
    def line(running: int) -> str:
        return view.status_line(replace(READY, running=running), replace(NOW, phase="answering", tokens=3))

    assert "at once" not in line(1)
    assert "3 answers at once" in line(3)


def test_what_is_not_saved_is_said_beside_a_refusal() -> None:
    shown = view.problem("Too long.", "The disk is <full>.")
    assert "Too long." in shown
    assert "The disk is &lt;full&gt;." in shown
    assert 'role="status"' in view.problem("", "The disk is full.")


def test_what_may_still_change_follows_what_is_settled() -> None:
    now = replace(NOW, phase="answering", text="It is", tentative=Tentative(" so"))
    (shown,) = view.live_turns(None, now)
    assert shown["content"][0]["text"] == 'It is<span class="tentative"> so</span>'
    thought, answer = view.live_turns(None, replace(now, text="", tentative=Tentative("So.", "Hm")))
    assert "Hm" in thought["content"][0]["text"]
    assert "So" in answer["content"][0]["text"]


def test_what_came_of_guesses_is_said_at_rest() -> None:
    usage = Usage(prompt_tokens=5, completion_tokens=12, proposed_tokens=10, accepted_tokens=6)
    line = view.status_line(READY, None, Finished("stop", usage))
    assert "60% of guesses accepted" in line
    assert "2.0 tokens a step" in line
    assert "guesses" not in view.status_line(READY, None, Finished("stop", Usage(completion_tokens=3)))


def live_marks(now: View) -> Any:
    """As a browser reads them from the status line."""
    (line,) = ElementTree.fromstring(f"<page>{view.status_line(READY, now)}</page>".replace("&nbsp;", ""))
    return json.loads(line.attrib["data-guessed"])


def test_where_guesses_brought_the_text_is_told_of_thought_and_answer_apart() -> None:
    """One of them reaches from the end of the thought into the answer."""
    guessed = ((0, 1), (4, 8), (9, 10))
    shown = view.tools([answer(message=Message("assistant", "an answer", "thought"), guessed=guessed)])
    assert shown[0] == {"id": "a", "kind": "thought", "text": "thought", "guessed": [(0, 1), (4, 7)]}
    assert (shown[1]["text"], shown[1]["guessed"]) == ("an answer", [(0, 1), (2, 3)])
    now = replace(NOW, phase="answering", reasoning="thought", text="an answer", guessed=guessed)
    assert live_marks(now) == [
        {"text": "thought", "guessed": [[0, 1], [4, 7]]},
        {"text": "an answer", "guessed": [[0, 1], [2, 3]]},
    ]
    assert live_marks(replace(now, reasoning="", text='">&quot;</div><b>', guessed=((0, 2),))) == [
        {"text": '">&quot;</div><b>', "guessed": [[0, 2]]}
    ]


def test_without_guesses_nothing_is_told_of_them() -> None:
    assert "guessed" not in view.status_line(READY, replace(NOW, phase="answering", reasoning="hm", text="an answer"))
    rows = view.tools([answer(message=Message("assistant", "an answer", "thought"))])
    assert rows[0] == {"id": "a", "kind": "thought"}
    assert "guessed" not in rows[1]
