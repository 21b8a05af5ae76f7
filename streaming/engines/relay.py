"""Hands one answer of a server on: from its pieces to the events of a generation.

Knows no connection: it is given pieces, and says when no more are wanted. Runs on the engine's event loop.
"""

from dataclasses import replace

from streaming.engines.base import Generation
from streaming.engines.server import Piece
from streaming.engines.stopwatch import Stopwatch
from streaming.engines.transcript import Transcript
from streaming.errors import GenerationFailed
from streaming.events import Delta, Finished, FinishReason, Usage
from streaming.messages import Sampling

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "eos": "stop",  # as some servers call it
    "tool_calls": "stop",
    "function_call": "stop",
}


class Relay:
    """`begun`: some of the answer has come. `ended`: the server, or a stop string, has ended it.

    `dropped_messages` were not sent, and `model` is whom they were sent to.
    """

    def __init__(
        self, sampling: Sampling, generation: Generation, stopwatch: Stopwatch, *, goes_on: bool = False
    ) -> None:
        self._generation = generation
        self._stopwatch = stopwatch
        self._transcript = Transcript(sampling.stop, begun=goes_on)
        self._finish: str | None = None
        self._stopped_by: str | None = None
        self._usage: Usage | None = None
        self.begun = False
        self.dropped_messages = 0
        self.model = ""

    @property
    def ended(self) -> bool:
        return self._finish is not None or self._transcript.stopped is not None

    def read(self, piece: Piece) -> bool:
        """One more piece. Says whether to go on reading.

        After a stop string one piece more is read: a server that has seen it too ends there and tells the usage; one
        that goes on is hung up on.
        """
        self._usage = piece.usage or self._usage
        if piece.finish is not None:
            self._finish, self._stopped_by = piece.finish, piece.stopped_by
        if not (piece.text or piece.reasoning):
            return not self._generation.cancelled
        if self._transcript.stopped is not None:
            return False
        self.begun = True
        self._stopwatch.tick()
        self._transcript.tokens += 1
        if piece.reasoning:
            self._emit(self._transcript.add(piece.reasoning, reasoning=True))
        if piece.text:
            self._emit(self._transcript.add(piece.text))
        return not self._generation.cancelled

    def flush(self) -> None:
        """Hand out what was withheld, whether the answer has ended well or not."""
        self._emit(self._transcript.finish())

    def finish(self) -> None:
        """End, after a `flush`. Raises GenerationFailed if the answer has not really ended."""
        reason = self._reason
        pieces = self._transcript.tokens
        usage = self._usage or Usage(completion_tokens=pieces)
        usage = replace(usage, dropped_messages=usage.dropped_messages + self.dropped_messages)
        timings = self._stopwatch.timings()
        if pieces > 1 and usage.completion_tokens > 1:  # a piece may be several tokens, and a token no piece
            speed = timings.decode_tps * (usage.completion_tokens - 1) / (pieces - 1)
            timings = replace(timings, decode_tps=speed)
        stopped_by = self._transcript.stopped or self._stopped_by
        self._generation.emit(Finished(reason, usage, timings, stopped_by, self.model))

    @property
    def _reason(self) -> FinishReason:
        if self._transcript.stopped is not None:
            return "stop"
        if self._finish in _REASONS:
            return _REASONS[self._finish]
        if self._generation.cancelled:
            return "cancelled"
        if self._finish is None:
            raise GenerationFailed("The connection to the server ended in the middle of this answer.")
        raise GenerationFailed(f"The server broke this answer off: {self._finish}.")

    def _emit(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._generation.emit(delta)
