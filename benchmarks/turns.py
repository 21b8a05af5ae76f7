"""A conversation of many turns: seconds to the first word of each, when its history is known and when nothing is.

`python -m benchmarks.turns` asks our engine in a process of its own, or with `--base-url URL` any server that speaks
OpenAI's API. Each turn is asked twice: as it is, and with another first word, so that nothing of it can be reused.
A table, then one JSON line.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from uuid import uuid4

from benchmarks.concurrency import PROMPTS
from benchmarks.hardware import hardware
from benchmarks.sides import Child, Ours, Sample, Server, Side
from streaming.messages import Message

PADDING = "Keep in mind all that was said before, be kind and brief, and give an example from everyday life. "
HISTORY_TOKENS = 1500


@dataclass(frozen=True, slots=True)
class Row:
    """One turn: tokens of its prompt, those that were known, seconds to the first text."""

    turn: int
    prompt_tokens: int
    cached_tokens: int
    warm_s: float
    cold_s: float


def measure(side: Side, turns: int, new_tokens: int, rounds: int) -> list[Row]:
    """Medians over so many conversations."""
    side.ask([[Message("user", "Warm up.")]], 8)
    conversations = [_converse(side, turns, new_tokens) for _ in range(rounds)]
    return [
        Row(
            turn,
            round(median(warm.prompt_tokens for warm, _ in both)),
            round(median(warm.cached_tokens for warm, _ in both)),
            round(median(warm.first_s for warm, _ in both), 3),
            round(median(cold.first_s for _, cold in both), 3),
        )
        for turn, both in enumerate(zip(*conversations, strict=True), 1)
    ]


def _converse(side: Side, turns: int, new_tokens: int) -> list[tuple[Sample, Sample]]:
    chat = [Message("user", f"{uuid4()}. {PADDING}{PROMPTS[0]}")]
    taken = []
    for turn in range(1, turns + 1):
        cold = [Message("user", f"{uuid4()}. {chat[0].content}"), *chat[1:]]
        (unknown,) = side.ask([cold], 1)
        (known,) = side.ask([chat], new_tokens)
        taken.append((known, unknown))
        chat += [Message("assistant", known.text), Message("user", PADDING + PROMPTS[turn % len(PROMPTS)])]
    return taken


def _ratios(rows: Sequence[Row]) -> dict[str, float]:
    """The figures that a reader asks for: a long history known to unknown, and the last turn to the second."""
    long = next((row for row in rows if row.prompt_tokens >= HISTORY_TOKENS), rows[-1])
    return {
        "prompt_tokens": long.prompt_tokens,
        "warm_to_cold": round(long.warm_s / long.cold_s, 3),
        "last_to_second": round(rows[-1].warm_s / rows[min(1, len(rows) - 1)].warm_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--base-url", help="a server to measure instead, as http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    options = parser.parse_args()
    side: Side = (
        Server(options.base_url, options.api_key, name=options.base_url)
        if options.base_url
        else Child("ours", Ours, options.model)
    )
    rows = measure(side, options.turns, options.new_tokens, options.rounds)
    side.end()
    print(f"{'turn':>4} {'prompt':>7} {'known':>6} {'warm s':>8} {'cold s':>8}")
    for row in rows:
        print(f"{row.turn:>4} {row.prompt_tokens:>7} {row.cached_tokens:>6} {row.warm_s:>8} {row.cold_s:>8}")
    ratios = _ratios(rows)
    print(
        f"with {ratios['prompt_tokens']:.0f} tokens, warm is {ratios['warm_to_cold']} of cold; "
        f"the last turn takes {ratios['last_to_second']} of the second"
    )
    print(
        json.dumps(
            {
                "benchmark": "turns",
                "hardware": hardware(),
                "model": options.model,
                "side": side.name,
                "rounds": options.rounds,
                "new_tokens": options.new_tokens,
                "rows": [asdict(row) for row in rows],
                **ratios,
            }
        )
    )


if __name__ == "__main__":
    main()
