"""Who is next, and who is told what: users take turns, positions are true, and nobody waits for ever."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.engines.base import Generation, Item
from streaming.engines.queue import Barrier, FairQueue, Idle, Request
from streaming.errors import EngineBusy, EngineClosed, ModelError
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
    return [request.job for request in (queue.take() for _ in range(count)) if isinstance(request, Request)]


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
        while isinstance(request := queue.take(), Request):
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


# -- a barrier


def test_who_comes_after_a_barrier_is_held_and_who_came_before_is_not() -> None:
    queue = FairQueue[str]()
    a1, b1 = waiting(queue, "a1", "b1")
    barrier = Barrier("Waiting for the old model")
    assert queue.bar(barrier)
    a2, c1 = waiting(queue, "a2", "c1")
    assert (queue.waiting(), len(queue), queue.barrier) == ([a1, b1], 4, barrier)
    assert not queue.claim(c1)
    assert (a2.seen[-1], c1.seen[-1]) == (
        Queued(3, "Waiting for the old model"),
        Queued(4, "Waiting for the old model"),
    )
    assert taken(queue, 2) == ["a1", "b1"]
    assert queue.take() is barrier
    assert c1.seen[-1] == Queued(1, "Waiting for the old model")  # a has just had a turn
    queue.say("Loading the new one")
    (d1,) = waiting(queue, "d1")
    assert (c1.seen[-1], d1.seen[-1]) == (Queued(1, "Loading the new one"), Queued(3, "Loading the new one"))
    queue.say("")
    queue.lift()
    assert queue.barrier is None
    assert taken(queue, 3) == ["c1", "a2", "d1"]
    assert b1.positions == [2, 1]


def test_there_is_one_barrier_at_a_time_and_it_is_reached_once() -> None:
    queue = FairQueue[str]()
    barrier = Barrier("")
    assert queue.bar(barrier)
    assert not queue.bar(Barrier(""))
    assert queue.take() is barrier
    assert queue.take(0.01) == Idle()
    assert not queue.bar(Barrier(""))
    assert queue.call_off() is None
    queue.lift()
    assert queue.bar(Barrier(""))


def test_a_barrier_that_is_called_off_leaves_one_line() -> None:
    """Turns are as if it had never been there: b comes before a's second, although that was not held."""
    queue = FairQueue[str]()
    a1, a2 = waiting(queue, "a1", "a2")
    barrier = Barrier("Waiting")
    queue.bar(barrier)
    a3, b1 = waiting(queue, "a3", "b1")
    assert b1.positions == [4]
    assert queue.call_off() is barrier
    assert queue.call_off() is None
    assert queue.waiting() == [a1, b1, a2, a3]
    assert (b1.seen[-1], a3.seen[-1]) == (Queued(2), Queued(4))


def test_the_last_one_before_a_barrier_may_leave() -> None:
    """The worker waits for it to be taken, and nobody else may be told that something has come."""
    queue = FairQueue[str]()
    queue.allow(0)
    (a1,) = waiting(queue, "a1")
    barrier = Barrier("")
    queue.bar(barrier)
    (b1,) = waiting(queue, "b1")
    assert queue.remove(b1)
    assert queue.remove(a1)
    assert queue.take() is barrier


def test_whoever_comes_while_a_failed_model_is_replaced_is_held_and_not_refused() -> None:
    queue = FairQueue[str]()
    (a1,) = waiting(queue, "a1")
    failure, second = ModelError("It is not there."), ModelError("Nor is this one.")
    queue.refuse(failure)
    assert a1.seen[-1] is failure
    with pytest.raises(ModelError, match="not there"):
        queue.put(Waiter("a2"))
    queue.bar(Barrier("Loading"))
    (a3,) = waiting(queue, "a3")
    queue.lift(second)
    assert a3.seen[-1] is second
    with pytest.raises(ModelError, match="Nor is"):
        queue.put(Waiter("a4"))
    queue.bar(Barrier("Loading"))
    (a5,) = waiting(queue, "a5")
    queue.lift()
    assert taken(queue, 1) == ["a5"]
    assert a5.seen == [Queued(1, "Loading"), Queued(1)]


def test_calling_off_what_was_to_mend_a_failure_refuses_those_who_hoped_for_it() -> None:
    queue = FairQueue[str]()
    failure = ModelError("It is not there.")
    queue.refuse(failure)
    queue.bar(Barrier("Loading"))
    (a1,) = waiting(queue, "a1")
    queue.call_off()
    assert a1.seen[-1] is failure
    assert len(queue) == 0


def test_a_full_line_counts_those_who_are_held() -> None:
    queue = FairQueue[str](max_waiting=3)
    waiting(queue, "a1")
    queue.bar(Barrier(""))
    a2, a3 = waiting(queue, "a2", "a3")
    (b1,) = waiting(queue, "b1")
    assert isinstance(a3.seen[-1], EngineBusy)
    assert len(queue) == 3
    with pytest.raises(EngineBusy):
        queue.put(Waiter("b2"))
    assert (a2.positions[-1], b1.positions[-1]) == (2, 3)


def test_closing_refuses_the_held_too_and_tells_of_a_barrier_not_reached() -> None:
    error = EngineClosed("over")
    for reached in (False, True):
        queue = FairQueue[str]()
        barrier = Barrier("")
        queue.bar(barrier)
        (a1,) = waiting(queue, "a1")
        if reached:
            assert queue.take() is barrier
        assert queue.close(error) is (None if reached else barrier)
        assert a1.seen[-1] is error
        queue.lift()
        assert (queue.take(), len(queue)) == (None, 0)
        with pytest.raises(EngineClosed):
            queue.bar(Barrier(""))


def test_whoever_is_left_in_the_line_is_told_that_it_waits() -> None:
    queue = FairQueue[str]()
    assert queue.take(0.01) == Idle()
    (a1,) = waiting(queue, "a1")
    assert queue.take(leave=True) is a1
    assert queue.take(leave=True) is a1
    assert a1.seen == [Queued(1)]
    assert queue.take() is a1


@given(st.lists(st.sampled_from(["a", "b", "c", "take", "bar", "off", "leave"]), max_size=40))
def test_a_barrier_parts_those_before_from_those_after_whatever_happens(moves: Sequence[str]) -> None:
    """Each is taken once, or leaves once; nobody passes a barrier that stands; the position told last is true."""
    queue = FairQueue[str]()
    here: list[Waiter] = []
    held: list[Waiter] = []
    barrier: Barrier | None = None
    for move in moves:
        match move:
            case "take" if here or (barrier is not None):
                got = queue.take()
                if here:
                    assert got in here
                    here.remove(got)
                else:
                    assert got is barrier
                    queue.lift()
                    here, held, barrier = held, [], None
            case "bar" if barrier is None:
                barrier = Barrier("")
                assert queue.bar(barrier)
            case "off":
                assert queue.call_off() is barrier
                here, held, barrier = here + held, [], None
            case "leave" if here or held:
                leaver = (held or here).pop()
                assert queue.remove(leaver)
            case "a" | "b" | "c":
                (held if barrier is not None else here).extend(waiting(queue, f"{move}{len(here) + len(held)}"))
        assert len(queue) == len(here) + len(held)
        assert {waiter.positions[-1] for waiter in here} == set(range(1, len(here) + 1))
        assert {waiter.positions[-1] - len(here) for waiter in held} == set(range(1, len(held) + 1))
    expected = sorted(here, key=lambda waiter: waiter.positions[-1])
    assert [queue.take() for _ in expected] == expected
