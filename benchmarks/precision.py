"""What weights of 8 bits cost and bring: perplexity, speed, memory and the time of loading, beside full weights.

`python -m benchmarks.precision` reads precision.txt with either in a process of its own, in one go and a few tokens
at a time, since these are computed in two ways; then two engines take turns at decoding and at long prompts. A table,
a line for each goal that says whether it is reached, and one JSON line.
"""

import argparse
import gc
import json
import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import psutil

from benchmarks.concurrency import PROMPTS
from benchmarks.hardware import hardware
from benchmarks.sides import Child, InEightBits, Ours, Side
from streaming import models
from streaming.messages import Message

KINDS = {"full": Ours, "int8": InEightBits}
TEXT = Path(__file__).with_name("precision.txt")
FEW_TOKENS = 8  # at a time, as eight people's next tokens are
USERS = (1, 8)
LONG = "Keep in mind all that was said before, be kind and brief, and give an example from everyday life. "
LONG_TIMES = 45  # about a thousand tokens
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model as it lies in memory, and how well it knows the text: read in one go, and a few tokens at a time."""

    load_s: float
    memory_mb: float  # beyond what the process had with its libraries
    peak_mb: float  # the same, at its most
    tokens: int
    perplexity: float
    perplexity_few: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians, in tokens a second: of one and of eight people, all together, and of a long prompt."""

    decode_1: float
    decode_8: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio of int8 to full weights, and what it has to be: at most, or at least."""

    what: str
    ratio: float
    bound: float
    at_most: bool

    @property
    def reached(self) -> bool:
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound

    def __str__(self) -> str:
        wanted = "at most" if self.at_most else "at least"
        return f"{'pass' if self.reached else 'FAIL'}  {self.what}: {self.ratio:.3f} of full, {wanted} {self.bound:.3f}"


def goals(loaded: dict[str, Loaded], speeds: dict[str, Speed]) -> list[Goal]:
    before, after = loaded["full"], loaded["int8"]
    slow, quick = speeds["full"], speeds["int8"]
    return [
        Goal("perplexity, in one go", after.perplexity / before.perplexity, 1.01, True),
        Goal("perplexity, a few tokens at a time", after.perplexity_few / before.perplexity_few, 1.01, True),
        Goal("tokens/s, one user", quick.decode_1 / slow.decode_1, 1.25, False),
        Goal("tokens/s of a prompt", quick.prefill / slow.prefill, 0.9, False),
        Goal("memory", after.memory_mb / before.memory_mb, 1 / 3, True),
    ]


def load(model: str, weights: str, text: str) -> Loaded:
    """In a process of its own."""
    with SPAWN.Pool(1) as pool:
        loaded: Loaded = pool.apply(_load, (model, weights, text))
    return loaded


def _load(model: str, weights: str, text: str) -> Loaded:
    import torch

    import_module("transformers.models.auto.modeling_auto")  # what the library takes is not the model's
    source = models.prepare(model, cache_dir=None, progress=lambda _: None)
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    loaded = models.load(source, weights=weights)
    load_s = time.perf_counter() - start
    gc.collect()
    memory_mb, peak_mb = ((size - before) / 1e6 for size in (psutil.Process().memory_info().rss, _peak_bytes()))
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    whole, few = (perplexity(loaded.model, ids, size) for size in (ids.shape[1], FEW_TOKENS))
    return Loaded(
        round(load_s, 2), round(memory_mb, 1), round(peak_mb, 1), ids.shape[1], round(whole, 3), round(few, 3)
    )


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def perplexity(model: Any, ids: Any, size: int) -> float:
    """Of [1, tokens], read `size` of them at a time."""
    import torch
    from transformers import DynamicCache

    cache, lost = DynamicCache(config=model.config), 0.0
    with torch.inference_mode():
        for start in range(0, ids.shape[1] - 1, size):
            asked = ids[:, start : min(start + size, ids.shape[1] - 1)]
            logits = model(input_ids=asked, cache=cache, use_cache=True).logits[0].float()
            expected = ids[0, start + 1 : start + 1 + asked.shape[1]]
            lost += float(torch.nn.functional.cross_entropy(logits, expected, reduction="sum"))
    return math.exp(lost / (ids.shape[1] - 1))


def speed(sides: Sequence[Side], rounds: int, new_tokens: int) -> dict[str, Speed]:
    """The sides take turns, round by round, after each has warmed up."""
    for side in sides:
        side.ask(_chats(max(USERS)), FEW_TOKENS)
    taken: dict[str, list[tuple[float, ...]]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            taken[side.name].append((*(_decoding(side, users, new_tokens) for users in USERS), _reading(side)))
    return {
        name: Speed(*(round(median(figures), 2) for figures in zip(*rows, strict=True))) for name, rows in taken.items()
    }


def _decoding(side: Side, users: int, new_tokens: int) -> float:
    """Tokens a second of all, of each from its first text on."""
    samples = side.ask(_chats(users), new_tokens)
    return sum((sample.tokens - 1) / (sample.whole_s - sample.first_s) for sample in samples)


def _reading(side: Side) -> float:
    (sample,) = side.ask([[Message("user", f"{uuid4()}. {LONG * LONG_TIMES}")]], 1)
    return (sample.prompt_tokens - sample.cached_tokens) / sample.first_s


def _chats(users: int) -> list[list[Message]]:
    return [[Message("user", prompt)] for prompt in PROMPTS[:users]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=64, help="the model must have about that much to say")
    options = parser.parse_args()
    text = TEXT.read_text(encoding="utf-8")
    loaded = {weights: load(options.model, weights, text) for weights in KINDS}
    sides = [Child(weights, kind, options.model) for weights, kind in KINDS.items()]
    speeds = speed(sides, options.rounds, options.new_tokens)
    for side in sides:
        side.end()
    print(
        f"{'weights':<8} {'perplexity':>11} {'a few at a time':>16} {'tokens/s: 1 user':>17} {'8 users':>8} "
        f"{'a prompt':>9} {'memory MB':>10} {'at its most':>12} {'loaded in s':>12}"
    )
    for weights in KINDS:
        lies, runs = loaded[weights], speeds[weights]
        print(
            f"{weights:<8} {lies.perplexity:>11} {lies.perplexity_few:>16} {runs.decode_1:>17} {runs.decode_8:>8} "
            f"{runs.prefill:>9} {lies.memory_mb:>10} {lies.peak_mb:>12} {lies.load_s:>12}"
        )
    wanted = goals(loaded, speeds)
    print(*wanted, sep="\n")
    print(
        json.dumps(
            {
                "benchmark": "precision",
                "hardware": hardware(),
                "model": options.model,
                "rounds": options.rounds,
                "new_tokens": options.new_tokens,
                "text_tokens": loaded["full"].tokens,
                "rows": [{"weights": weights} | asdict(loaded[weights]) | asdict(speeds[weights]) for weights in KINDS],
                "goals": [asdict(goal) | {"reached": goal.reached} for goal in wanted],
            }
        )
    )


if __name__ == "__main__":
    main()
