"""Whatever happens in the one thread, nobody is left waiting for it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streaming.engines.queue import Request
from streaming.engines.worker import Worker
from streaming.errors import EngineClosed, GenerationFailed
from streaming.events import Finished, TextDelta


def echo(request: Request[str]) -> None:
    if request.job == "exit":
        sys.exit(3)
    request.generation.emit(TextDelta(request.job))
    request.generation.emit(Finished("stop"))


@pytest.mark.filterwarnings("error")
def test_even_an_exit_in_the_thread_ends_one_answer_only() -> None:
    """`sys.exit()` in a model's code would end the thread, and every later request would wait for ever."""
    worker = Worker[str]("test", lambda: None, echo)
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

    worker = Worker[str]("test", lambda: None, serve)
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
    worker = Worker[str]("test", lambda: None, echo)
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
    worker = Worker[str]("test", lambda: None, echo)
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
