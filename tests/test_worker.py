"""Whatever happens in the one thread, nobody is left waiting for it."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streaming.engines.base import Generation
from streaming.engines.queue import Request
from streaming.engines.worker import RESTING, Worker
from streaming.errors import EngineClosed, GenerationFailed, InvalidRequest, ModelError, StreamingError
from streaming.events import Finished, Queued, TextDelta

TIMEOUT_S = 60


def echo(request: Request[str]) -> None:
    if request.job == "exit":
        sys.exit(3)
    request.generation.emit(TextDelta(request.job))
    request.generation.emit(Finished("stop"))


@pytest.mark.filterwarnings("error")
def test_even_an_exit_in_the_thread_ends_one_answer_only() -> None:
    """`sys.exit()` in a model's code would end the thread, and every later request would wait for ever."""
    worker = Worker[str]("test", lambda _: None, echo)
    with pytest.raises(GenerationFailed) as raised:
        list(worker.submit("a", "exit"))
    assert isinstance(raised.value.__cause__, SystemExit)
    assert list(worker.submit("a", "b")) == [TextDelta("b"), Finished("stop")]
    worker.close()


def test_a_stuck_thread_does_not_keep_closing_from_returning() -> None:
    begun, go = threading.Event(), threading.Event()

    def serve(request: Request[str]) -> None:
        begun.set()
        go.wait(60)
        request.generation.emit(Finished("stop"))

    worker = Worker[str]("test", lambda _: None, serve)
    running = worker.submit("a", "")
    assert begun.wait(30)
    waiting = worker.submit("a", "")
    worker.close(timeout=0.01)
    for generation in (running, waiting):
        with pytest.raises(EngineClosed):
            list(generation)
    go.set()


def test_closing_from_the_thread_itself() -> None:
    """A listener that closes the engine on an answer's end must not wait for the thread that it runs on."""
    worker = Worker[str]("test", lambda _: None, echo)
    generation = worker.submit("a", "b")
    ended = threading.Event()

    def listener(item: object) -> None:
        if isinstance(item, Finished):
            worker.close()
            ended.set()

    generation.subscribe(listener)
    assert ended.wait(30)
    assert worker.state == "closed"


def test_closing_what_never_started() -> None:
    worker = Worker[str]("test", lambda _: None, echo)
    worker.close()
    worker.close()
    with pytest.raises(EngineClosed):
        worker.submit("a", "b")
    assert worker.state == "closed"


def test_the_interpreter_ends_without_a_close() -> None:
    code = (
        "from streaming.engines.scripted import ScriptedEngine\n"
        "from streaming.messages import Message\n"
        "events = iter(ScriptedEngine().stream([Message('user', '/say 5000 tokens at 50 tok/s')]))\n"
        "print(next(events))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Prefill(done=0, total=6)\n", "")


# -- switching


class House:
    """A worker whose models answer with their names. Those in `broken` cannot be loaded; loading one that has a gate
    waits there, and an answer to "hold" waits until `go`. `loads` are all that was loaded, or tried."""

    def __init__(self, *, idle_s: float | None = None) -> None:
        self.broken: set[str] = set()
        self.gates: dict[str, threading.Event] = {}
        self.loading: dict[str, threading.Event] = {}
        self.loads: list[str] = []
        self.reports: list[StreamingError | None] = []
        self.reported = threading.Semaphore(0)
        self.began, self.go = threading.Event(), threading.Event()
        self.model = ""
        self.worker = Worker[str](
            "test", self._load, self._serve, model="old", unload=lambda: self._load(""), idle_s=idle_s
        )

    def _load(self, name: str) -> None:
        self.model = ""
        if not name:
            self.loads.append("-")
            return
        self.worker.say(f"Loading {name}")
        self.loads.append(name)
        if name in self.gates:
            self.loading[name].set()
            assert self.gates[name].wait(TIMEOUT_S)
            self.worker.say(f"Loading {name}")
        if name in self.broken:
            raise ModelError(f"{name} is broken.")
        self.model = name

    def gate(self, name: str) -> None:
        self.gates[name], self.loading[name] = threading.Event(), threading.Event()

    def _serve(self, request: Request[str]) -> None:
        if request.job == "hold":
            self.began.set()
            assert self.go.wait(TIMEOUT_S)
        request.generation.emit(TextDelta(self.model))
        request.generation.emit(Finished("stop"))

    def switch(self, name: str) -> None:
        self.worker.switch(name, self._report)

    def _report(self, error: StreamingError | None) -> None:
        self.reports.append(error)
        self.reported.release()

    def report(self) -> StreamingError | None:
        assert self.reported.acquire(timeout=TIMEOUT_S)
        return self.reports[-1]

    def hold(self) -> Generation:
        generation = self.worker.submit("a", "hold")
        assert self.began.wait(TIMEOUT_S)
        return generation


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.go.set()
    for gate in house.gates.values():
        gate.set()
    house.worker.close()


def answer(generation: Generation) -> str:
    return "".join(event.text for event in generation if isinstance(event, TextDelta))


def test_who_came_before_a_switch_is_answered_by_the_old_model_and_who_comes_after_by_the_new(house: House) -> None:
    running, waiting = house.hold(), house.worker.submit("b", "")
    house.switch("new")
    later = [house.worker.submit("a", ""), house.worker.submit("c", "")]
    assert (house.worker.model, house.worker.state, house.worker.waiting) == ("new", "ready", 3)
    house.go.set()
    assert [answer(generation) for generation in (running, waiting, *later)] == ["old", "old", "new", "new"]
    assert house.report() is None
    assert (house.loads, house.worker.model, house.worker.detail) == (["old", "new"], "new", "")


def test_who_waits_for_the_new_model_hears_what_for(house: House) -> None:
    house.gate("new")
    running = house.hold()
    house.switch("new")
    later = house.worker.submit("b", "")
    house.go.set()
    assert answer(running) == "old"
    assert house.loading["new"].wait(TIMEOUT_S)
    assert (house.worker.state, house.worker.detail) == ("loading", "Loading new")
    house.gates["new"].set()
    events = list(later)
    details = [event.detail for event in events if isinstance(event, Queued)]
    assert details[0].startswith("Waiting for the answers under way")
    assert "Loading new" in details
    assert events[-2] == TextDelta("new")


def test_a_failed_load_brings_the_old_model_back_for_those_who_wait(house: House) -> None:
    house.broken.add("bad")
    running = house.hold()
    house.switch("bad")
    later = house.worker.submit("b", "")
    house.go.set()
    assert (answer(running), answer(later)) == ("old", "old")
    assert str(house.report()) == "bad is broken."
    assert (house.loads, house.worker.model, house.worker.state) == (["old", "bad", "old"], "old", "ready")
    house.switch("new")
    assert house.report() is None
    assert answer(house.worker.submit("b", "")) == "new"


def test_where_the_old_model_cannot_come_back_both_reasons_are_said_and_a_later_switch_mends_it(house: House) -> None:
    running = house.hold()
    house.broken |= {"bad", "old"}
    house.switch("bad")
    later = house.worker.submit("b", "")
    house.go.set()
    assert answer(running) == "old"
    error = house.report()
    for refused in (lambda: list(later), lambda: house.worker.submit("b", "")):
        with pytest.raises(ModelError) as raised:
            refused()
        assert raised.value is error
    assert (house.worker.state, house.worker.model, house.worker.detail) == ("failed", "old", str(error))
    assert "bad is broken. Nor could old be loaded again: old is broken." in str(error)
    house.switch("new")
    mended = house.worker.submit("b", "")
    assert answer(mended) == "new"
    assert house.report() is None
    assert (house.worker.state, house.worker.detail) == ("ready", "")


def test_a_first_load_that_failed_is_mended_by_a_switch(house: House) -> None:
    house.broken.add("old")
    house.gate("old")
    early = house.worker.submit("a", "")
    house.gates["old"].set()
    with pytest.raises(ModelError, match="old is broken"):
        list(early)
    house.worker.wait_loaded(TIMEOUT_S)
    assert house.worker.state == "failed"
    house.broken.add("bad")
    house.switch("bad")
    assert str(house.report()) == "bad is broken."
    assert (house.worker.state, house.worker.detail) == ("failed", "bad is broken.")
    house.switch("new")
    assert answer(house.worker.submit("a", "")) == "new"
    assert (house.loads, house.worker.state) == (["old", "bad", "new"], "ready")


def test_a_switch_during_the_first_load_waits_for_it(house: House) -> None:
    house.gate("old")
    early = house.worker.submit("a", "")
    assert house.loading["old"].wait(TIMEOUT_S)
    house.switch("new")
    later = house.worker.submit("b", "")
    house.gates["old"].set()
    assert (answer(early), answer(later)) == ("old", "new")


def test_a_second_switch_is_refused_until_the_first_is_done(house: House) -> None:
    house.gate("new")
    running = house.hold()
    house.switch("new")
    with pytest.raises(InvalidRequest, match="Another model is being loaded"):
        house.switch("third")
    house.go.set()
    assert answer(running) == "old"
    assert house.loading["new"].wait(TIMEOUT_S)
    with pytest.raises(InvalidRequest, match="Another model is being loaded"):
        house.switch("third")
    house.gates["new"].set()
    assert house.report() is None
    house.switch("third")
    assert house.report() is None
    assert house.loads == ["old", "new", "third"]


def test_a_switch_that_waits_can_be_called_off_and_one_that_loads_cannot(house: House) -> None:
    assert not house.worker.call_off()
    house.gate("new")
    running = house.hold()
    house.switch("new")
    later = house.worker.submit("b", "")
    assert house.worker.call_off()
    assert not house.worker.call_off()
    assert house.worker.model == "old"
    house.go.set()
    assert (answer(running), answer(later)) == ("old", "old")
    house.switch("new")
    assert house.loading["new"].wait(TIMEOUT_S)
    assert not house.worker.call_off()
    house.gates["new"].set()
    assert house.report() is None
    assert len(house.reports) == 1


def test_a_held_request_may_leave(house: House) -> None:
    running = house.hold()
    house.switch("new")
    later, stays = house.worker.submit("b", ""), house.worker.submit("c", "")
    later.cancel()
    *_, last = later
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    house.go.set()
    assert (answer(running), answer(stays)) == ("old", "new")


@pytest.mark.parametrize("moment", ["waiting", "loading", "bringing back"])
def test_closing_in_the_middle_of_a_switch_ends_everybody_and_tells_once(house: House, moment: str) -> None:
    house.worker.start()
    house.worker.wait_loaded(TIMEOUT_S)
    running = house.hold() if moment == "waiting" else None
    name = "bad" if moment == "bringing back" else "new"
    house.broken.add("bad")
    if moment == "loading":
        house.gate("new")
    if moment == "bringing back":
        house.gate("old")
    house.switch(name)
    held = house.worker.submit("b", "")
    if moment != "waiting":
        assert house.loading["old" if moment == "bringing back" else "new"].wait(TIMEOUT_S)
    house.worker.close(timeout=0.01)
    for generation in (held, running):
        if generation is not None:
            with pytest.raises(EngineClosed):
                list(generation)
    house.go.set()
    for gate in house.gates.values():
        gate.set()
    assert isinstance(house.report(), StreamingError)
    house.worker._thread.join(TIMEOUT_S)
    assert len(house.reports) == 1
    assert house.worker.state == "closed"
    with pytest.raises(EngineClosed):
        house.switch("third")


def test_what_hears_of_a_switch_may_raise_and_may_switch_again(house: House) -> None:
    def again(_: StreamingError | None) -> None:
        house.switch("third")
        raise RuntimeError("broken on purpose")

    house.worker.switch("new", again)
    assert house.report() is None
    assert answer(house.worker.submit("a", "")) == "third"


# -- resting


def test_after_a_while_without_requests_the_model_rests_and_the_next_request_wakes_it() -> None:
    house = House(idle_s=0.05)
    assert answer(house.worker.submit("a", "")) == "old"
    house.gate("old")
    wait_until(lambda: house.worker.detail == RESTING)
    assert (house.worker.state, house.model) == ("ready", "")
    woken = house.worker.submit("a", "")
    assert house.loading["old"].wait(TIMEOUT_S)
    assert house.worker.state == "loading"
    house.gates["old"].set()
    events = list(woken)
    assert events[-2] == TextDelta("old")
    assert Queued(1, "Loading old") in events
    assert house.loads[:3] == ["old", "-", "old"]
    house.worker.close()


def test_a_switch_wakes_it_too_and_a_wakening_that_fails_is_told() -> None:
    house = House(idle_s=0.05)
    house.worker.start()
    wait_until(lambda: house.worker.detail == RESTING)
    house.switch("new")
    assert house.report() is None
    wait_until(lambda: house.worker.detail == RESTING)
    assert house.worker.model == "new"
    house.broken.add("new")
    with pytest.raises(ModelError, match="new is broken"):
        list(house.worker.submit("a", ""))
    wait_until(lambda: house.worker.state == "failed")
    assert house.worker.detail == "new is broken."
    house.switch("old")
    assert house.report() is None
    assert answer(house.worker.submit("a", "")) == "old"
    house.worker.close()


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
