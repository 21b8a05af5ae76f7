"""A model with some of its methods replaced, for one call of `generate`; the model itself stays as it is.

Knows no method: a subclass overrides the hooks of a decoding loop that it wants to look into. Those are private to
transformers, so that each such subclass has a contract test. Used by the thread that generates.
"""

from typing import Any


class StandIn:
    """Whatever a subclass does not define is the model's. A decoding loop of `generate` takes it for its `self`."""

    def __init__(self, model: Any) -> None:
        self.model_behind = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model_behind, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model_behind(*args, **kwargs)
