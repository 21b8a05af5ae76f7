"""The page's handlers, called as Gradio calls them, by browsers that behave and by clients that do not."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.attachments import MOST_CHARACTERS, MOST_FILES
from streaming.chats import Chats
from streaming.errors import InvalidRequest
from streaming.events import Tentative
from streaming.messages import Beam, Sampling
from streaming.ui import session as sessions
from streaming.ui.attaching import attach
from streaming.ui.followers import Followers
from streaming.ui.session import Session
from streaming.ui.settings import SAMPLING_FIELDS
from streaming.ui.side import SideList
from streaming.ui.visitors import Visitor
from tests.puppet import Puppet

NOTHING = ({"__type__": "update"}, {"__type__": "update"})
DRAWER = ("", *[""] * len(SAMPLING_FIELDS), "", True, "Plain")


def tab(
    name: str = "tab", username: str | None = None, link: str | None = None, signed: dict[str, Any] | None = None
) -> Any:
    """A request from a browser's tab; `link` is the conversation in its address bar, `signed` what the Hub's login has
    put into the session."""
    inner = SimpleNamespace(scope={"session": {"oauth_info": signed}} if signed else {})
    return SimpleNamespace(
        session_hash=name, username=username, query_params={"c": link} if link else {}, request=inner
    )


@pytest.fixture
def engine() -> Puppet:
    return Puppet()


@pytest.fixture
def session(engine: Puppet) -> Session:
    return Session(Chats(engine), engine)


def opened(session: Session, request: Any) -> dict[str, str]:
    """What the browser keeps after it has opened the page for the first time."""
    kept: dict[str, str] = load(session, {}, request)["browser"]
    return kept


def load(session: Session, kept: Any, request: Any) -> dict[str, Any]:
    return asyncio.run(session.load(kept, request))


def shown(session: Session, asked: Any, kept: Any, request: Any) -> dict[str, Any]:
    return asyncio.run(session.open(asked, kept, request))


def sent(session: Session, text: Any, kept: dict[str, str], request: Any, files: Any = None) -> dict[str, Any]:
    return asyncio.run(session.send(text, files, kept, DRAWER, request))


def test_a_login_at_the_hub_is_somebody_else_than_the_browser_until_it_expires(
    session: Session, engine: Puppet
) -> None:
    signed = {"userinfo": {"sub": "0123456789abcdef0123", "preferred_username": "ann"}, "expires_at": time.time() + 60}
    kept = sent(session, "as a browser", opened(session, tab()), tab())["browser"]
    engine.answer("yes")
    with_login = load(session, kept, tab(signed=signed))
    assert with_login["history"] == []
    assert with_login["browser"]["owner"] == kept["owner"], "for after the login"
    anns = sent(session, "as ann", with_login["browser"], tab(signed=signed))["browser"]
    engine.answer("yes")
    for late in (signed | {"expires_at": time.time() - 1}, {"userinfo": signed["userinfo"]}, {"userinfo": {}}):
        assert load(session, anns, tab(signed=late))["history"] == []
    forged = {"owner": "hub:0123456789abcdef0123", "conversation": anns["conversation"], "seen": ""}
    assert load(session, forged, tab())["history"] == []
    assert load(session, forged, tab(signed=signed))["history"] != []
    assert load(session, kept, tab())["history"] != []


def test_a_message_goes_its_way(session: Session, engine: Puppet) -> None:
    async def chat() -> None:
        request = tab()
        update = await session.send("hi", [], {}, DRAWER, request)
        kept = update["browser"]
        assert update["composer"] == ""
        assert update["live"][0]["content"][0]["text"] == "hi"
        watching = session.watch(kept, request)
        await anext(watching)
        engine.answer("hello")
        live, _ = await anext(watching)
        assert live[-1]["content"][0]["text"] == "hello"
        assert [update async for update in watching] == [NOTHING]
        rest = await session.rest(kept, request)
        assert [turn["content"][0]["text"] for turn in rest["history"]] == ["hi", "hello"]
        assert rest["live"] == []
        assert await session.rest(kept, request) == {}

    asyncio.run(chat())


def test_a_late_event_does_not_bring_back_an_old_chat(session: Session, engine: Puppet) -> None:
    """Seen here: a watch that had been asked for before "New chat" arrived after it, and wrote into the new page."""

    async def chat() -> None:
        request = tab()
        kept = (await session.send("hi", [], {}, DRAWER, request))["browser"]
        await session.open({"id": ""}, kept, request)
        late = [update async for update in session.watch(kept, request)]
        assert late == [NOTHING]
        engine.answer("hello")
        assert await session.rest(kept, request) == {}

    asyncio.run(chat())


def test_a_new_chat_ends_the_view_and_not_the_answer(session: Session, engine: Puppet) -> None:
    async def chat() -> None:
        request = tab()
        kept = (await session.send("hi", [], {}, DRAWER, request))["browser"]
        seen: list[Any] = []

        async def watch() -> None:
            async for update in session.watch(kept, request):
                seen.append(update)  # noqa: PERF401 - what came before the end counts as well

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.05)
        await session.open({"id": ""}, kept, request)
        assert watching.done() or await asyncio.wait_for(watching, 1) is None
        assert not engine.generations[-1].cancelled
        assert len(seen) > 1
        assert seen[-1] == NOTHING, "Gradio tells it again when it likes, and the page has a new chat on it"

    asyncio.run(chat())


@pytest.mark.parametrize("kept", [None, 7, "x", [], {"owner": None}, {"owner": "short"}, {"owner": "o" * 65}])
def test_a_browser_that_brings_nothing_usable_is_a_new_visitor(session: Session, kept: Any) -> None:
    owner = load(session, kept, tab())["browser"]["owner"]
    assert len(owner) == 32


def test_nobody_becomes_a_user_by_saying_so(session: Session) -> None:
    forged = load(session, {"owner": "user:somebody-else"}, tab())["browser"]["owner"]
    assert not forged.startswith("user:")
    assert Visitor.of({"owner": "x" * 20}, tab(username="ann")).owner == "user:ann"


def test_somebody_elses_conversation_is_not_shown(session: Session, engine: Puppet) -> None:
    kept = sent(session, "secret", opened(session, tab()), tab())["browser"]
    engine.answer("told")
    thief = opened(session, tab("other")) | {"conversation": kept["conversation"]}
    assert load(session, thief, tab("other"))["history"] == []
    linked = load(session, thief, tab("other", link=kept["conversation"]))
    assert (linked["history"], linked["browser"]["conversation"]) == ([], "")
    assert "not yours" in linked["problem"]
    opened_there = shown(session, {"id": kept["conversation"]}, thief, tab("other"))
    assert (opened_there["history"], opened_there["browser"]["conversation"]) == ([], "")
    assert "not yours" in opened_there["problem"]
    refused = sent(session, "what was it?", thief, tab("other"))
    assert "no longer here" in refused["problem"]
    assert session.stop(thief, tab("other")) is None


@pytest.mark.parametrize("action", [None, 7, "x", [], {}, {"op": "drop table"}, {"op": "edit", "id": [], "text": None}])
def test_an_action_that_no_page_sends_does_nothing_bad(session: Session, engine: Puppet, action: Any) -> None:
    update = asyncio.run(session.act(action, opened(session, tab()), DRAWER, tab()))
    assert "problem" in update
    assert engine.asked == []


def test_a_link_opens_ones_own_conversation_with_its_settings(session: Session, engine: Puppet) -> None:
    request = tab()
    drawer = ("Be brief.", *DRAWER[1:])
    kept = asyncio.run(session.send("hi", [], {}, drawer, request))["browser"]
    engine.answer("hello")
    shown(session, {"id": ""}, kept, request)
    update = load(session, kept | {"conversation": "", "seen": ""}, tab("new tab", link=kept["conversation"]))
    assert [turn["content"][0]["text"] for turn in update["history"]] == ["hi", "hello"]
    assert update["browser"] == kept
    assert update["drawer"][0] == "Be brief."
    assert update["tools"]["conversation"] == kept["conversation"]


def test_what_was_sent_from_a_stale_tab_overwrites_nothing(session: Session, engine: Puppet) -> None:
    """Two tabs on one conversation: the second message of the one that had not seen the other's becomes a version."""
    kept = sent(session, "first", {}, tab("one"))["browser"]
    engine.answer("1")
    assert sent(session, "from two", kept, tab("two"))["live"][0]["content"][0]["text"] == "from two"
    engine.answer("2")
    branch = sent(session, "from one", kept, tab("one"))
    engine.answer("3")
    settled = shown(session, {"id": kept["conversation"]}, branch["browser"], tab("one"))
    assert [turn["content"][0]["text"] for turn in settled["history"]] == ["first", "1", "from one", "3"]
    question = settled["tools"]["rows"][2]
    assert question["version"] == (2, 2)
    earlier = {"op": "version", "id": question["id"], "step": -1}
    back = asyncio.run(session.act(earlier, settled["browser"], DRAWER, tab("one")))
    assert [turn["content"][0]["text"] for turn in back["history"]] == ["first", "1", "from two", "2"]


def test_the_last_of_two_quick_clicks_wins(session: Session, engine: Puppet) -> None:
    """Both ask for another conversation; the slower answer must not bring back the first."""
    request = tab()
    kept = sent(session, "one", {}, request)["browser"]
    engine.answer("1")

    async def clicks() -> None:
        first = session.open({"id": kept["conversation"]}, kept, request)
        started = asyncio.create_task(first)
        await asyncio.sleep(0)
        latest = await session.open({"id": ""}, kept, request)
        assert latest["tools"]["conversation"] == ""
        assert await started == {}

    asyncio.run(clicks())


def test_every_tool_does_what_it_says(session: Session, engine: Puppet) -> None:
    request = tab()

    def act(op: str, **asked: Any) -> dict[str, Any]:
        nonlocal kept
        update = asyncio.run(session.act({"op": op} | asked, kept, DRAWER, request))
        kept = update.get("browser", kept)
        return update

    def texts(update: dict[str, Any]) -> list[str]:
        return [turn["content"][0]["text"] for turn in update["history"]]

    kept = sent(session, "hi", {}, request)["browser"]
    engine.answer("hello")
    original = kept["conversation"]
    question, answer = asyncio.run(session.rest(kept, request))["tools"]["rows"]
    edited = act("edit-answer", id=answer["id"], text="good day")
    assert texts(edited) == ["hi", "good day"]
    row = edited["tools"]["rows"][1]
    assert row["version"] == (2, 2)
    assert texts(act("version", id=row["id"], step=-1)) == ["hi", "hello"]
    forked = act("fork", id=question["id"])
    assert texts(forked) == ["hi"]
    assert forked["browser"]["conversation"] != original
    kept = kept | {"conversation": original, "seen": ""}
    assert texts(act("delete", id=question["id"])) == ["hello"]


def test_a_stopped_answer_goes_on_in_its_place_and_a_whole_one_does_not(session: Session, engine: Puppet) -> None:
    request = tab()
    kept = sent(session, "hi", {}, request)["browser"]
    engine.say("good ")
    engine.generations[-1].cancel()
    row = asyncio.run(session.rest(kept, request))["tools"]["rows"][-1]
    assert row["continues"]
    asked = {"op": "continue", "id": row["id"]}
    going_on = asyncio.run(session.act(asked, kept, DRAWER, request))
    assert [turn["content"][0]["text"] for turn in going_on["live"]] == ["hi", "good "]
    engine.answer("day")
    update = asyncio.run(session.rest(going_on["browser"], request))
    assert [turn["content"][0]["text"] for turn in update["history"]] == ["hi", "good day"]
    assert not update["tools"]["rows"][-1]["continues"]
    assert "problem" in asyncio.run(session.act(asked, update["browser"], DRAWER, request))


def test_an_answer_goes_on_by_beams(session: Session, engine: Puppet) -> None:
    """What they lean towards follows what was said before, is gone with a stop, and is never sent back."""
    request = tab()
    kept = sent(session, "hi", {}, request)["browser"]
    engine.say("good ")
    engine.generations[-1].cancel()
    row = asyncio.run(session.rest(kept, request))["tools"]["rows"][-1]
    drawer = (*DRAWER[:-1], "Beams 4")
    kept = asyncio.run(session.act({"op": "continue", "id": row["id"]}, kept, drawer, request))["browser"]
    assert engine.samplings[-1] == Sampling(strategy=Beam(4))

    async def look() -> str:
        live, _ = await anext(session.watch(kept, request))
        return str(live[-1]["content"][0]["text"])

    engine.generations[-1].emit(Tentative("day <b>"))
    assert asyncio.run(look()) == 'good <span class="tentative">day &#60;b&#62;</span>'
    engine.say("eve")
    engine.generations[-1].emit(Tentative("ning"))
    assert asyncio.run(look()) == 'good eve<span class="tentative">ning</span>'
    session.stop(kept, request)
    update = asyncio.run(session.rest(kept, request))
    assert [turn["content"][0]["text"] for turn in update["history"]] == ["hi", "good eve"]


def test_a_strategy_stays_with_its_conversation_and_a_refused_one_loses_nothing(
    session: Session, engine: Puppet
) -> None:
    request = tab()
    drawer = (*DRAWER[:-1], "Beams 2")
    kept = asyncio.run(session.send("hi", [], {}, drawer, request))["browser"]
    engine.answer("hello")
    assert load(session, kept, request)["drawer"][-1]["value"] == "Beams 2"
    engine.refusal = InvalidRequest("Only --engine local knows strategies.", "strategy")
    refused = asyncio.run(session.send("and now?", [], kept, drawer, request))
    assert "Only --engine local knows strategies." in refused["problem"]
    assert "composer" not in refused, "the text stays in its box"
    assert [turn["content"][0]["text"] for turn in refused["history"]] == ["hi", "hello"]


def test_the_side_list_follows_and_is_left(session: Session, engine: Puppet) -> None:
    chats = session._chats
    side, request = SideList(chats), tab()
    kept = sent(session, "bread", {}, request)["browser"]

    async def look() -> None:
        following = side.follow(None, kept, request)
        first = await anext(following)
        assert [(entry["title"], entry["running"]) for entry in first["entries"]] == [("bread", True)]
        waiting = asyncio.create_task(anext(following))
        await asyncio.sleep(0)
        engine.answer("flour")
        assert [entry["running"] for entry in (await waiting)["entries"]] == [False]
        found = await anext(side.follow({"text": "flour"}, kept, tab("searching")))
        assert found["entries"][0]["hit"] == ("", "flour", "")
        assert found["entries"][0]["node"] == kept["seen"]
        waiting = asyncio.create_task(anext(following, "over"))
        await asyncio.sleep(0)
        await side.leave(request.session_hash)
        assert await waiting != "over"
        assert await anext(following, "over") == "over"
        stranger = await anext(side.follow(None, {"owner": "x" * 20}, tab("stranger")))
        assert stranger["entries"] == []

    asyncio.run(look())
    assert len(side._followers) == 0


def test_the_side_list_changes_only_ones_own(session: Session, engine: Puppet) -> None:
    side, request = SideList(session._chats), tab()
    kept = sent(session, "bread", {}, request)["browser"]
    engine.answer("flour")

    def change(op: str, owner: dict[str, str], text: str = "") -> tuple[str, dict[str, Any]]:
        return asyncio.run(side.change({"op": op, "id": kept["conversation"], "text": text}, owner, request))

    def listed() -> list[tuple[str, bool]]:
        return [(entry.title, entry.pinned) for entry in session._chats.listing(kept["owner"])]

    for op in ("rename", "pin", "unpin", "delete", "restore"):
        refused, note = change(op, {"owner": "x" * 20}, "stolen")
        assert "no longer here" in refused
        assert "undo" not in note
    assert listed() == [("bread", False)]
    assert change("rename", kept, "Rye")[0] == ""
    change("pin", kept)
    assert listed() == [("Rye", True)]
    assert change("delete", kept)[1]["undo"] == kept["conversation"]
    assert listed() == []
    change("restore", kept)
    change("unpin", kept)
    assert listed() == [("Rye", False)]
    assert change("drop table", kept)[0] == ""


def test_files_go_along_and_come_back_with_undo(session: Session, engine: Puppet, tmp_path: Path) -> None:
    given = tmp_path / "notes.md"
    given.write_text("# Bread\n")
    problem, files = asyncio.run(attach([str(given)], []))
    assert (problem, [file["name"] for file in files]) == ("", ["notes.md"])
    assert not given.exists()
    update = sent(session, "what is it about?", {}, tab(), files)
    assert update["files"] == []
    assert "# Bread" in engine.asked[-1][-1].content
    assert update["live"][0]["content"][0]["text"] == "what is it about?"
    assert update["tools"]["asked"] == [{"name": "notes.md", "about": "8 characters"}]
    engine.answer("bread")
    kept = update["browser"]
    settled = asyncio.run(session.rest(kept, tab()))
    assert settled["tools"]["rows"][0]["files"] == [{"name": "notes.md", "about": "8 characters"}]
    undone = asyncio.run(session.act({"op": "undo"}, kept, DRAWER, tab()))
    assert (undone["composer"], undone["files"]) == ("what is it about?", files)


def test_a_file_that_cannot_be_read_is_named_and_the_others_stay(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.png"
    good.write_text("text")
    bad.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    problem, files = asyncio.run(attach([str(bad), str(good)], None))
    assert "bad.png" in problem
    assert [file["name"] for file in files] == ["good.txt"]
    assert not bad.exists()
    more = tmp_path / "more.txt"
    more.write_text("text")
    problem, files = asyncio.run(attach([str(more)], files * MOST_FILES))
    assert f"{MOST_FILES} files" in problem
    assert len(files) == MOST_FILES


@pytest.mark.parametrize(
    "files",
    [
        [7],
        [{"name": "a"}] * (MOST_FILES + 1),
        [{"name": "a", "media_type": "text/plain", "text": "x" * (MOST_CHARACTERS + 1)}],
        [{"name": "a", "media_type": "text/plain", "text": 7}],
        [{"name": "a", "media_type": "text/plain", "text": "x", "pages": -1}],
        [{"name": "\ud800", "media_type": "text/plain", "text": "x"}],
    ],
)
def test_files_that_no_page_sends_are_refused_in_words(session: Session, engine: Puppet, files: Any) -> None:
    refused = sent(session, "hi", {}, tab(), files)
    assert 'role="alert"' in refused["problem"]
    assert engine.asked == []
    assert "files" not in refused


@pytest.mark.parametrize("text", ["", "  ", None, 7, ["a"]])
def test_nothing_is_not_sent(session: Session, engine: Puppet, text: Any) -> None:
    assert sent(session, text, opened(session, tab()), tab()) == {"problem": ""}
    assert engine.asked == []


def test_tabs_are_forgotten(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_TABS", 3)
    for name in "abcde":
        opened(session, tab(name))
    assert set(session._showing) == set("cde")
    session.leave("d")
    assert set(session._showing) == set("ce")


def test_the_newest_follower_of_a_tab_begins_when_the_older_one_has_ended() -> None:
    async def follow() -> None:
        followers, order = Followers(), []

        async def one(name: str, hold: asyncio.Event) -> None:
            async with followers.follow("tab") as follower:
                order.append(f"{name} begins")
                while follower.wanted and not hold.is_set():
                    await asyncio.sleep(0)
                order.append(f"{name} ends")

        first = asyncio.create_task(one("first", asyncio.Event()))
        await asyncio.sleep(0)
        done = asyncio.Event()
        second = asyncio.create_task(one("second", done))
        await first
        await asyncio.sleep(0)
        done.set()
        await second
        assert order == ["first begins", "first ends", "second begins", "second ends"]
        await followers.dismiss("tab")

    asyncio.run(follow())
