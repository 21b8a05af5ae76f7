"""Everybody's conversations: what belongs to somebody else does not exist, and a refused message changes nothing."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streaming.attachments import Attachment
from streaming.chats import Chats
from streaming.conversation import Settings
from streaming.engines.base import Status
from streaming.errors import ConversationBusy, EngineBusy, GenerationFailed, InvalidRequest, NotFound
from streaming.events import Event, Finished, FinishReason, ReasoningDelta, TextDelta, Timings, Usage
from streaming.store import Store
from tests.puppet import Puppet


@pytest.fixture
def engine() -> Puppet:
    return Puppet()


@pytest.fixture(params=["in memory", "on the disk", "on the disk, and hardly any in memory"])
def chats(
    request: pytest.FixtureRequest, engine: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Chats]:
    """Whether there is a disk, and what of it is in memory, makes no difference to anybody."""
    if request.param == "in memory":
        yield Chats(engine)
        return
    if "hardly" in request.param:
        monkeypatch.setattr("streaming.shelf.MOST_IN_MEMORY", 1)
    store = Store(tmp_path)
    yield Chats(engine, store)
    assert store.unsaved == ""
    store.close()


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


def test_without_a_disk_the_longest_unused_are_forgotten(engine: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = Chats(engine)
    monkeypatch.setattr("streaming.shelf.MOST_WITHOUT_STORE", 2)
    ids = []
    for text in "abc":
        ids.append(chats.send("ann", "", text, Settings()).conversation_id)
        engine.answer(text.upper())
    with pytest.raises(NotFound):
        chats.snapshot("ann", ids[0])
    assert texts(chats, "ann", ids[2]) == ["c", "C"]


def talked(chats: Chats, engine: Puppet, owner: str, *texts: str) -> str:
    """A conversation in which each text was answered by the same in capitals. Its id."""
    chat = ""
    for text in texts:
        chat = chats.send(owner, chat, text, Settings()).conversation_id
        engine.answer(text.upper())
    return chat


# -- versions


def test_a_message_from_a_stale_tab_becomes_a_version_and_overwrites_nothing(chats: Chats, engine: Puppet) -> None:
    """Reported: two tabs on one conversation, and the one that sent last wiped out what the other had said."""
    chat = talked(chats, engine, "ann", "a")
    seen_by_both = chats.snapshot("ann", chat).nodes[-1].id
    chats.send("ann", chat, "from one", Settings(), after=seen_by_both)
    engine.answer("ONE")
    other = chats.send("ann", chat, "from two", Settings(), after=seen_by_both)
    engine.answer("TWO")
    assert texts(chats, "ann", chat) == ["a", "A", "from two", "TWO"]
    assert other.versions == {other.nodes[2].id: (2, 2)}
    chats.go_to("ann", chat, other.nodes[2].id, -1)
    assert texts(chats, "ann", chat) == ["a", "A", "from one", "ONE"]
    assert [message.content for message in engine.asked[-1]] == ["a", "A", "from two"]


def test_a_message_after_one_that_is_gone_is_refused(chats: Chats, engine: Puppet) -> None:
    chat = talked(chats, engine, "ann", "a")
    last = chats.snapshot("ann", chat).nodes[-1].id
    chats.delete_message("ann", chat, last)
    with pytest.raises(NotFound, match="Reload"):
        chats.send("ann", chat, "b", Settings(), after=last)
    assert texts(chats, "ann", chat) == ["a"]


def test_an_answer_is_kept_as_that_of_the_model_which_gave_it(chats: Chats, engine: Puppet) -> None:
    """While it waited, the one that was to answer could not be loaded, and the one before came back."""
    engine.state = Status("loading", "new")
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    assert chats.snapshot("ann", chat).nodes[-1].model == "new"
    engine.say("A")
    engine.generations[-1].emit(Finished("length", model="old"))
    kept = chats.snapshot("ann", chat)
    assert (kept.nodes[-1].model, kept.model) == ("old", "old")
    chats.continue_answer("ann", chat, kept.nodes[-1].id, Settings())
    engine.generations[-1].emit(Finished("cancelled"))  # it never began
    assert chats.snapshot("ann", chat).nodes[-1].model == "new"


def test_an_answer_of_ones_own_stands_beside_the_model_s(chats: Chats, engine: Puppet) -> None:
    chat = talked(chats, engine, "ann", "a")
    answer = chats.snapshot("ann", chat).nodes[-1]
    assert answer.model == "puppet"
    edited = chats.edit_answer("ann", chat, answer.id, "my own").nodes[-1]
    assert (edited.message.content, edited.model) == ("my own", "")
    with pytest.raises(InvalidRequest, match="empty"):
        chats.edit_answer("ann", chat, answer.id, " ")
    chats.send("ann", chat, "b", Settings())
    assert [message.content for message in engine.asked[-1]] == ["a", "my own", "b"]


def test_a_fork_is_a_conversation_of_its_own(chats: Chats, engine: Puppet) -> None:
    chat = talked(chats, engine, "ann", "a", "b")
    fork = chats.fork("ann", chat, chats.snapshot("ann", chat).nodes[1].id)
    chats.send("ann", fork.conversation_id, "c", Settings())
    with pytest.raises(ConversationBusy):
        chats.fork("ann", fork.conversation_id, chats.snapshot("ann", fork.conversation_id).nodes[-1].id)
    engine.answer("C")
    assert texts(chats, "ann", fork.conversation_id) == ["a", "A", "c", "C"]
    assert texts(chats, "ann", chat) == ["a", "A", "b", "B"]


def test_files_go_along_with_a_message_and_stay_with_its_edits(chats: Chats, engine: Puppet) -> None:
    notes = Attachment("notes.txt", "text/plain", "High tide at noon.")
    sent = chats.send("ann", "", "", Settings(), attachments=(notes,))
    engine.answer("Yes")
    edited = chats.edit("ann", sent.conversation_id, sent.nodes[0].id, "When?", Settings())
    assert [asked[0].content.count("High tide at noon.") for asked in engine.asked] == [1, 1]
    assert engine.asked[1][0].content.endswith("When?")
    assert (edited.nodes[0].message.content, edited.nodes[0].attachments) == ("When?", (notes,))
    with pytest.raises(InvalidRequest, match="files"):
        chats.send("ann", "", "x", Settings(), attachments=(notes,) * 9)


# -- going on


def cut(engine: Puppet, text: str, tokens: int = 1, reason: FinishReason = "length") -> None:
    engine.generations[-1].emit(TextDelta(text, 1, 1, guessed=3))
    usage, timings = Usage(10, 3, tokens, 0, 4, 1), Timings(1.0, 2.0, 5.0)
    engine.generations[-1].emit(Finished(reason, usage, timings))


def test_an_answer_that_was_cut_goes_on_in_its_place(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings("Be brief.")).conversation_id
    cut(engine, "one two", tokens=2)
    answer = chats.snapshot("ann", chat).nodes[-1]
    assert answer.state == "cut"
    going = chats.continue_answer("ann", chat, answer.id, Settings("Be brief."))
    assert [message.content for message in engine.asked[-1]] == ["Be brief.", "a", "one two"]
    assert engine.continued == [False, True]
    assert going.run is not None
    assert going.run.view().text == "one two"
    with pytest.raises(ConversationBusy):
        chats.continue_answer("ann", chat, answer.id, Settings())
    cut(engine, ", three", tokens=1, reason="stop")
    (question, whole) = chats.snapshot("ann", chat).nodes
    assert (whole.id, whole.message.content, whole.state) == (answer.id, "one two, three", "complete")
    assert whole.finished is not None
    usage = whole.finished.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (10, 3)
    assert (usage.proposed_tokens, usage.accepted_tokens) == (8, 2)
    assert whole.guessed == ((0, 3), (7, 10)), "of both parts"
    assert chats.snapshot("ann", chat).versions == {}
    with pytest.raises(InvalidRequest, match="complete"):
        chats.continue_answer("ann", chat, answer.id, Settings())
    with pytest.raises(InvalidRequest, match="not an answer"):
        chats.continue_answer("ann", chat, question.id, Settings())


def test_an_answer_that_stopped_in_its_thought_goes_on_thinking(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.generations[-1].emit(ReasoningDelta("Let me ", 1))
    chats.stop("ann", chat)
    answer = chats.snapshot("ann", chat).nodes[-1]
    run = chats.continue_answer("ann", chat, answer.id, Settings()).run
    assert engine.asked[-1][-1].reasoning == "Let me "
    engine.generations[-1].emit(ReasoningDelta("think.", 1))
    engine.answer("So.")
    message = chats.snapshot("ann", chat).nodes[-1].message
    assert (message.reasoning, message.content) == ("Let me think.", "So.")
    assert run is not None

    async def tail() -> list[Event]:
        return [event async for _, event in run.tail()]

    told = asyncio.run(tail())
    assert told[:3] == [ReasoningDelta("Let me "), ReasoningDelta("think."), TextDelta("So.")]


def test_an_answer_without_a_word_begins(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    chats.stop("ann", chat)
    answer = chats.snapshot("ann", chat).nodes[-1]
    chats.continue_answer("ann", chat, answer.id, Settings())
    assert engine.continued == [False, False]
    assert [message.content for message in engine.asked[-1]] == ["a"]
    engine.answer("A")
    assert [(node.id, node.message.content) for node in chats.snapshot("ann", chat).nodes][1:] == [(answer.id, "A")]


def test_what_a_person_wrote_for_the_model_goes_on(chats: Chats, engine: Puppet) -> None:
    chat = talked(chats, engine, "ann", "a")
    edited = chats.edit_answer("ann", chat, chats.snapshot("ann", chat).nodes[-1].id, "Once upon").nodes[-1]
    chats.continue_answer("ann", chat, edited.id, Settings())
    engine.answer(" a time")
    assert texts(chats, "ann", chat) == ["a", "Once upon a time"]


def test_an_answer_that_cannot_go_on_is_as_it_was(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    cut(engine, "half")
    answer = chats.snapshot("ann", chat).nodes[-1]
    engine.refusal = InvalidRequest("This model's template cannot do that.")
    with pytest.raises(InvalidRequest, match="template"):
        chats.continue_answer("ann", chat, answer.id, Settings())
    assert chats.snapshot("ann", chat).nodes[-1] == answer
    engine.refusal = None
    chats.continue_answer("ann", chat, answer.id, Settings())
    engine.generations[-1].fail(GenerationFailed("out of memory"))
    failed = chats.snapshot("ann", chat).nodes[-1]
    assert (failed.message.content, failed.state, failed.error) == ("half", "failed", "out of memory")
    assert failed.can_go_on


# -- the list


def listed(chats: Chats, owner: str, query: str = "") -> list[str]:
    return [entry.title for entry in chats.listing(owner, query)]


def test_pinned_ones_come_first_then_the_newest(chats: Chats, engine: Puppet) -> None:
    first, second, third = (talked(chats, engine, "ann", text) for text in ("one", "two", "three"))
    assert listed(chats, "ann") == ["three", "two", "one"]
    chats.pin("ann", first, True)
    chats.send("ann", second, "again", Settings())
    assert [(entry.id, entry.pinned, entry.running) for entry in chats.listing("ann")] == [
        (first, True, False),
        (second, False, True),
        (third, False, False),
    ]
    chats.pin("ann", first, False)
    assert [entry.id for entry in chats.listing("ann", limit=2)] == [second, third]


def test_a_given_title_and_the_bin(chats: Chats, engine: Puppet) -> None:
    chat = talked(chats, engine, "ann", "one")
    chats.rename("ann", chat, "My  chat")
    assert listed(chats, "ann") == [chats.snapshot("ann", chat).title] == ["My chat"]
    chats.delete("ann", chat)
    assert listed(chats, "ann") == []
    for act in (lambda: chats.snapshot("ann", chat), lambda: chats.send("ann", chat, "b", Settings())):
        with pytest.raises(NotFound):
            act()
    chats.restore("ann", chat)
    assert texts(chats, "ann", chat) == ["one", "ONE"]


def test_deleting_a_conversation_stops_what_is_written_in_it(chats: Chats, engine: Puppet) -> None:
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.say("half")
    chats.delete("ann", chat)
    assert engine.generations[-1].cancelled
    chats.restore("ann", chat)
    answer = chats.snapshot("ann", chat).nodes[-1]
    assert (answer.message.content, answer.state) == ("half", "stopped")


def test_a_query_finds_titles_and_messages_and_says_where(chats: Chats, engine: Puppet) -> None:
    chat = talked(chats, engine, "ann", "The tides of the sea", "and the moon?")
    talked(chats, engine, "ann", "something else")
    (entry,) = chats.listing("ann", "MOON")
    assert entry.id == chat
    assert entry.hit == ("AND THE ", "MOON", "?")
    assert entry.hit_node == chats.snapshot("ann", chat).nodes[-1].id
    (entry,) = chats.listing("ann", "tide")
    assert (entry.hit, entry.hit_node) == (("The ", "tide", "s of the sea"), None)
    assert chats.listing("ann", "tide moon") == ()
    assert chats.listing("bob", "moon") == ()


def test_the_version_of_a_list_grows_with_each_change_of_it(chats: Chats, engine: Puppet) -> None:
    seen = [chats.version("ann")]
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    seen.append(chats.version("ann"))
    engine.answer("A")
    seen.append(chats.version("ann"))
    for change in (
        lambda: chats.rename("ann", chat, "x"),
        lambda: chats.pin("ann", chat, True),
        lambda: chats.undo("ann", chat),
        lambda: chats.delete("ann", chat),
        lambda: chats.restore("ann", chat),
        lambda: chats.add("ann", chats.export("ann", chat)),
    ):
        change()
        seen.append(chats.version("ann"))
    assert seen == sorted(set(seen))
    assert chats.version("bob") == 0


def test_who_waits_for_a_change_is_told(chats: Chats, engine: Puppet) -> None:
    async def wait() -> None:
        waiting = asyncio.create_task(chats.changed("ann", chats.version("ann")))
        await asyncio.sleep(0)
        await asyncio.to_thread(talked, chats, engine, "ann", "a")
        await asyncio.wait_for(waiting, 10)

    asyncio.run(wait())


# -- in and out


def test_what_is_exported_can_be_taken_in_and_is_apart(chats: Chats, engine: Puppet) -> None:
    chat = talked(chats, engine, "ann", "a", "b")
    copy = chats.export("ann", chat)
    copy.ask(None, "changed")
    assert texts(chats, "ann", chat) == ["a", "A", "b", "B"]
    taken = chats.add("bob", copy)
    assert taken != chat
    assert chats.snapshot("bob", taken).owner == "bob"
    chats.delete("ann", chat)
    talked(chats, engine, "ann", "c")
    assert [conversation.title for conversation in chats.export_all("ann")] == ["c"]


# -- limits and strangers


def test_the_answers_of_one_owner_at_a_time_are_bounded(engine: Puppet) -> None:
    chats = Chats(engine, most_runs=2)
    first = chats.send("ann", "", "a", Settings()).conversation_id
    chats.send("ann", "", "b", Settings())
    with pytest.raises(EngineBusy, match="2 of your answers"):
        chats.send("ann", "", "c", Settings())
    assert len(engine.asked) == 2
    chats.send("bob", "", "c", Settings())
    engine.generations[0].emit(Finished("stop"))
    chats.send("ann", first, "d", Settings())
    assert texts(chats, "ann", first) == ["a", "", "d", ""]


def test_every_call_that_names_a_conversation_is_for_its_owner_alone(chats: Chats, engine: Puppet) -> None:
    """Each method is tried by somebody else who knows all the ids; one that is new has to be added here."""
    chat = talked(chats, engine, "ann", "secret", "more")
    question, answer = (node.id for node in chats.snapshot("ann", chat).nodes[-2:])
    before = [(node.id, node.message) for node in chats.snapshot("ann", chat).nodes]
    chats.delete("ann", chats.fork("ann", chat, answer).conversation_id)
    attempts: dict[str, Callable[[], object]] = {
        "snapshot": lambda: chats.snapshot("bob", chat),
        "send": lambda: chats.send("bob", chat, "hi", Settings()),
        "edit": lambda: chats.edit("bob", chat, question, "hi", Settings()),
        "retry": lambda: chats.retry("bob", chat, answer, Settings()),
        "continue_answer": lambda: chats.continue_answer("bob", chat, answer, Settings()),
        "edit_answer": lambda: chats.edit_answer("bob", chat, answer, "hi"),
        "go_to": lambda: chats.go_to("bob", chat, answer, 0),
        "delete_message": lambda: chats.delete_message("bob", chat, answer),
        "undo": lambda: chats.undo("bob", chat),
        "fork": lambda: chats.fork("bob", chat, answer),
        "stop": lambda: chats.stop("bob", chat),
        "rename": lambda: chats.rename("bob", chat, "mine"),
        "pin": lambda: chats.pin("bob", chat, True),
        "delete": lambda: chats.delete("bob", chat),
        "restore": lambda: chats.restore("bob", chat),
        "export": lambda: chats.export("bob", chat),
    }
    about_owners = {"listing", "export_all", "version", "changed", "add"}
    assert set(attempts) | about_owners == {name for name in vars(Chats) if not name.startswith("_")}
    for name, attempt in attempts.items():
        with pytest.raises(NotFound):
            pytest.fail(f"{name} gave {attempt()}")
    assert chats.listing("bob") == chats.listing("bob", "secret") == ()
    assert list(chats.export_all("bob")) == []
    assert [(node.id, node.message) for node in chats.snapshot("ann", chat).nodes] == before
    assert listed(chats, "ann") == ["secret"]


def test_a_message_of_another_conversation_is_not_in_this_one(chats: Chats, engine: Puppet) -> None:
    """Else one's own conversation would be a way to somebody else's messages."""
    secret = chats.snapshot("ann", talked(chats, engine, "ann", "secret")).nodes[-1].id
    chat = talked(chats, engine, "bob", "b")
    for act in (
        lambda: chats.send("bob", chat, "x", Settings(), after=secret),
        lambda: chats.retry("bob", chat, secret, Settings()),
        lambda: chats.edit_answer("bob", chat, secret, "x"),
        lambda: chats.go_to("bob", chat, secret, 0),
        lambda: chats.delete_message("bob", chat, secret),
        lambda: chats.fork("bob", chat, secret),
    ):
        with pytest.raises(NotFound):
            act()
    assert texts(chats, "bob", chat) == ["b", "B"]
