"""Many people on one model: tokens a second of all together, how long each waits for the first word, and how evenly.

`python -m benchmarks.concurrency --users 1,4,8,16` compares our engine with the textbook pattern; each
`--base-url NAME=URL` adds a server that speaks OpenAI's API (vLLM, transformers serve, llama.cpp, this app). The sides
take turns, round by round; the table has medians, and one JSON line follows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles

from benchmarks.hardware import hardware
from benchmarks.sides import Child, ManyTextbooks, OneByOne, Ours, Sample, Server, Side
from streaming.messages import Message

PROMPTS = (
    "Write a long story about a dragon and a knight.",
    "Explain gravity to a child.",
    "List ten fruits with a description each.",
    "Tell me about Paris.",
    "How do I bake bread?",
    "What is a neural network?",
    "Write a poem about the sea.",
    "Explain how the internet works.",
)
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds: tokens a second of all, seconds to the first text, the slowest user's rate over the
    fastest one's."""

    side: str
    users: int
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    slowest_to_fastest: float


def measure(sides: Sequence[Side], users: Sequence[int], rounds: int, new_tokens: int) -> list[Row]:
    for side in sides:
        side.ask(_chats(max(users)), WARM_UP_TOKENS)
    rows = []
    for count in users:
        taken: dict[str, list[list[Sample]]] = {side.name: [] for side in sides}
        for _ in range(rounds):
            for side in sides:
                taken[side.name].append(side.ask(_chats(count), new_tokens))
        rows += [_row(name, count, samples) for name, samples in taken.items()]
    return rows


def _chats(users: int) -> list[list[Message]]:
    """A question for each; beyond the list, the same ones in other words, that no cache knows from the start on."""
    return [
        [Message("user", f"{'Please! ' * (user // len(PROMPTS))}{PROMPTS[user % len(PROMPTS)]}")]
        for user in range(users)
    ]


def _row(side: str, users: int, rounds: list[list[Sample]]) -> Row:
    def middle(figures: list[float], digits: int) -> float:
        return round(median(figures), digits)

    rates = [[sample.tokens / sample.whole_s for sample in samples] for samples in rounds]
    firsts = [[sample.first_s for sample in samples] for samples in rounds]
    return Row(
        side,
        users,
        middle([sum(s.tokens for s in samples) / max(s.whole_s for s in samples) for samples in rounds], 2),
        middle([median(first) for first in firsts], 3),
        middle([_p95(first) for first in firsts], 3),
        middle([min(rate) / max(rate) for rate in rates], 3),
    )


def _p95(figures: list[float]) -> float:
    return quantiles(figures, n=20, method="inclusive")[-1] if len(figures) > 1 else figures[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--users", default="1,4,8,16", help="how many at once, with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=96, help="the model must have about that much to say")
    parser.add_argument(
        "--base-url", action="append", default=[], help="a server to measure beside, as vLLM=http://127.0.0.1:8000/v1"
    )
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--one-by-one", action="store_true", help="our engine without its batch, too")
    parser.add_argument("--only-server", action="store_true", help="measure nothing but the server")
    options = parser.parse_args()
    if not all("=http" in server for server in options.base_url):
        parser.error("--base-url takes a name and an address: vLLM=http://127.0.0.1:8000/v1")
    users = [int(count) for count in options.users.split(",")]
    sides: list[Side] = []
    if not options.only_server:
        sides += [Child("ours", Ours, options.model), Child("textbook", ManyTextbooks, options.model)]
        if options.one_by_one:
            sides.append(Child("ours, one by one", OneByOne, options.model))
    for server in options.base_url:
        name, _, url = server.partition("=")
        sides.append(Server(url, options.api_key, name=name))
    rows = measure(sides, users, options.rounds, options.new_tokens)
    for side in sides:
        side.end()
    print(f"{'':<28} {'users':>5} {'tokens/s':>9} {'first text s: p50':>18} {'p95':>6} {'slowest/fastest':>16}")
    for row in rows:
        print(
            f"{row.side:<28} {row.users:>5} {row.tokens_per_s:>9} {row.ttft_p50_s:>18} {row.ttft_p95_s:>6} "
            f"{row.slowest_to_fastest:>16}"
        )
    print(
        json.dumps(
            {
                "benchmark": "concurrency",
                "hardware": hardware(),
                "model": options.model,
                "rounds": options.rounds,
                "new_tokens": options.new_tokens,
                "rows": [asdict(row) for row in rows],
            }
        )
    )


if __name__ == "__main__":
    main()
