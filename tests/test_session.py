"""The page's handlers, called as Gradio calls them, by browsers that behave and by clients that do not."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.chats import Chats
from streaming.ui import session as sessions
from streaming.ui.followers import Followers
from streaming.ui.session import Session
from streaming.ui.settings import SAMPLING_FIELDS
from tests.puppet import Puppet

DRAWER = ("", *[""] * len(SAMPLING_FIELDS), "", True)


def tab(name: str = "tab", username: str | None = None) -> Any:
    return SimpleNamespace(session_hash=name, username=username)


@pytest.fixture
def engine() -> Puppet:
    return Puppet()


@pytest.fixture
def session(engine: Puppet) -> Session:
    return Session(Chats(engine), engine)


def opened(session: Session, request: Any) -> dict[str, str]:
    """What the browser keeps after it has opened the page for the first time."""
    kept: dict[str, str] = session.load({}, request)["browser"]
    return kept


def sent(session: Session, text: str, kept: dict[str, str], request: Any) -> dict[str, Any]:
    return asyncio.run(session.send(text, kept, DRAWER, request))


def test_a_message_goes_its_way(session: Session, engine: Puppet) -> None:
    async def chat() -> None:
        request = tab()
        kept = opened(session, request)
        update = await session.send("hi", kept, DRAWER, request)
        kept = update["browser"]
        assert update["composer"] == ""
        assert update["live"][0]["content"][0]["text"] == "hi"
        watching = session.watch(kept, request)
        await anext(watching)
        engine.answer("hello")
        live, _ = await anext(watching)
        assert live[-1]["content"][0]["text"] == "hello"
        with pytest.raises(StopAsyncIteration):
            await anext(watching)
        rest = session.rest(kept, request)
        assert [turn["content"][0]["text"] for turn in rest["history"]] == ["hi", "hello"]
        assert rest["live"] == []
        assert session.rest(kept, request) == {}

    asyncio.run(chat())


def test_a_late_event_does_not_bring_back_an_old_chat(session: Session, engine: Puppet) -> None:
    """Seen here: a watch that had been asked for before "New chat" arrived after it, and wrote into the new page."""

    async def chat() -> None:
        request = tab()
        kept = (await session.send("hi", opened(session, request), DRAWER, request))["browser"]
        await session.new(kept, request)
        late = [update async for update in session.watch(kept, request)]
        assert len(late) == 1
        assert late[0][0] == {"__type__": "update"}
        engine.answer("hello")
        assert session.rest(kept, request) == {}

    asyncio.run(chat())


def test_a_new_chat_ends_the_view_and_not_the_answer(session: Session, engine: Puppet) -> None:
    async def chat() -> None:
        request = tab()
        kept = (await session.send("hi", opened(session, request), DRAWER, request))["browser"]
        seen: list[Any] = []

        async def watch() -> None:
            async for update in session.watch(kept, request):
                seen.append(update)  # noqa: PERF401 - what came before the end counts as well

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.05)
        await session.new(kept, request)
        assert watching.done() or await asyncio.wait_for(watching, 1) is None
        assert not engine.generations[-1].cancelled
        assert seen

    asyncio.run(chat())


@pytest.mark.parametrize("kept", [None, 7, "x", [], {"owner": None}, {"owner": "short"}, {"owner": "o" * 65}])
def test_a_browser_that_brings_nothing_usable_is_a_new_visitor(session: Session, kept: Any) -> None:
    owner = session.load(kept, tab())["browser"]["owner"]
    assert len(owner) == 32


def test_nobody_becomes_a_user_by_saying_so(session: Session) -> None:
    forged = session.load({"owner": "user:somebody-else"}, tab())["browser"]["owner"]
    assert not forged.startswith("user:")
    assert session.load({"owner": "x" * 20}, tab(username="ann"))["browser"]["owner"] == "user:ann"


def test_somebody_elses_conversation_is_not_shown(session: Session, engine: Puppet) -> None:
    kept = sent(session, "secret", opened(session, tab()), tab())["browser"]
    engine.answer("told")
    thief = opened(session, tab("other")) | {"conversation": kept["conversation"]}
    assert session.load(thief, tab("other"))["history"] == []
    refused = sent(session, "what was it?", thief, tab("other"))
    assert "no longer here" in refused["problem"]
    assert session.stop(thief, tab("other")) is None


@pytest.mark.parametrize("action", [None, 7, "x", [], {}, {"op": "drop table"}, {"op": "edit", "id": [], "text": None}])
def test_an_action_that_no_page_sends_does_nothing_bad(session: Session, engine: Puppet, action: Any) -> None:
    update = asyncio.run(session.act(action, opened(session, tab()), DRAWER, tab()))
    assert "problem" in update
    assert engine.asked == []


@pytest.mark.parametrize("text", ["", "  ", None, 7, ["a"]])
def test_nothing_is_not_sent(session: Session, engine: Puppet, text: Any) -> None:
    assert sent(session, text, opened(session, tab()), tab()) == {"problem": ""}
    assert engine.asked == []


def test_tabs_are_forgotten(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_TABS", 3)
    for name in "abcde":
        opened(session, tab(name))
    assert set(session._showing) == set("cde")
    session.leave(tab("d"))
    assert set(session._showing) == set("ce")


def test_the_newest_follower_of_a_tab_begins_when_the_older_one_has_ended() -> None:
    async def follow() -> None:
        followers, order = Followers(), []

        async def one(name: str, hold: asyncio.Event) -> None:
            async with followers.follow("tab") as wanted:
                order.append(f"{name} begins")
                while wanted() and not hold.is_set():
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
