"""The engines, and the one place that chooses between them. Imports only the one it opens."""

from streaming.config import Config
from streaming.engines.base import Engine, Generation, Status

__all__ = ["Engine", "Generation", "Status", "open_engine"]


def open_engine(config: Config) -> Engine:
    """Start the engine that `config.engine` names. Returns at once: a model loads while the page is already up."""
    if config.engine == "scripted":
        from streaming.engines.scripted import ScriptedEngine

        return ScriptedEngine()
    from streaming.engines.local import LocalEngine

    return LocalEngine(config)
