"""The engines, and the one place that chooses between them. Imports only the one it opens."""

import os

from streaming.config import Config
from streaming.engines.base import Engine, Generation, Status
from streaming.errors import ConfigError

__all__ = ["Engine", "Generation", "Status", "open_engine"]


def open_engine(config: Config) -> Engine:
    """The engine that `config.engine` names. Costs nothing yet: it loads when it is started, or first needed."""
    if config.engine == "scripted":
        from streaming.engines.scripted import ScriptedEngine

        return ScriptedEngine(max_new_tokens=config.max_new_tokens, max_waiting=config.max_waiting)
    if config.engine == "remote":
        from streaming.engines.remote import RemoteEngine

        assert config.base_url is not None  # Config sees to it
        return RemoteEngine(
            config.base_url,
            _key(config.api_key_env),
            None if config.model == Config().model else config.model,
            max_new_tokens=config.max_new_tokens,
            max_waiting=config.max_waiting,
        )
    from streaming.engines.local import LocalEngine

    return LocalEngine(config)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"--api-key-env names {variable}, and there is no such variable in the environment.")
    return key
