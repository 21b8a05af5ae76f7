"""What a streamed answer costs the page, under a short and a long history: the server's work, the browser's frames.

`python -m benchmarks.page_cost` serves our page and the tutorials' (see page_server.py) to a real browser, prints a
table, then one JSON line.
"""

import argparse
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass
from itertools import cycle, islice, pairwise

import psutil
from playwright.sync_api import Browser

from benchmarks.hardware import hardware
from benchmarks.page_server import serve
from streaming.engines.script import words
from tests.browser.chromium import launched
from tests.browser.server import free_port

PARAGRAPH = (
    "A *tokenizer* works on bytes, so one emoji can be spread over several tokens:\n\n"
    "- hold back **incomplete** characters\n- and nothing else\n\n"
    "```python\nfor token in stream:\n    print(token, end='')\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
)
END = "THE-END"
WATCH = """end => {
    const frames = window.frameTimes = [];
    window.endedAt = 0;
    const look = now => {
        frames.push(now);
        if (!window.endedAt) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
    const timer = setInterval(() => {
        const last = [...document.querySelectorAll('.message-row')].at(-1);
        if (last && last.textContent.includes(end)) { window.endedAt = Date.now() / 1000; clearInterval(timer); }
    }, 20);
}"""


@dataclass(frozen=True, slots=True)
class Cost:
    """One answer: milliseconds of server CPU for each update, frames a second, the longest gap between two frames, and
    the seconds from the model's end to the end on the page."""

    page: str
    history: int
    server_ms_per_update: float
    frames_per_s: float
    longest_gap_ms: float
    lag_s: float


def measure(browser: Browser, kind: str, history: int, tokens: int, rate: float) -> Cost:
    """One answer of `tokens` words at `rate` a second under `history` messages, in a fresh server and a fresh tab."""
    said = [*islice(cycle(words(PARAGRAPH)), tokens - 1), END]
    here, there = multiprocessing.Pipe()
    port = free_port()
    arguments = (kind, [PARAGRAPH] * history, said, rate, port, there)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=arguments, daemon=True)
    server.start()
    assert here.recv() == "up"
    tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    try:
        tab.goto(f"http://127.0.0.1:{port}/")
        tab.wait_for_selector("#composer textarea")
        if history:
            tab.wait_for_function("n => document.querySelectorAll('.message-row').length >= n", arg=history)
        tab.wait_for_timeout(2_000)  # the page's own start is not what is measured
        process = psutil.Process(server.pid)
        before = process.cpu_times()
        tab.evaluate(WATCH, END)
        tab.fill("#composer textarea", "go")
        tab.keyboard.press("Enter")
        model_ended = here.recv()
        tab.wait_for_function("window.endedAt > 0", timeout=120_000, polling=100)
        page_ended = tab.evaluate("window.endedAt")
        after = process.cpu_times()
        frames = tab.evaluate("window.frameTimes")
        here.send("updates")
        updates = here.recv()
    finally:
        tab.context.close()
        server.kill()
        server.join()
    spent_s = after.user + after.system - before.user - before.system
    gaps = [later - earlier for earlier, later in pairwise(frames)]
    return Cost(
        kind,
        history,
        round(1000 * spent_s / updates, 2),
        round(1000 * len(gaps) / (frames[-1] - frames[0]), 1),
        round(max(gaps), 1),
        round(page_ended - model_ended, 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", default="0,50,200", help="numbers of messages above the answer")
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=200.0, help="tokens per second")
    options = parser.parse_args()
    costs = []
    started = time.monotonic()
    print(f"{'page':<14} {'history':>7} {'server ms/update':>17} {'frames/s':>9} {'longest gap ms':>15} {'lag s':>6}")
    with launched() as browser:
        for history in map(int, options.history.split(",")):
            for kind in ("ours", "whole history"):
                cost = measure(browser, kind, history, options.tokens, options.rate)
                costs.append(cost)
                print(
                    f"{cost.page:<14} {cost.history:>7} {cost.server_ms_per_update:>17} {cost.frames_per_s:>9} "
                    f"{cost.longest_gap_ms:>15} {cost.lag_s:>6}",
                    flush=True,
                )
    settings = {"tokens": options.tokens, "tokens_per_s": options.rate, "took_s": round(time.monotonic() - started)}
    print(json.dumps({"benchmark": "page_cost", "hardware": hardware()} | settings | {"rows": [*map(asdict, costs)]}))


if __name__ == "__main__":
    main()
