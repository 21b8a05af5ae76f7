"""The one place that chooses between engines."""

from streaming.config import Config
from streaming.engines import open_engine
from streaming.engines.local import LocalEngine
from streaming.engines.scripted import ScriptedEngine
from streaming.events import Finished
from streaming.messages import Message


def test_the_engine_that_the_settings_name() -> None:
    assert isinstance(open_engine(Config()), LocalEngine)
    assert isinstance(open_engine(Config(engine="scripted")), ScriptedEngine)


def test_the_settings_reach_it() -> None:
    engine = open_engine(Config(engine="scripted", max_new_tokens=3))
    *_, last = engine.stream([Message("user", "/say 50 tokens at 1000 tok/s")])
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.completion_tokens) == ("length", 3)
    engine.close()
    assert open_engine(Config(model="org/name")).status().model == "org/name"
