"""Exports and imports as the page asks for them: whole, one's own only, and no file left behind."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.chats import Chats
from streaming.conversation import Settings
from streaming.ui.exchange import Exchange
from tests.puppet import Puppet

OWNER = {"owner": "o" * 20}
STRANGER = {"owner": "s" * 20}
REQUEST: Any = SimpleNamespace(session_hash="tab", username=None, query_params={})


@pytest.fixture
def chats() -> Chats:
    engine = Puppet()
    chats = Chats(engine)
    for text in ("bread", "a/b\\c: \u202e<i>"):
        chats.send(OWNER["owner"], "", text, Settings())
        engine.answer("flour & water")
    return chats


def export(chats: Chats, asked: Any, browser: Any = OWNER) -> tuple[str, dict[str, Any]]:
    return asyncio.run(Exchange(chats).export(asked, browser, REQUEST))


def take_in(chats: Chats, path: Any, browser: Any = OWNER) -> tuple[str, dict[str, Any]]:
    return asyncio.run(Exchange(chats).take_in(path, browser, REQUEST))


def named(chats: Chats, title: str) -> str:
    return next(entry.id for entry in chats.listing(OWNER["owner"]) if entry.title == title)


def test_everything_goes_out_and_comes_in_for_somebody_else(chats: Chats, tmp_path: Path) -> None:
    problem, note = export(chats, {"op": "all"})
    assert (problem, note["file"]["name"]) == ("", "conversations.json")
    file = tmp_path / "conversations.json"
    file.write_text(note["file"]["text"], "utf-8")
    assert take_in(chats, str(file), STRANGER)[1]["toast"] == "2 conversations imported"
    assert not file.exists()
    titles = [sorted(entry.title for entry in chats.listing(owner["owner"])) for owner in (OWNER, STRANGER)]
    assert titles[0] == titles[1]


def test_one_goes_out_under_its_title(chats: Chats) -> None:
    bread = named(chats, "bread")
    markdown = export(chats, {"op": "markdown", "id": bread})[1]["file"]
    assert (markdown["name"], markdown["type"]) == ("bread.md", "text/markdown")
    assert "flour & water" in markdown["text"]
    assert export(chats, {"op": "copy", "id": bread})[1]["copy"] == markdown["text"]
    one = export(chats, {"op": "json", "id": bread})[1]["file"]
    assert one["name"] == "bread.json"
    assert len(json.loads(one["text"])["conversations"]) == 1


def test_a_title_makes_no_path(chats: Chats) -> None:
    odd = next(entry.id for entry in chats.listing(OWNER["owner"]) if entry.title != "bread")
    name = export(chats, {"op": "markdown", "id": odd})[1]["file"]["name"]
    assert not set(name) & set("/\\\u202e")


@pytest.mark.parametrize("op", ["json", "markdown", "copy"])
def test_what_is_somebody_elses_does_not_go_out(chats: Chats, op: str) -> None:
    problem, note = export(chats, {"op": op, "id": named(chats, "bread")}, STRANGER)
    assert "no longer here" in problem
    assert not {"file", "copy"} & set(note)
    assert json.loads(export(chats, {"op": "all"}, STRANGER)[1]["file"]["text"])["conversations"] == []


@pytest.mark.parametrize("data", [b"\xff\xfe\xff", b"{", b"[]]", b'{"a": 1}', b""])
def test_what_is_no_export_is_refused_in_words_and_deleted(chats: Chats, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "odd.json"
    file.write_bytes(data)
    assert 'role="alert"' in take_in(chats, str(file))[0]
    assert not file.exists()
    assert len(chats.listing(OWNER["owner"])) == 2


@pytest.mark.parametrize("asked", [None, 7, {"op": "drop table"}])
def test_what_no_page_asks_for_gets_nothing(chats: Chats, asked: Any) -> None:
    problem, note = export(chats, asked)
    assert problem == ""
    assert not {"file", "copy"} & set(note)
    assert take_in(chats, None)[0] == ""
