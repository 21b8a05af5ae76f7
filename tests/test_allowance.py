"""What one visitor may ask for in a while, where anybody can come."""

import re
import time

import pytest

from streaming.allowance import Allowance
from streaming.chats import Chats
from streaming.config import OPEN_REQUESTS, OPEN_TOKENS, Config
from streaming.conversation import Settings
from streaming.errors import ConfigError, EngineBusy, InvalidRequest
from streaming.events import Finished, TextDelta
from tests.puppet import Puppet


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which it is later than it is: `clock[0] += 60`."""
    later, now = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + later[0])
    return later


def refused(allowance: Allowance, owner: str) -> str:
    with pytest.raises(EngineBusy) as caught:
        allowance.admit(owner)
    return str(caught.value)


def test_so_many_a_minute_and_each_for_themselves(clock: list[float]) -> None:
    allowance = Allowance(requests_per_minute=3)
    for _ in range(3):
        allowance.admit("ann")
    told = re.fullmatch(
        r"You have asked 3 times within a minute\. Ask again in (\d+) seconds\.", refused(allowance, "ann")
    )
    assert told is not None
    assert 0 < int(told[1]) <= 60
    allowance.admit("bob")
    clock[0] += 121
    allowance.admit("ann")


def test_the_answer_that_goes_beyond_the_tokens_is_the_last_one(clock: list[float]) -> None:
    allowance = Allowance(tokens_per_hour=100)
    allowance.charge("ann", 60)
    allowance.admit("ann")
    allowance.charge("ann", 500)
    assert "100 tokens for an hour are used up" in refused(allowance, "ann")
    assert re.search(r"again in \d+ (minutes|seconds)", refused(allowance, "ann"))
    allowance.admit("bob")
    clock[0] += 7201
    allowance.admit("ann")


def test_without_limits_there_are_none() -> None:
    allowance = Allowance()
    for _ in range(1000):
        allowance.admit("ann")
        allowance.charge("ann", 10**6)


def test_a_refused_message_changes_nothing_and_one_that_cannot_be_answered_costs_nothing() -> None:
    engine = Puppet()
    chats = Chats(engine, allowance=Allowance(2, 10))
    chat = chats.send("ann", "", "a", Settings()).conversation_id
    engine.generations[-1].emit(TextDelta("A", 10))
    engine.generations[-1].emit(Finished("stop"))
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            chats.send("ann", chat, " ", Settings())
    with pytest.raises(EngineBusy, match="10 tokens"):
        chats.send("ann", chat, "b", Settings())
    assert [node.message.content for node in chats.snapshot("ann", chat).nodes] == ["a", "A"]
    assert len(engine.asked) == 1
    chats.send("bob", "", "b", Settings())


def test_limits_are_on_where_anybody_can_come() -> None:
    assert Config().limits == (0, 0)
    assert Config(share=True, public=True).limits == (OPEN_REQUESTS, OPEN_TOKENS)
    assert Config(host="0.0.0.0", public=True, requests_per_minute=0).limits == (0, OPEN_TOKENS)
    assert Config(tokens_per_hour=5).limits == (0, 5)
    login = Config.load(["--share", "--auth-file", "any", "--requests-per-minute", "4"], {})
    assert login.limits == (4, 0)
    with pytest.raises(ConfigError, match="--tokens-per-hour is -1"):
        Config(tokens_per_hour=-1)
