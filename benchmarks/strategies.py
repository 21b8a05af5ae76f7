"""Strategies beside plain decoding: how far beam search lags behind its best beam, and what guesses bring or cost.

`python -m benchmarks.strategies` asks one model in this process, on this thread alone, each strategy in turn, several
rounds. Guesses are measured by kind of prompt: what repeats its prompt, and free prose. Prompts have been read before,
so that the rates are those of decoding. A table, then one JSON line.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import torch

from benchmarks.concurrency import PROMPTS
from benchmarks.hardware import hardware
from streaming import models
from streaming.beams import BeamSearch
from streaming.engines.answers import Answers
from streaming.engines.base import Generation
from streaming.engines.generate import GenerateLane
from streaming.engines.speculation import Draft
from streaming.engines.stopwatch import Stopwatch
from streaming.events import Finished
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling, Strategy
from streaming.templates import ChatTemplate

PROSE = (*PROMPTS, "What should I pack for a week in the mountains?", "Why is the sky blue?")
TEXT = (
    "The harbour office opens at seven. Ships that come in before noon are unloaded on the same day. The crane at the "
    "north pier lifts twelve tons, the crane at the south pier lifts forty. Nobody may stand below a load that hangs."
)
CODE = (
    "def total(orders):\n    result = 0\n    for order in orders:\n        if order.paid:\n            result += "
    "order.price * order.count\n    return result\n"
)
REPEATING = (
    f"Repeat this text word by word, twice:\n\n{TEXT}",
    f"Correct the spelling and write the whole text again:\n\n{TEXT}",
    f"Rename the variable `result` to `amount` and write the whole function again:\n\n{CODE}",
)
CACHE_BYTES = 10**9


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over all rounds and prompts of a kind; `speed_up` is the rate's ratio to plain decoding's. `lag` counts
    the tokens of the leading beam that are not settled, in the mean over all steps."""

    strategy: str
    prompts: str
    tokens_per_s: float
    speed_up: float
    tokens_per_step: float | None = None
    accepted: float | None = None
    lag: float | None = None


class Bench:
    """One model, and a draft for it if there is one."""

    def __init__(self, name: str, draft: str | None, new_tokens: int) -> None:
        model = _load(name)
        self._model: Any = model.model
        self._answers = Answers(model)
        self._template = ChatTemplate(model.tokenizer, model.context_tokens)
        self._new_tokens = new_tokens
        drafting = Draft(_load(draft), model, cache_bytes=CACHE_BYTES) if draft else None
        self._lane = GenerateLane(model, self._answers, draft=drafting, cache_bytes=CACHE_BYTES)
        self._lane.warm_up()

    def rate(self, text: str, strategy: Strategy | None) -> tuple[float, Finished]:
        """Tokens a second of a greedy answer whose prompt has been read."""
        self._ask(text, strategy, 1)
        seconds, finished = self._ask(text, strategy, self._new_tokens)
        return finished.usage.completion_tokens / seconds, finished

    def _ask(self, text: str, strategy: Strategy | None, new_tokens: int) -> tuple[float, Finished]:
        generation, ended = Generation(), list[Finished]()
        generation.subscribe(lambda item: ended.append(item) if isinstance(item, Finished) else None)
        prompt = self._template.render([Message("user", text)], reserve_tokens=new_tokens, chat_template_kwargs={})
        begun = time.perf_counter()
        answer = self._answers.open(
            prompt,
            Sampling(temperature=0, strategy=strategy),
            max_new_tokens=new_tokens,
            stops=self._template.stops,
            generation=generation,
            stopwatch=Stopwatch(time.monotonic()),
        )
        self._lane.answer(answer)
        return time.perf_counter() - begun, ended[0]

    def lags(self, text: str, beam: Beam) -> list[int]:
        """After each step but the last: how many tokens of the leading beam may still change."""
        lags: list[int] = []

        def on_step(_settled: list[int], leading: list[int]) -> bool:
            lags.append(len(leading))
            return False

        prompt = self._template.render(
            [Message("user", text)], reserve_tokens=self._new_tokens, chat_template_kwargs={}
        )
        ids = torch.tensor([prompt.ids], device=self._model.device)
        config = self._answers.config(Sampling(temperature=0, strategy=beam), self._new_tokens, len(prompt.ids))
        self._model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config, custom_generate=BeamSearch(on_step)
        )
        return lags[:-1]


def _load(name: str) -> models.Model:
    return models.load(models.prepare(name, cache_dir=None, progress=print))


def measure(bench: Bench, strategies: dict[str, Strategy], rounds: int, told: Callable[[Row], None]) -> list[Row]:
    """Each strategy on the prompts that it is for, in turns with plain decoding."""
    rows: list[Row] = []
    for kind, prompts in (("free prose", PROSE), ("repeats its prompt", REPEATING)):
        suited = {name: each for name, each in strategies.items() if kind == "free prose" or not isinstance(each, Beam)}
        plain: list[float] = []
        rates: dict[str, list[float]] = {name: [] for name in suited}
        ends: dict[str, list[Finished]] = {name: [] for name in suited}
        for text in prompts * rounds:
            plain.append(bench.rate(text, None)[0])
            for name, strategy in suited.items():
                rate, end = bench.rate(text, strategy)
                rates[name].append(rate)
                ends[name].append(end)
        rows.append(Row("plain", kind, round(median(plain), 2), 1.0))
        told(rows[-1])
        for name, strategy in suited.items():
            ratio = median(rate / base for rate, base in zip(rates[name], plain, strict=True))
            row = Row(name, kind, round(median(rates[name]), 2), round(ratio, 2), *_guesses(ends[name]))
            if isinstance(strategy, Beam):
                lags = [lag for text in prompts for lag in bench.lags(text, strategy)]
                row = Row(name, kind, row.tokens_per_s, row.speed_up, lag=round(mean(lags), 2))
            rows.append(row)
            told(row)
    return rows


def _guesses(ends: list[Finished]) -> tuple[float, float]:
    """Tokens a step, and the part of the guesses that was accepted."""
    written, proposed, accepted = (
        sum(getattr(end.usage, name) for end in ends)
        for name in ("completion_tokens", "proposed_tokens", "accepted_tokens")
    )
    return round(written / max(1, written - accepted), 2), round(accepted / proposed, 2) if proposed else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--draft-model", help="a smaller model of the same family")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=60)
    options = parser.parse_args()
    strategies: dict[str, Strategy] = {"beams 2": Beam(2), "beams 4": Beam(4)}
    strategies |= {f"prompt lookup {count}": PromptLookup(count) for count in (5, 10)}
    if options.draft_model:
        strategies["assisted"] = Assisted(options.draft_model)
    print(f"{'strategy':<17} {'prompts':<19} {'tokens/s':>9} {'to plain':>9} {'a step':>7} {'accepted':>9} {'lag':>6}")

    def told(row: Row) -> None:
        cells = ["" if value is None else f"{value}" for value in (row.tokens_per_step, row.accepted, row.lag)]
        print(
            f"{row.strategy:<17} {row.prompts:<19} {row.tokens_per_s:>9} {row.speed_up:>9} "
            f"{cells[0]:>7} {cells[1]:>9} {cells[2]:>6}",
            flush=True,
        )

    bench = Bench(options.model, options.draft_model, options.new_tokens)
    rows = measure(bench, strategies, options.rounds, told)
    print(
        json.dumps(
            {
                "benchmark": "strategies",
                "hardware": hardware(),
                "model": options.model,
                "draft_model": options.draft_model,
                "rounds": options.rounds,
                "new_tokens": options.new_tokens,
                "rows": [asdict(row) for row in rows],
            }
        )
    )


if __name__ == "__main__":
    main()
