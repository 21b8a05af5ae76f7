"""The one place that chooses between engines."""

import pytest

from streaming.config import Config
from streaming.engines import open_engine
from streaming.engines.local import LocalEngine
from streaming.engines.scripted import ScriptedEngine
from streaming.errors import EngineBusy
from streaming.events import Finished
from streaming.messages import Message


def test_the_engine_that_the_settings_name() -> None:
    assert isinstance(open_engine(Config()), LocalEngine)
    assert isinstance(open_engine(Config(engine="scripted")), ScriptedEngine)


def test_the_settings_reach_it() -> None:
    engine = open_engine(Config(engine="scripted", max_new_tokens=3, max_waiting=1))
    *_, last = engine.stream([Message("user", "/say 50 tokens at 1000 tok/s")])
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.completion_tokens) == ("length", 3)
    engine.stream([Message("user", "/wait 60")])
    with pytest.raises(EngineBusy):
        [engine.stream([Message("user", "/wait 60")]) for _ in range(3)]
    engine.close()
    assert open_engine(Config(model="org/name")).status().model == "org/name"
