"""The tree of messages: every change is a new version beside the old one."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streaming.attachments import Attachment
from streaming.conversation import Conversation, clean_title
from streaming.errors import InvalidRequest, NotFound
from streaming.events import Finished
from streaming.messages import Message

NOTES = Attachment("notes.txt", "text/plain", "High tide at noon.")


def texts(conversation: Conversation) -> list[str]:
    return [node.message.content for node in conversation.path()]


def say(conversation: Conversation, question: str, answer: str) -> tuple[str, str]:
    """One turn; the ids of its two messages."""
    asked = conversation.ask(conversation.head, question)
    answered = conversation.begin_answer(asked.id)
    conversation.finish_answer(answered.id, Message("assistant", answer), "complete", finished=Finished("stop"))
    return asked.id, answered.id


def test_turns_follow_each_other() -> None:
    conversation = Conversation("ann")
    say(conversation, "a", "A")
    say(conversation, "b", "B")
    assert texts(conversation) == ["a", "A", "b", "B"]
    assert [message.role for message in conversation.messages(conversation.head)] == ["user", "assistant"] * 2


def test_an_edit_of_the_first_of_two_messages_changes_exactly_that_one() -> None:
    """Reported of Gradio's own chat (10320, 10823): an edit hit the wrong message, or doubled one."""
    conversation = Conversation("ann")
    first, _ = say(conversation, "a", "A")
    say(conversation, "b", "B")
    before = conversation.head
    conversation.ask(conversation.user_message(first).parent, "a2")
    assert texts(conversation) == ["a2"]
    conversation.head = before
    assert texts(conversation) == ["a", "A", "b", "B"]


def test_a_retry_answers_the_same_question_beside_the_first_answer() -> None:
    conversation = Conversation("ann")
    question, answer = say(conversation, "a", "A")
    assert conversation.question_of(answer).id == question
    again = conversation.begin_answer(question)
    conversation.finish_answer(again.id, Message("assistant", "A2"), "complete")
    assert texts(conversation) == ["a", "A2"]
    assert conversation.node(answer).message.content == "A"


def test_undo_gives_the_question_back() -> None:
    conversation = Conversation("ann")
    say(conversation, "a", "A")
    say(conversation, "b", "B")
    assert conversation.undo() == "b"
    assert texts(conversation) == ["a", "A"]
    assert conversation.undo() == "a"
    assert texts(conversation) == []
    with pytest.raises(InvalidRequest):
        conversation.undo()


def test_an_answer_is_put_down_where_it_belongs_though_the_reader_has_gone_elsewhere() -> None:
    conversation = Conversation("ann")
    question = conversation.ask(None, "a")
    answer = conversation.begin_answer(question.id)
    conversation.undo()
    conversation.finish_answer(answer.id, Message("assistant", "late"), "stopped")
    assert texts(conversation) == []
    assert conversation.node(answer.id).state == "stopped"
    assert conversation.messages(answer.id)[-1].content == "late"


@pytest.mark.parametrize("operation", ["user_message", "begin_answer"])
def test_an_answer_is_not_a_question(operation: str) -> None:
    conversation = Conversation("ann")
    _, answer = say(conversation, "a", "A")
    with pytest.raises(InvalidRequest):
        getattr(conversation, operation)(answer)


def test_a_question_is_not_an_answer() -> None:
    conversation = Conversation("ann")
    question, _ = say(conversation, "a", "A")
    with pytest.raises(InvalidRequest):
        conversation.question_of(question)


def test_an_unknown_message_is_said_to_be_gone() -> None:
    with pytest.raises(NotFound, match="Reload"):
        Conversation("ann").node("nowhere")


# -- versions


def test_versions_are_counted_where_there_is_more_than_one() -> None:
    conversation = Conversation("ann")
    question, answer = say(conversation, "a", "A")
    assert conversation.versions() == {}
    again = conversation.begin_answer(question).id
    assert conversation.versions() == {again: (2, 2)}
    conversation.go_to(again, -1)
    assert texts(conversation) == ["a", "A"]
    assert conversation.versions() == {answer: (1, 2)}


def test_going_to_a_version_shows_what_was_said_last_after_it() -> None:
    conversation = Conversation("ann")
    first, _ = say(conversation, "a", "A")
    say(conversation, "b", "B")
    conversation.ask(conversation.user_message(first).parent, "a2")
    conversation.go_to(conversation.path()[0].id, -1)
    assert texts(conversation) == ["a", "A", "b", "B"]
    for step, shown in ((1, ["a2"]), (1, ["a2"]), (-9, ["a", "A", "b", "B"]), (0, ["a", "A", "b", "B"])):
        conversation.go_to(conversation.path()[0].id, step)
        assert texts(conversation) == shown


def test_an_edited_answer_stands_beside_the_model_s_and_can_go_on() -> None:
    conversation = Conversation("ann")
    _, answer = say(conversation, "a", "A")
    assert not conversation.node(answer).can_go_on
    own = conversation.edit_answer(answer, "my own")
    assert texts(conversation) == ["a", "my own"]
    assert own.model == ""
    assert conversation.unfinished(own.id) == own


def test_a_deleted_message_leaves_what_followed_it_in_all_versions() -> None:
    conversation = Conversation("ann")
    question, answer = say(conversation, "a", "A")
    say(conversation, "b", "B")
    other = conversation.begin_answer(question).id
    conversation.go_to(other, -1)
    conversation.delete_message(answer)
    assert texts(conversation) == ["a", "b", "B"]
    assert conversation.versions()  # the other answer is still there, beside what followed the deleted one
    conversation.delete_message(question)
    assert texts(conversation) == ["b", "B"]
    last = conversation.path()[-1].id
    conversation.delete_message(last)
    assert texts(conversation) == ["b"]


def test_an_unfinished_answer_goes_on_in_its_place() -> None:
    conversation = Conversation("ann")
    _, answer = say(conversation, "a", "half")
    with pytest.raises(InvalidRequest, match="complete"):
        conversation.go_on(answer)
    conversation.finish_answer(answer, Message("assistant", "half"), "cut", finished=Finished("length"))
    assert conversation.go_on(answer, "other-model").message.content == "half"
    assert conversation.node(answer).state == "running"
    assert conversation.model == "other-model"
    finished = Finished("length", model="a-third")
    conversation.finish_answer(answer, Message("assistant", "half more"), "cut", finished=finished)
    assert (conversation.node(answer).model, conversation.model) == ("a-third", "a-third")
    conversation.go_on(answer)
    with pytest.raises(InvalidRequest, match="complete"):
        conversation.go_on(answer)
    say(conversation, "b", "B")
    with pytest.raises(InvalidRequest, match="last"):
        conversation.go_on(answer)


# -- titles


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("hello", "hello"),
        ("  two\n\nlines\tand more ", "two lines and more"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("x" * 100, "x" * 60 + "…"),
        ("東" * 100, "東" * 60 + "…"),
        ("\u202egnp.exe\x00\x1b[31m", "gnp.exe[31m"),
        ("👩\u200d💻 codes", "👩\u200d💻 codes"),
    ],
)
def test_a_conversation_is_called_by_its_first_words(text: str, title: str) -> None:
    conversation = Conversation("ann")
    conversation.ask(None, text)
    assert conversation.title == title


def test_files_without_a_word_give_a_conversation_their_names() -> None:
    conversation = Conversation("ann")
    conversation.ask(None, " ", (NOTES, Attachment("plan.md", "text/markdown", "# Plan")))
    assert conversation.title == "notes.txt, plan.md"


def test_an_engine_reads_the_files_of_a_message_and_the_person_only_the_message() -> None:
    conversation = Conversation("ann")
    conversation.ask(None, "What is it?", (NOTES,))
    (read,) = conversation.messages(conversation.head)
    assert "High tide" in read.content
    assert read.content.endswith("What is it?")
    assert texts(conversation) == ["What is it?"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("0 \x01")
@example("x" * 199 + " y")
def test_a_title_that_is_clean_stays_as_it_is(text: str) -> None:
    """An export would otherwise come back under another name."""
    assert clean_title(clean_title(text)) == clean_title(text)


def test_a_given_title_stays_until_it_is_taken_away() -> None:
    conversation = Conversation("ann")
    assert conversation.title == ""
    say(conversation, "a", "A")
    conversation.rename(" My\nchat ")
    conversation.ask(None, "a2")
    assert conversation.title == "My chat"
    conversation.rename(" ")
    assert conversation.title == "a2"
    conversation.rename("x" * 1000)
    assert len(conversation.title) == 200
    with pytest.raises(InvalidRequest, match="half a character"):
        conversation.rename("\ud800")


# -- copies


def test_a_copy_is_apart() -> None:
    conversation = Conversation("ann")
    say(conversation, "a", "A")
    twin = conversation.copy()
    say(twin, "b", "B")
    assert texts(conversation) == ["a", "A"]
    assert (twin.id, twin.owner) == (conversation.id, "ann")


def test_a_fork_has_the_path_up_to_a_message_under_ids_of_its_own() -> None:
    conversation = Conversation("ann")
    question, answer = say(conversation, "a", "A")
    say(conversation, "b", "B")
    conversation.edit_answer(answer, "A2")
    fork = conversation.renewed("ann", answer)
    assert texts(fork) == ["a", "A"]
    assert not {node.id for node in fork.nodes} & {node.id for node in conversation.nodes}
    assert fork.id != conversation.id
    assert conversation.node(question).message.content == "a"


def test_messages_that_form_no_tree_are_refused() -> None:
    conversation = Conversation("ann")
    question, answer = say(conversation, "a", "A")
    nodes = [conversation.node(answer), conversation.node(question)]
    for broken, head in ((nodes, answer), (nodes[:1], answer), (nodes[1:], "nowhere"), ([*nodes[1:], nodes[1]], None)):
        with pytest.raises(InvalidRequest):
            Conversation("ann").rebuilt(broken, head)


# -- all of it, in any order


class AnyOrder(RuleBasedStateMachine):
    """Random operations, beside a model that is a list of (id, parent, role, text)."""

    @initialize()
    def begin(self) -> None:
        self.conversation = Conversation("ann")
        self.rows: list[tuple[str, str | None, str, str]] = []

    def pick(self, data: st.DataObject, *roles: str) -> str | None:
        ids = [row[0] for row in self.rows if not roles or row[2] in roles]
        return data.draw(st.sampled_from(ids)) if ids else None

    def path(self) -> list[str]:
        parents, shown, at = {row[0]: row[1] for row in self.rows}, [], self.conversation.head
        while at is not None:
            shown.append(at)
            at = parents[at]
        return shown[::-1]

    @rule(data=st.data(), text=st.text(max_size=5))
    def ask(self, data: st.DataObject, text: str) -> None:
        parent = data.draw(st.sampled_from([None, self.conversation.head, *(row[0] for row in self.rows)]))
        self.rows.append((self.conversation.ask(parent, text).id, parent, "user", text))

    @rule(data=st.data(), text=st.text(max_size=5))
    def answer(self, data: st.DataObject, text: str) -> None:
        question = self.pick(data, "user")
        if question is not None:
            node = self.conversation.begin_answer(question)
            self.conversation.finish_answer(node.id, Message("assistant", text), "cut")
            self.rows.append((node.id, question, "assistant", text))

    @rule(data=st.data(), text=st.text(max_size=5))
    def edit_answer(self, data: st.DataObject, text: str) -> None:
        answer = self.pick(data, "assistant")
        if answer is not None:
            parent = next(row[1] for row in self.rows if row[0] == answer)
            self.rows.append((self.conversation.edit_answer(answer, text).id, parent, "assistant", text))

    @rule(data=st.data(), step=st.integers(-3, 3))
    def go_to(self, data: st.DataObject, step: int) -> None:
        node = self.pick(data)
        if node is not None:
            parent = next(row[1] for row in self.rows if row[0] == node)
            group = [row[0] for row in self.rows if row[1] == parent]
            wanted = group[max(0, min(group.index(node) + step, len(group) - 1))]
            self.conversation.go_to(node, step)
            assert wanted in self.path()
            assert not [row for row in self.rows if row[1] == self.conversation.head]

    @rule(data=st.data())
    def delete_message(self, data: st.DataObject) -> None:
        node = self.pick(data)
        if node is not None:
            shown = [one for one in self.path() if one != node]
            parent = next(row[1] for row in self.rows if row[0] == node)
            self.conversation.delete_message(node)
            self.rows = [
                (row[0], parent if row[1] == node else row[1], row[2], row[3]) for row in self.rows if row[0] != node
            ]
            assert self.path() == shown

    @precondition(lambda self: any(node.message.role == "user" for node in self.conversation.path()))
    @rule()
    def undo(self) -> None:
        asked = [row for row in self.rows if row[0] in self.path() and row[2] == "user"]
        last = max(asked, key=lambda row: self.path().index(row[0]))
        assert self.conversation.undo() == last[3]
        assert self.conversation.head == last[1]

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        node = self.pick(data)
        fork = self.conversation.renewed("bob", node)
        kept = [one.message for one in (self.conversation.nodes if node is None else fork.path())]
        assert kept == [one.message for one in fork.nodes]

    @invariant()
    def nothing_else_has_changed(self) -> None:
        found = [(node.id, node.parent, node.message.role, node.message.content) for node in self.conversation.nodes]
        assert found == self.rows
        assert [node.id for node in self.conversation.path()] == self.path()
        parents = {row[0]: row[1] for row in self.rows}
        for node_id, (which, of) in self.conversation.versions().items():
            group = [row[0] for row in self.rows if row[1] == parents[node_id]]
            assert (group[which - 1], len(group)) == (node_id, of)
            assert of > 1

    @invariant()
    def it_can_be_built_again(self) -> None:
        twin = Conversation("ann").rebuilt(self.conversation.nodes, self.conversation.head)
        assert twin.path() == self.conversation.path()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30)
