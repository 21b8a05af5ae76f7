"""What a ScriptedEngine plays: steps, and the script that demonstrates the page and obeys directives.

Knows no engine: a script is a function from messages to steps. Words are its tokens, white space after them included.
"""

import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from streaming.messages import Message

PACE = 30.0  # tokens per second: a small model on a few cores


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """Take `seconds` for the prompt, with as many Prefill events as there are `chunks`. Only before the first token."""

    seconds: float
    chunks: int = 8


@dataclass(frozen=True, slots=True)
class Say:
    """Answer, one word a decode step."""

    text: str
    tokens_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Think:
    """Reason, one word a decode step; its opening and its closing tag are one each."""

    text: str
    tokens_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause. A cancel ends it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """A pause until somebody sets `until`. A cancel ends it."""

    until: threading.Event


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise, as a model does in the middle of an answer."""

    message: str


Step = ReadPrompt | Say | Think | Wait | Hold | Fail
Script = Callable[[Sequence[Message]], Iterable[Step]]


def words(text: str) -> list[str]:
    """The text's words, each with the white space after it: joined, they are the text."""
    return re.findall(r"\S+\s*|^\s+", text)


def looked_up(before: Sequence[str], most: int) -> list[str]:
    """A guess at the next words, by prompt lookup: those that followed the last one where it came before."""
    for place in range(len(before) - 2, -1, -1):
        if before[place] == before[-1]:
            return list(before[place + 1 : place + 1 + most])
    return []


def demo(messages: Sequence[Message]) -> Iterator[Step]:
    """Answer with a page of Markdown at 30 tokens/s, or as the first lines of the last user message direct:

    /wait 3                      read the prompt for three seconds, with progress
    /think 2s                    think for two seconds before the answer
    /say 500 tokens at 200 tok/s words without a meaning, exactly so many
    /pace 100                    that many tokens/s for whatever follows
    /fail after 3                fail after the third token of the answer
    /text                        say all that follows this line, as it stands
    """
    last = next(message.content for message in reversed(messages) if message.role == "user")
    orders = _read_orders(last)
    if orders.wait_s:
        yield ReadPrompt(orders.wait_s)
    if orders.think_s:
        yield Think("".join(_filler(max(1, round(orders.think_s * orders.pace)), THOUGHT)), orders.pace)
    said = words(ANSWER if orders.text is None else orders.text)
    if orders.tokens is not None:
        said = list(_filler(orders.tokens, FILLER))
    yield Say("".join(said[: orders.fail_after]), orders.pace)
    if orders.fail_after is not None:
        yield Fail("the script says so")


@dataclass(frozen=True, slots=True)
class _Orders:
    wait_s: float = 0.0
    think_s: float = 0.0
    tokens: int | None = None
    pace: float = PACE
    fail_after: int | None = None
    text: str | None = None


_NUMBER = r"(\d+(?:\.\d+)?)"
_DIRECTIVE = re.compile(
    rf"/wait {_NUMBER} ?s?|/think {_NUMBER} ?s?|/say (\d+)(?: tokens)?(?: at {_NUMBER} tok/s)?"
    rf"|/pace {_NUMBER}(?: tok/s)?|/fail(?: after (\d+))?|/text"
)


def _read_orders(message: str) -> _Orders:
    orders, rest = _Orders(), message
    while found := _DIRECTIVE.fullmatch((line := rest.partition("\n"))[0].strip()):
        rest = line[2]
        wait, think, say, say_pace, pace, fail = found.groups()
        if wait:
            orders = replace(orders, wait_s=float(wait))
        elif think:
            orders = replace(orders, think_s=float(think))
        elif say:
            orders = replace(orders, tokens=int(say), pace=float(say_pace or 0) or orders.pace)
        elif pace:
            orders = replace(orders, pace=float(pace) or PACE)
        elif found[0].startswith("/fail"):
            orders = replace(orders, fail_after=int(fail or 0))
        else:
            return replace(orders, text=rest)
    return orders


def _filler(count: int, text: str) -> Iterator[str]:
    return islice(cycle(words(text)), count)


FILLER = "one two three four five six seven eight nine ten "
THOUGHT = (
    "The question is short, so the answer should be short as well. What would help most? An overview first, then a "
    "list, something in code, and a table to compare. I should keep to plain words, and say what I am not sure of. "
)
ANSWER = '''\
This answer is **played from a script**: no model is running. It shows what a streamed answer looks like while it \
grows, word by word.

### What to look at

1. The first words appear at once, and the rest follows without a jump.
2. *Stop* ends it within one step; what has been said stays.
3. A reload in the middle finds the answer again.

```python
def greet(name: str) -> str:
    """Code keeps its indentation and gets its colours."""
    return f"Hello, {name}!"
```

| part | does |
|---|---|
| engine | turns messages into events |
| run | keeps the events for whoever looks |
| page | shows them |

Mathematics is set as it arrives: $e^{i\\pi} + 1 = 0$. Text of any kind comes through whole: 你好, مرحبا, 👋🏽.

> Write `/say 500 tokens at 100 tok/s`, `/think 3s`, `/wait 4` or `/fail after 10` to direct the next answer.
'''
