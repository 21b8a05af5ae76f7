"""The tree of messages: every change is a new version beside the old one."""

import pytest

from streaming.conversation import Conversation
from streaming.errors import InvalidRequest, NotFound
from streaming.events import Finished
from streaming.messages import Message


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
