"""The strategies by the names that the drawer has for them, which is what the page sends back.

Pure functions; knows no component. Which of them an engine can do is in its status.
"""

import re

from streaming.engines.base import Status
from streaming.errors import InvalidRequest
from streaming.messages import Assisted, Beam, PromptLookup, Strategy
from streaming.models import title

PLAIN = "Plain"
OFFERED_BEAMS = (2, 4)
_NAME = re.compile(
    r"Plain|Beams (?P<beams>\d{1,9})|Prompt lookup(?: (?P<tokens>\d{1,9}))?|Assisted by (?P<draft>.+)", re.DOTALL
)


def offered(engine: Status) -> list[str]:
    """The names of those that can be had."""
    names = [PLAIN]
    if "beam" in engine.strategies:
        names += [name_of(Beam(number)) for number in OFFERED_BEAMS]
    if "prompt_lookup" in engine.strategies:
        names.append(name_of(PromptLookup()))
    if "assisted" in engine.strategies:
        names.append(name_of(Assisted(title(engine.draft))))
    return names


def guesses(engine: Status) -> bool:
    """Whether one of them makes guesses."""
    return bool({"prompt_lookup", "assisted"} & set(engine.strategies))


def named(name: str) -> Strategy | None:
    """The strategy of this name. Raises InvalidRequest if there is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidRequest(f"There is no strategy {name!r}: choose one from the list in the settings.", "strategy")
    if found["beams"]:
        return Beam(int(found["beams"]))
    if found["draft"]:
        return Assisted(found["draft"])
    if name == PLAIN:
        return None
    return PromptLookup(int(found["tokens"])) if found["tokens"] else PromptLookup()


def name_of(strategy: Strategy | None) -> str:
    match strategy:
        case None:
            return PLAIN
        case Beam(number):
            return f"Beams {number}"
        case PromptLookup(number):
            return "Prompt lookup" if strategy == PromptLookup() else f"Prompt lookup {number}"
        case Assisted(model):
            return f"Assisted by {model}"
