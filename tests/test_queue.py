"""Who is next, and who is told what: users take turns, positions are true, and nobody waits for ever."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.engines.base import Generation, Item
from streaming.engines.queue import FairQueue, Request
from streaming.errors import EngineBusy, EngineClosed
from streaming.events import Finished, Queued


class Waiter(Request[str]):
    """A request whose events are kept."""

    def __init__(self, name: str) -> None:
        super().__init__(user=name[0], job=name, generation=Generation())
        self.seen: list[Item] = []
        self.generation.subscribe(self.seen.append)

    @property
    def positions(self) -> list[int]:
        return [item.position for item in self.seen if isinstance(item, Queued)]


def waiting(queue: FairQueue[str], *names: str) -> list[Waiter]:
    waiters = [Waiter(name) for name in names]
    for waiter in waiters:
        queue.put(waiter)
    return waiters


def taken(queue: FairQueue[str], count: int) -> list[str]:
    return [request.job for request in (queue.take() for _ in range(count)) if request]


def test_one_user_is_served_in_order() -> None:
    queue = FairQueue[str]()
    waiting(queue, "a1", "a2", "a3")
    assert taken(queue, 3) == ["a1", "a2", "a3"]


def test_users_take_turns() -> None:
    queue = FairQueue[str]()
    waiting(queue, "a1", "a2", "a3", "b1", "c1", "b2")
    assert taken(queue, 6) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_newcomer_goes_before_the_second_request_of_whoever_is_served() -> None:
    queue = FairQueue[str]()
    waiting(queue, "a1", "a2", "a3")
    assert taken(queue, 1) == ["a1"]
    waiting(queue, "b1")
    assert taken(queue, 3) == ["b1", "a2", "a3"]


def test_newcomers_cannot_keep_anybody_waiting_for_ever() -> None:
    queue = FairQueue[str]()
    waiting(queue, "a1", "a2")
    order = []
    for newcomer in "bcdefgh":
        order += taken(queue, 1)
        waiting(queue, f"{newcomer}1")
    assert order.index("a2") == 2


def test_everybody_is_told_where_they_stand_when_it_changes() -> None:
    queue = FairQueue[str]()
    a1, a2, b1 = waiting(queue, "a1", "a2", "b1")
    queue.take()
    queue.take()
    queue.remove(a2)
    assert (a1.positions, a2.positions, b1.positions) == ([1], [2, 3, 2, 1], [2, 1])


def test_what_all_wait_for_is_told_to_all() -> None:
    queue = FairQueue[str]()
    (a1,) = waiting(queue, "a1")
    queue.say("Loading")
    queue.say("Loading")
    (b1,) = waiting(queue, "b1")
    queue.say("")
    assert a1.seen == [Queued(1), Queued(1, "Loading"), Queued(1)]
    assert b1.seen == [Queued(2, "Loading"), Queued(2)]


def test_whoever_is_taken_at_once_is_not_told_to_wait() -> None:
    queue = FairQueue[str]()
    got: list[Request[str] | None] = []
    worker = threading.Thread(target=lambda: got.append(queue.take()))
    worker.start()
    while not queue._taking:  # it waits in take()
        pass
    (a1,) = waiting(queue, "a1")
    worker.join()
    assert got == [a1]
    assert a1.seen == []


def test_removing_is_possible_until_it_is_taken() -> None:
    queue = FairQueue[str]()
    a1, a2 = waiting(queue, "a1", "a2")
    assert queue.take() is a1
    assert queue.serving == (a1,)
    assert not queue.remove(a1)
    assert queue.remove(a2)
    assert not queue.remove(a2)
    assert len(queue) == 0


def test_closing_refuses_those_who_wait_and_those_who_come() -> None:
    queue = FairQueue[str]()
    a1, b1 = waiting(queue, "a1", "b1")
    error = EngineClosed("over")
    queue.close(error)
    assert a1.seen[-1] is error
    assert b1.seen[-1] is error
    assert queue.take() is None
    with pytest.raises(EngineClosed, match="over"):
        queue.put(Waiter("c1"))


def test_closing_wakes_the_worker() -> None:
    queue = FairQueue[str]()
    worker = threading.Thread(target=queue.take)
    worker.start()
    queue.close(EngineClosed("over"))
    worker.join(timeout=30)
    assert not worker.is_alive()


def test_a_listener_may_call_back_into_the_queue() -> None:
    """Leaving on hearing one's position, and coming back: neither may wait for the thread that tells it."""
    queue = FairQueue[str]()
    first, again = Waiter("a1"), Waiter("a2")
    impatient = Request("b", "b1", Generation())

    def listener(item: Item) -> None:
        if isinstance(item, Queued) and queue.remove(impatient):
            impatient.generation.emit(Finished("cancelled"))
            queue.put(again)

    impatient.generation.subscribe(listener)
    queue.put(first)
    queue.put(impatient)
    assert impatient.generation.ended
    assert (first.positions, again.positions) == ([1], [2])
    assert taken(queue, 2) == ["a1", "a2"]


@given(st.lists(st.one_of(st.sampled_from("abc"), st.just("take"), st.integers(0, 20)), max_size=40))
def test_what_was_told_last_is_true(moves: Sequence[str | int]) -> None:
    """Put for a user, take, remove the nth: the position told last is the place in which each is then taken."""
    queue = FairQueue[str]()
    here: list[Waiter] = []
    for move in moves:
        if move == "take":
            if here:
                here.remove(queue.take())
        elif isinstance(move, int):
            if move < len(here):
                assert queue.remove(here.pop(move))
        else:
            here += waiting(queue, f"{move}{len(here)}")
        assert len(queue) == len(here)
        assert sorted(waiter.positions[-1] for waiter in here) == list(range(1, len(here) + 1))
    expected = sorted(here, key=lambda waiter: waiter.positions[-1])
    assert [queue.take() for _ in expected] == expected


def test_several_are_served_at_once_and_fairly() -> None:
    """Who has most running comes last, and a place that becomes free goes to whoever has least."""
    queue = FairQueue[str]()
    a1, a2, a3 = waiting(queue, "a1", "a2", "a3")
    assert queue.take() is a1
    assert queue.claim(a2)
    assert not queue.claim(a2)
    b1, b2, c1 = waiting(queue, "b1", "b2", "c1")
    assert queue.waiting() == [b1, c1, a3, b2]
    assert queue.claim(b1)
    assert queue.waiting() == [c1, b2, a3]
    assert queue.serving == (a1, a2, b1)
    queue.done(a2)
    assert queue.serving == (a1, b1)
    assert (a3.positions[-1], b2.positions[-1]) == (3, 2)


def test_a_full_line_refuses_and_says_how_long_it_is() -> None:
    queue = FairQueue[str](max_waiting=2)
    waiting(queue, "a1", "b1")
    with pytest.raises(EngineBusy, match="2 requests wait already, this one would be number 3"):
        queue.put(Waiter("a2"))
    queue.take()
    waiting(queue, "a2")
    assert taken(queue, 2) == ["b1", "a2"]


def test_nobody_can_fill_the_line_to_shut_the_others_out() -> None:
    """The last request of whoever has most of them makes room."""
    queue = FairQueue[str](max_waiting=3)
    a1, a2, a3 = waiting(queue, "a1", "a2", "a3")
    (b1,) = waiting(queue, "b1")
    assert isinstance(a3.seen[-1], EngineBusy)
    with pytest.raises(EngineBusy):
        queue.put(Waiter("b2"))
    assert queue.waiting() == [a1, b1, a2]


def test_many_threads_put_and_leave_while_one_takes() -> None:
    queue = FairQueue[str]()
    served: list[Request[str]] = []

    def work() -> None:
        while request := queue.take():
            served.append(request)

    def visit(user: str) -> None:
        for index in range(50):
            waiter = Waiter(f"{user}{index}")
            queue.put(waiter)
            if index % 3 == 0 and queue.remove(waiter):
                left.append(waiter)

    left: list[Waiter] = []
    worker = threading.Thread(target=work)
    visitors = [threading.Thread(target=visit, args=(user,)) for user in "abcdef"]
    for thread in [worker, *visitors]:
        thread.start()
    for visitor in visitors:
        visitor.join()
    while len(queue):
        pass
    queue.close(EngineClosed("over"))
    worker.join()
    assert len(served) + len(left) == 300
    assert not {id(request) for request in served} & {id(request) for request in left}


def test_who_has_a_place_does_not_wait() -> None:
    """For workers that claim: the first so many are told nothing, the next one that it is number one."""
    queue: FairQueue[str] = FairQueue()
    queue.allow(2)
    requests = [Request("ann", str(number), Generation()) for number in range(3)]
    told: list[list[Item]] = [[] for _ in requests]
    for request, items in zip(requests, told, strict=True):
        request.generation.subscribe(items.append)
        queue.put(request)
    assert told == [[], [], [Queued(1)]]
    assert queue.claim(requests[0])
    assert told == [[], [], [Queued(1)]]
    queue.allow(0)  # nobody is served any more: the second has been promised a place, and waits all the same
    assert told == [[], [Queued(1)], [Queued(1), Queued(2)]]
