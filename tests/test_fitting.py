"""A conversation that a server finds too long is shortened by whole turns, for any server's way to count."""

from hypothesis import given
from hypothesis import strategies as st

from streaming.engines.fitting import Fitting
from streaming.errors import ContextTooLong
from streaming.messages import Message

SYSTEM = Message("system", "Be brief.")
TURNS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=12)


def conversation(turns: list[tuple[int, int]], last: int) -> list[Message]:
    messages = [SYSTEM]
    for asked, said in turns:
        messages += [Message("user", "q" * asked), Message("assistant", "a" * said)]
    return [*messages, Message("user", "q" * last)]


def count(messages: list[Message], per_message: int) -> int:
    return sum(len(message.content) + per_message for message in messages)


@given(TURNS, st.integers(1, 80), st.integers(30, 400), st.integers(1, 500), st.integers(0, 9), st.booleans())
def test_it_ends_with_what_fits_or_with_what_cannot_be_shortened(
    turns: list[tuple[int, int]], last: int, context: int, max_new_tokens: int, per_message: int, counts_all: bool
) -> None:
    messages = conversation(turns, last)
    fitting = Fitting(messages, max_new_tokens)
    for _ in range(40):
        prompt = count(fitting.messages, per_message)
        if prompt + fitting.max_new_tokens <= context:
            break
        # as vLLM does it: it stops counting where there is no room left for the answer
        told = prompt if counts_all else min(prompt, max(1, context - fitting.max_new_tokens + 1))
        if not fitting.tighten(ContextTooLong(told, context)):
            assert len([message for message in fitting.messages if message.role == "user"]) == 1
            assert told >= context or fitting.max_new_tokens == 1
            break
    else:
        raise AssertionError("it never ends")
    kept = fitting.messages
    assert kept[0] == SYSTEM
    assert kept[1:] == messages[len(messages) - len(kept) + 1 :]
    assert kept[1].role == "user"
    assert fitting.dropped == len(messages) - len(kept)
    assert 1 <= fitting.max_new_tokens <= max_new_tokens


def test_no_more_is_left_out_than_has_to_be() -> None:
    fitting = Fitting(conversation([(10, 10)] * 9, 10), 20)
    assert fitting.tighten(ContextTooLong(count(fitting.messages, 0), 100))
    assert fitting.dropped == 12
    assert count(fitting.messages, 0) == 79


def test_an_answer_gives_way_before_turns_do_but_only_down_to_half_of_the_context() -> None:
    fitting = Fitting(conversation([(10, 10)], 10), 90)
    assert fitting.tighten(ContextTooLong(39, 100))
    assert (fitting.dropped, fitting.max_new_tokens) == (0, 50)


def test_a_last_message_may_use_the_answers_room() -> None:
    fitting = Fitting([Message("user", "q" * 80)], 50)
    assert fitting.tighten(ContextTooLong(80, 100))
    assert fitting.max_new_tokens == 20
    assert not Fitting([Message("user", "q" * 100)], 1).tighten(ContextTooLong(100, 100))
