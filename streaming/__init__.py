"""Stream a local language model: from the model's token to the reader's eye.

These are the public names. Importing them loads no torch: what needs it is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming.config import Config
from streaming.engines import open_engine
from streaming.errors import StreamingError
from streaming.events import Event, Finished, Prefill, Queued, ReasoningDelta, Tentative, TextDelta
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling

if TYPE_CHECKING:
    from streaming.pipelines import pipeline
    from streaming.streamers import BeamStreamer, IteratorStreamer, PrintStreamer, StreamCallback, generate_stream

_NEED_TORCH = {
    "BeamStreamer": "streaming.streamers",
    "IteratorStreamer": "streaming.streamers",
    "PrintStreamer": "streaming.streamers",
    "StreamCallback": "streaming.streamers",
    "generate_stream": "streaming.streamers",
    "pipeline": "streaming.pipelines",
}

__all__ = [
    "Assisted",
    "Beam",
    "BeamStreamer",
    "Config",
    "Event",
    "Finished",
    "IteratorStreamer",
    "Message",
    "Prefill",
    "PrintStreamer",
    "PromptLookup",
    "Queued",
    "ReasoningDelta",
    "Sampling",
    "StreamCallback",
    "StreamingError",
    "Tentative",
    "TextDelta",
    "generate_stream",
    "open_engine",
    "pipeline",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(import_module(_NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
