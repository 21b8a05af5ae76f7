"""The engines, and the one place that chooses between them. Imports only the one it opens."""

from streaming.config import Config
from streaming.engines.base import Engine, Generation, Status

__all__ = ["Engine", "Generation", "Status", "open_engine"]


def open_engine(config: Config) -> Engine:
    """The engine that `config.engine` names. Costs nothing yet: it loads when it is started, or first needed."""
    if config.engine == "scripted":
        from streaming.engines.scripted import ScriptedEngine

        return ScriptedEngine(max_new_tokens=config.max_new_tokens, max_waiting=config.max_waiting)
    from streaming.engines.local import LocalEngine

    return LocalEngine(config)
