"""Everybody's conversations: what belongs to somebody else does not exist, and a refused message changes nothing."""

import threading

import pytest

from streaming.chats import Chats
from streaming.conversation import Settings
from streaming.errors import ConversationBusy, GenerationFailed, InvalidRequest, NotFound
from streaming.events import TextDelta
from tests.puppet import Puppet


@pytest.fixture
def engine() -> Puppet:
    return Puppet()


@pytest.fixture
def chats(engine: Puppet) -> Chats:
    return Chats(engine)


def texts(chats: Chats, owner: str, conversation_id: str) -> list[str]:
    return [node.message.content for node in chats.snapshot(owner, conversation_id).nodes]


def test_a_conversation_goes_on(chats: Chats, engine: Puppet) -> None:
    first = chats.send("ann", "", "a", Settings("Be brief."))
    assert first.run is not None
    engine.answer("A")
    chats.send("ann", first.conversation_id, "b", Settings("Be brief."))
    engine.answer("B")
    assert texts(chats, "ann", first.conversation_id) == ["a", "A", "b", "B"]
    assert [message.content for message in engine.asked[1]] == ["Be brief.", "a", "A", "b"]
    assert chats.snapshot("ann", first.conversation_id).run is None


def test_edit_retry_and_undo_change_exactly_what_they_name(chats: Chats, engine: Puppet) -> None:
    """Rows that are wrong in many chat apps (gradio 10320, 10823): the wrong message changes, or one is doubled."""
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.answer("A")
    chats.send("ann", chat, "b", Settings())
    engine.answer("B")
    chats.retry("ann", chat, chats.snapshot("ann", chat).nodes[-1].id, Settings())
    engine.answer("B2")
    assert texts(chats, "ann", chat) == ["a", "A", "b", "B2"]
    assert [message.content for message in engine.asked[-1]] == ["a", "A", "b"]
    chats.edit("ann", chat, chats.snapshot("ann", chat).nodes[0].id, "a2", Settings())
    engine.answer("A2")
    assert texts(chats, "ann", chat) == ["a2", "A2"]
    assert chats.undo("ann", chat) == "a2"
    assert texts(chats, "ann", chat) == []


def test_a_refused_message_changes_nothing(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.answer("A")
    engine.refusal = InvalidRequest("too long", "messages")
    with pytest.raises(InvalidRequest, match="too long"):
        chats.send("ann", chat, "b" * 100, Settings("new"))
    engine.refusal = None
    assert texts(chats, "ann", chat) == ["a", "A"]
    assert chats.snapshot("ann", chat).settings == Settings()
    chats.send("ann", chat, "b", Settings())
    engine.answer("B")
    assert texts(chats, "ann", chat) == ["a", "A", "b", "B"]


@pytest.mark.parametrize("text", ["", "  \n "])
def test_nothing_is_not_sent(chats: Chats, engine: Puppet, text: str) -> None:
    with pytest.raises(InvalidRequest):
        chats.send("ann", "", text, Settings())
    assert engine.asked == []


def test_one_answer_at_a_time_in_a_conversation_and_many_beside_it(chats: Chats) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    for act in (
        lambda: chats.send("ann", chat, "b", Settings()),
        lambda: chats.undo("ann", chat),
        lambda: chats.edit("ann", chat, chats.snapshot("ann", chat).nodes[0].id, "x", Settings()),
    ):
        with pytest.raises(ConversationBusy):
            act()
    other = chats.send("ann", "", "elsewhere", Settings()).conversation_id
    assert other != chat
    assert texts(chats, "ann", chat) == ["a", ""]


def test_what_belongs_to_somebody_else_does_not_exist(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "secret", Settings()).conversation_id
    engine.answer("A")
    node = chats.snapshot("ann", chat).nodes[0].id
    for act in (
        lambda: chats.snapshot("bob", chat),
        lambda: chats.send("bob", chat, "hi", Settings()),
        lambda: chats.edit("bob", chat, node, "hi", Settings()),
        lambda: chats.retry("bob", chat, node, Settings()),
        lambda: chats.undo("bob", chat),
        lambda: chats.stop("bob", chat),
    ):
        with pytest.raises(NotFound):
            act()
    assert texts(chats, "ann", chat) == ["secret", "A"]


def test_a_stopped_answer_keeps_what_was_said_and_is_marked(chats: Chats, engine: Puppet) -> None:
    """Reported of Gradio (10251): after a stop the partial answer was missing from the history."""
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.generations[-1].emit(TextDelta("half", 1))
    for _ in range(10):
        chats.stop("ann", chat)
    answer = chats.snapshot("ann", chat).nodes[-1]
    assert (answer.message.content, answer.state) == ("half", "stopped")
    chats.send("ann", chat, "go on", Settings())
    engine.answer("whole")
    assert texts(chats, "ann", chat) == ["a", "half", "go on", "whole"]


def test_an_error_is_kept_with_the_answer(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.generations[-1].emit(TextDelta("half", 1))
    engine.generations[-1].fail(GenerationFailed("out of memory"))
    answer = chats.snapshot("ann", chat).nodes[-1]
    assert (answer.message.content, answer.state, answer.error) == ("half", "failed", "out of memory")


def test_many_threads_at_once_start_one_answer(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.answer("A")
    refused: list[ConversationBusy] = []

    def send() -> None:
        try:
            chats.send("ann", chat, "b", Settings())
        except ConversationBusy as error:
            refused.append(error)

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert texts(chats, "ann", chat) == ["a", "A", "b", ""]


def test_the_longest_unused_are_forgotten_first(chats: Chats, engine: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.chats.MOST_CONVERSATIONS", 2)
    ids = []
    for text in "abc":
        ids.append(chats.send("ann", "", text, Settings()).conversation_id)
        engine.answer(text.upper())
    with pytest.raises(NotFound):
        chats.snapshot("ann", ids[0])
    assert texts(chats, "ann", ids[2]) == ["c", "C"]
