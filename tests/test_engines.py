"""The one place that chooses between engines."""

import pytest

from streaming.config import Config
from streaming.engines import open_engine
from streaming.engines.local import LocalEngine
from streaming.engines.remote import RemoteEngine
from streaming.engines.scripted import ScriptedEngine
from streaming.errors import ConfigError, EngineBusy
from streaming.events import Finished
from streaming.messages import Message
from tests.fake_server import FakeServer, chunk
from tests.serving import Served


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


def test_a_remote_one_is_asked_with_the_key_that_a_variable_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeServer([[chunk("So."), chunk(finish="stop")]])
    served = Served(fake.app())
    config = Config(engine="remote", base_url=f"{served.url}/v1", api_key_env="GPU_KEY", model="org/name")
    with pytest.raises(ConfigError, match="--api-key-env names GPU_KEY, and there is no such variable"):
        open_engine(config)
    monkeypatch.setenv("GPU_KEY", "s3cret")
    engine = open_engine(config)
    assert isinstance(engine, RemoteEngine)
    *_, last = engine.stream([Message("user", "Hello")])
    assert isinstance(last, Finished)
    assert fake.asked[0]["model"] == "org/name"
    assert fake.headers[0]["authorization"] == "Bearer s3cret"
    engine.close()
    served.close()


def test_without_a_name_the_server_chooses_the_model() -> None:
    served = Served(FakeServer().app())
    engine = open_engine(Config(engine="remote", base_url=f"{served.url}/v1"))
    assert engine.wait_ready(60).model == "m"
    engine.close()
    served.close()
