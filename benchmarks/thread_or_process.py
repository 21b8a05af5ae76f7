"""Where the model should compute: in one thread that stays, in a new thread a request, or in a process of its own.

`python -m benchmarks.thread_or_process` lets the ways take turns, each in a host process, which is the app that shows
the text; prints the speed with the app idle, with a tenth of its time in Python, and with all of it, the memory, and
what handing a piece over costs; then one JSON line. All must give the same text.
"""

import argparse
import json
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, Protocol

import psutil

from benchmarks.hardware import hardware
from benchmarks.streaming_cost import PROMPT, Answer, timed
from benchmarks.textbook import WARM_UP_TOKENS, Textbook
from streaming import models

HAND_OVERS = 5000
SOME, ALL = 0.1, 1.0  # of the app's time is Python: a page that shows an answer, an app that never waits
PERIOD_S = 0.1
SPAWN = multiprocessing.get_context("spawn")


class Way(Protocol):
    def pieces(self, new_tokens: int) -> Iterator[str]:
        """The greedy answer to PROMPT while it is written."""


class _Loaded:
    """The model, in the thread that makes this."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def generate(self, new_tokens: int, streamer: Any) -> str:
        inputs = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": PROMPT}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = self.model.generate(**inputs, do_sample=False, max_new_tokens=new_tokens, streamer=streamer)
        return str(self.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


class Nothing:
    """The reference: the app's main thread computes, and the text comes when all of it is there."""

    def __init__(self, folder: Path) -> None:
        self._loaded = _Loaded(folder)

    def pieces(self, new_tokens: int) -> Iterator[str]:
        yield self._loaded.generate(new_tokens, None)


class OneThread:
    """The model is loaded and computes in one thread that stays."""

    def __init__(self, folder: Path) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._loaded = self._thread.submit(_Loaded, folder).result()

    def pieces(self, new_tokens: int) -> Iterator[str]:
        from streaming.streamers import IteratorStreamer

        texts = IteratorStreamer(self._loaded.tokenizer)
        done = self._thread.submit(self._loaded.generate, new_tokens, texts)
        yield from texts
        done.result()


class NewThread:
    """The textbook's: the main thread loads and warms up, and each request starts a thread."""

    def __init__(self, folder: Path) -> None:
        self._textbook = Textbook(folder)

    def pieces(self, new_tokens: int) -> Iterator[str]:
        return self._textbook.stream(PROMPT, new_tokens)


class Process:
    """A child process loads and computes in its main thread, and sends each piece through a pipe."""

    def __init__(self, folder: Path) -> None:
        self._pipe, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_compute, args=(folder, there))
        self._process.start()
        there.close()

    def pieces(self, new_tokens: int) -> Iterator[str]:
        self._pipe.send(new_tokens)
        while (text := self._pipe.recv()) is not None:
            yield text


def _compute(folder: Path, pipe: Connection) -> None:
    """Until the other end is closed, be it because its process has died."""
    from transformers.utils import logging

    from streaming.streamers import IteratorStreamer

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    class Sender(IteratorStreamer):
        def _write(self, text: str) -> None:
            pipe.send(text)

        def _close(self) -> None:
            pipe.send(None)

    loaded = _Loaded(folder)
    while (new_tokens := _received(pipe)) is not None:
        loaded.generate(new_tokens, Sender(loaded.tokenizer))


def _received(pipe: Connection) -> Any:
    """None when there is nobody left at the other end."""
    try:
        return pipe.recv()
    except EOFError:
        return None


WAYS: dict[str, Callable[[Path], Way]] = {
    "nothing streamed": Nothing,
    "one thread": OneThread,
    "a new thread a request": NewThread,
    "a process": Process,
}


class Host:
    """An app in a process of its own that answers in one way. One host works at a time: the others wait for a pipe."""

    def __init__(self, name: str, folder: Path) -> None:
        self._pipe, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_host, args=(name, folder, there))
        self._process.start()
        there.close()

    def warm_up(self) -> None:
        self.answer(WARM_UP_TOKENS)

    def answer(self, new_tokens: int, *, busy: float = 0.0) -> Answer:
        self._pipe.send((new_tokens, busy))
        answer: Answer = self._pipe.recv()
        return answer

    def memory_mb(self) -> float:
        """What the host and its children keep for themselves; pages that processes share are counted in none."""
        family = [psutil.Process(self._process.pid)]
        family += family[0].children(recursive=True)
        return sum(float(process.memory_full_info().uss) for process in family) / 1e6

    def end(self) -> None:
        self._pipe.close()
        self._process.join()


def _host(name: str, folder: Path, pipe: Connection) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    way = WAYS[name](folder)
    while (order := _received(pipe)) is not None:
        new_tokens, busy = order
        with _python_at_work(busy):
            pipe.send(timed(way.pieces(new_tokens)))


@contextmanager
def _python_at_work(busy: float) -> Iterator[None]:
    """A second thread of the app that spends this share of its time in Python: rendering, parsing, other requests."""
    over = threading.Event()

    def work() -> None:
        while not over.wait((1 - busy) * PERIOD_S):
            until = time.perf_counter() + busy * PERIOD_S
            while time.perf_counter() < until:
                json.loads(json.dumps(list(range(100))))

    worker = threading.Thread(target=work)
    if busy:
        worker.start()
    try:
        yield
    finally:
        over.set()
        if busy:
            worker.join()


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds; the last two were measured once."""

    way: str
    tokens_per_s: float
    ttft_ms: float
    tokens_per_s_some_busy: float
    ttft_s_all_busy: float
    memory_mb: int


def measure(folder: Path, rounds: int, new_tokens: int) -> list[Row]:
    """Raises RuntimeError if the ways' texts differ."""
    hosts = {name: Host(name, folder) for name in WAYS}  # they load all at once
    for host in hosts.values():
        host.warm_up()
    idle: dict[str, list[Answer]] = {name: [] for name in WAYS}
    busy: dict[str, list[Answer]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, host in hosts.items():
            idle[name].append(host.answer(new_tokens))
            busy[name].append(host.answer(new_tokens, busy=SOME))
    texts = {answer.text for answers in (idle, busy) for way in answers.values() for answer in way}
    if len(texts) > 1:
        raise RuntimeError(f"The ways do not say the same: {texts}")
    rows = [
        Row(
            name,
            round(median(new_tokens / answer.whole_s for answer in idle[name]), 2),
            round(1000 * median(answer.first_s for answer in idle[name]), 1),
            round(median(new_tokens / answer.whole_s for answer in busy[name]), 2),
            round(host.answer(1, busy=ALL).first_s, 2),
            round(host.memory_mb()),
        )
        for name, host in hosts.items()
    ]
    for host in hosts.values():
        host.end()
    return rows


def hand_over_us() -> dict[str, float]:
    """Microseconds for one piece of text: to pickle and unpickle it, to a thread, and to a process."""
    piece = " dragon"
    start = time.perf_counter()
    for _ in range(HAND_OVERS):
        pickle.loads(pickle.dumps(piece))
    pickling = time.perf_counter() - start
    there: SimpleQueue[str | None] = SimpleQueue()
    back: SimpleQueue[str] = SimpleQueue()
    thread = threading.Thread(target=_echo, args=(there.get, back.put))
    thread.start()
    threads = _there_and_back(there.put, back.get, piece)
    there.put(None)
    thread.join()
    pipe, other = SPAWN.Pipe()
    process = SPAWN.Process(target=_echo_pipe, args=(other,))
    process.start()
    other.close()
    processes = _there_and_back(pipe.send, pipe.recv, piece)
    pipe.close()
    process.join()
    return {
        "pickle": round(1e6 * pickling / HAND_OVERS, 2),
        "thread": round(1e6 * threads / HAND_OVERS / 2, 2),
        "process": round(1e6 * processes / HAND_OVERS / 2, 2),
    }


def _there_and_back(put: Callable[[str], None], get: Callable[[], Any], piece: str) -> float:
    put(piece)
    get()
    start = time.perf_counter()
    for _ in range(HAND_OVERS):
        put(piece)
        get()
    return time.perf_counter() - start


def _echo(get: Callable[[], Any], put: Callable[[Any], None]) -> None:
    while (item := get()) is not None:
        put(item)


def _echo_pipe(pipe: Connection) -> None:
    _echo(lambda: _received(pipe), pipe.send)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64, help="the model must have that much to say")
    options = parser.parse_args()
    folder = models.prepare(options.model, cache_dir=None, progress=print).path
    rows = measure(folder, options.rounds, options.new_tokens)
    costs = hand_over_us()
    print(f"{'':<24} {'tokens/s':>9} {'first text ms':>14} {'app 10% busy':>13} {'first text s, 100%':>19} {'MB':>6}")
    for row in rows:
        print(
            f"{row.way:<24} {row.tokens_per_s:>9} {row.ttft_ms:>14} {row.tokens_per_s_some_busy:>13} "
            f"{row.ttft_s_all_busy:>19} {row.memory_mb:>6}"
        )
    print("a piece handed over, us: " + ", ".join(f"{name} {cost}" for name, cost in costs.items()))
    print(
        json.dumps(
            {
                "benchmark": "thread_or_process",
                "hardware": hardware(),
                "model": options.model,
                "rounds": options.rounds,
                "new_tokens": options.new_tokens,
                "rows": [asdict(row) for row in rows],
                "hand_over_us": costs,
            }
        )
    )


if __name__ == "__main__":
    main()
