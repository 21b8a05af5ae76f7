"""Stream a local language model: from the model's token to the reader's eye.

These are the public names. Importing them loads no torch: what needs it is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming.config import Config
from streaming.engines import open_engine
from streaming.errors import StreamingError
from streaming.events import Event, Finished, Prefill, Queued, ReasoningDelta, TextDelta
from streaming.messages import Message, Sampling

if TYPE_CHECKING:
    from streaming.streamers import IteratorStreamer, PrintStreamer, StreamCallback, generate_stream

_NEED_TORCH = {"IteratorStreamer", "PrintStreamer", "StreamCallback", "generate_stream"}

__all__ = [
    "Config",
    "Event",
    "Finished",
    "IteratorStreamer",
    "Message",
    "Prefill",
    "PrintStreamer",
    "Queued",
    "ReasoningDelta",
    "Sampling",
    "StreamCallback",
    "StreamingError",
    "TextDelta",
    "generate_stream",
    "open_engine",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(import_module("streaming.streamers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
