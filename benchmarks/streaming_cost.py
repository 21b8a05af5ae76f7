"""What streaming costs: plain `generate` on a thread of its own, our engine streaming, and the textbook pattern.

`python -m benchmarks.streaming_cost` lets them take turns over several rounds, each in a child process of its own since
computing threads of one process slow each other down, and prints a table of medians, then one JSON line. All must give
the same text. How long a stop takes is measured on our engine.
"""

import argparse
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmarks.hardware import hardware
from benchmarks.textbook import Textbook
from streaming import models
from streaming.config import Config
from streaming.engines import open_engine
from streaming.events import Finished, Prefill, TextDelta
from streaming.messages import Message, Sampling

PROMPT = "Write a long story about a dragon and a knight."
LONG_PROMPT = "The dragon and the knight met at the river, and neither of them knew what to say. " * 80
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds from the request to the first text and to the end."""

    text: str
    first_s: float
    whole_s: float


def timed(pieces: Iterator[str]) -> Answer:
    """Take the time of an answer that comes in pieces; an empty one is no text yet."""
    start = time.perf_counter()
    first_s, texts = 0.0, []
    for text in pieces:
        if text:
            first_s = first_s or time.perf_counter() - start
            texts.append(text)
    return Answer("".join(texts), first_s, time.perf_counter() - start)


class Side(Protocol):
    def answer(self, max_new_tokens: int) -> Answer: ...

    def stop(self, moment: str) -> float:
        """Seconds from a cancel in the "answer" or in the "prompt" to the end."""


class Plain:
    """Nothing is streamed: a stopping criterion only looks at the clock once."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def answer(self, max_new_tokens: int) -> Answer:
        import torch
        from transformers import StoppingCriteriaList

        times = [time.perf_counter()]

        def note_first(ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            if len(times) == 1:
                times.append(time.perf_counter())
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        inputs = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": PROMPT}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = self._model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=max_new_tokens,
            stopping_criteria=StoppingCriteriaList([note_first]),
        )
        whole_s = time.perf_counter() - times[0]
        text = self._tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return Answer(text, times[1] - times[0], whole_s)

    def stop(self, moment: str) -> float:
        raise NotImplementedError(moment)


class Ours:
    def __init__(self, folder: Path) -> None:
        self._engine = open_engine(Config(model=str(folder)))
        status = self._engine.wait_ready()
        if status.state != "ready":
            raise RuntimeError(status.detail)

    def answer(self, max_new_tokens: int) -> Answer:
        start = time.perf_counter()
        first_s, pieces = 0.0, []
        sampling = Sampling(temperature=0, max_new_tokens=max_new_tokens)
        for event in self._engine.stream([Message("user", PROMPT)], sampling):
            if isinstance(event, TextDelta):
                first_s = first_s or time.perf_counter() - start
                pieces.append(event.text)
            elif isinstance(event, Finished) and event.usage.completion_tokens < max_new_tokens:
                raise RuntimeError("The model has less to say than --new-tokens: the rates would be wrong.")
        return Answer("".join(pieces), first_s, time.perf_counter() - start)

    def stop(self, moment: str) -> float:
        prompt, kind = (PROMPT, TextDelta) if moment == "answer" else (LONG_PROMPT, Prefill)
        generation = self._engine.stream([Message("user", prompt)], Sampling(max_new_tokens=200))
        events = iter(generation)
        next(event for event in events if isinstance(event, kind))
        time.sleep(random.uniform(0.05, 0.25))
        start = time.perf_counter()
        generation.cancel()
        *_, last = events
        if not isinstance(last, Finished) or last.reason != "cancelled":
            raise RuntimeError(f"The stop came too late: {last}")
        return time.perf_counter() - start


class TextbookSide:
    def __init__(self, folder: Path) -> None:
        self._textbook = Textbook(folder)

    def answer(self, max_new_tokens: int) -> Answer:
        return timed(self._textbook.stream(PROMPT, max_new_tokens))

    def stop(self, moment: str) -> float:
        raise NotImplementedError(moment)


SIDES: dict[str, Callable[[Path], Side]] = {"plain": Plain, "ours": Ours, "textbook": TextbookSide}


class Child:
    """A side in a process of its own. One child works at a time: the others wait, and take no core."""

    def __init__(self, name: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, folder, there), daemon=True)
        self._process.start()
        there.close()  # the child has the only one: if it dies, receiving ends instead of waiting for ever
        self.answer(WARM_UP_TOKENS)

    def answer(self, max_new_tokens: int) -> Answer:
        self._pipe.send(("answer", max_new_tokens))
        answer: Answer = self._pipe.recv()
        return answer

    def stop(self, moment: str) -> float:
        self._pipe.send(("stop", moment))
        return float(self._pipe.recv())

    def end(self) -> None:
        self._pipe.send(("end", ""))
        self._process.join()


def _serve(name: str, folder: Path, pipe: Connection) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    side = SIDES[name](folder)
    while True:
        what, argument = pipe.recv()
        if what == "end":
            return
        pipe.send(side.answer(argument) if what == "answer" else side.stop(argument))


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds."""

    side: str
    tokens_per_s: float
    ttft_ms: float


def measure(folder: Path, rounds: int, new_tokens: int, stops: int) -> tuple[list[Row], dict[str, float]]:
    """The medians of each side, and our milliseconds to a stop. Raises RuntimeError if the sides' texts differ."""
    children = {name: Child(name, folder) for name in SIDES}
    answers: dict[str, list[Answer]] = {name: [] for name in SIDES}
    for _ in range(rounds):
        for name, child in children.items():
            answers[name].append(child.answer(new_tokens))
    texts = {answer.text for side in answers.values() for answer in side}
    if len(texts) > 1:
        raise RuntimeError(f"The sides do not say the same: {texts}")
    stop_ms = {
        moment: round(1000 * median(children["ours"].stop(moment) for _ in range(stops)), 1)
        for moment in ("answer", "prompt")
    }
    for child in children.values():
        child.end()
    rows = [
        Row(
            name,
            round(median(new_tokens / answer.whole_s for answer in side), 2),
            round(1000 * median(answer.first_s for answer in side), 1),
        )
        for name, side in answers.items()
    ]
    return rows, stop_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=128, help="the model must have that much to say")
    parser.add_argument("--stops", type=int, default=5)
    options = parser.parse_args()
    folder = models.prepare(options.model, cache_dir=None, progress=print).path
    rows, stop_ms = measure(folder, options.rounds, options.new_tokens, options.stops)
    print(f"{'':<10} {'tokens/s':>9} {'first text ms':>14}")
    for row in rows:
        print(f"{row.side:<10} {row.tokens_per_s:>9} {row.ttft_ms:>14}")
    print(f"a stop ends an answer after {stop_ms['answer']} ms, the reading of a prompt after {stop_ms['prompt']} ms")
    rate = {row.side: row.tokens_per_s for row in rows}
    print(
        json.dumps(
            {
                "benchmark": "streaming_cost",
                "hardware": hardware(),
                "model": options.model,
                "rounds": options.rounds,
                "new_tokens": options.new_tokens,
                "rows": [asdict(row) for row in rows],
                "stop_ms": stop_ms,
                "ours_to_plain": round(rate["ours"] / rate["plain"], 3),
                "ours_to_textbook": round(rate["ours"] / rate["textbook"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
