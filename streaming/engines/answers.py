"""One answer of a model, whichever way its tokens are made: what it is to be, and from ids to events.

Imports transformers, so only the inference thread imports it, and everything here runs there. Knows no lane: a lane
reads `ids` and `config`, tells what it has read of the prompt and which ids came out, and ends with `finish`.
"""

import copy
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from transformers import GenerationConfig

from streaming.assembler import Assembler
from streaming.engines.base import Generation
from streaming.engines.decoding import request_config
from streaming.engines.stopwatch import Stopwatch
from streaming.events import Delta, Finished, FinishReason, Prefill, Tentative, Usage
from streaming.messages import Sampling
from streaming.models import Model
from streaming.templates import Prompt


class Answer:
    """`config` says how it is drawn and when it ends, `strategy` how its tokens are found; `seed` is None where chance
    is to be fresh each time."""

    def __init__(
        self,
        model: str,
        prompt: Prompt,
        sampling: Sampling,
        config: GenerationConfig,
        eos_ids: frozenset[int],
        assembler: Assembler,
        generation: Generation,
        stopwatch: Stopwatch,
    ) -> None:
        self.ids = prompt.ids
        self.config = config
        self.seed = sampling.seed
        self.strategy = sampling.strategy
        self.generation = generation
        self._model = model
        self._dropped_messages = prompt.dropped_messages
        self._stops = sampling.stop
        self._eos_ids = eos_ids
        self._assembler = assembler
        self._stopwatch = stopwatch
        self._eos = False
        self._proposed_tokens = 0
        self._tentative = Tentative()

    @property
    def max_new_tokens(self) -> int:
        config: Any = self.config
        return int(config.max_new_tokens)

    def prefilled(self, done: int) -> None:
        """The model has read `done` tokens of the prompt, and has said nothing yet."""
        self.generation.emit(Prefill(done, len(self.ids)))

    def read(self, ids: list[int], guessed: int = 0) -> bool:
        """More ids have come out of the model, the first `guessed` of them proposed by a draft.

        Says whether the answer is over: nothing after that is wanted.
        """
        if ids:
            self._stopwatch.tick(len(ids))
        said = self._before_end(ids)
        self._eos = self._eos or len(said) < len(ids)
        self._emit(self._assembler.add(said, guessed))
        return self.over

    def propose(self, tokens: int) -> None:
        """A draft has guessed so many tokens for the next step."""
        self._proposed_tokens += tokens

    def lean(self, ids: list[int]) -> None:
        """The best of several answers goes on like this, after all that was read. Another may still overtake it."""
        tentative = self._assembler.preview(self._before_end(ids))
        if tentative != self._tentative:
            self.generation.emit(tentative)
            self._tentative = tentative

    def _before_end(self, ids: list[int]) -> list[int]:
        return list(takewhile(lambda token_id: token_id not in self._eos_ids, ids))

    @property
    def over(self) -> bool:
        """Ended, of itself or by a cancel."""
        ended = self._eos or self._assembler.stopped is not None or self._assembler.tokens >= self.max_new_tokens
        return ended or self.generation.cancelled

    def flush(self) -> None:
        """Hand out what was withheld, whether the answer has ended well or not."""
        self._emit(self._assembler.finish())
        if self._tentative:
            self._tentative = Tentative()
            self.generation.emit(self._tentative)

    def finish(self, cached_tokens: int) -> None:
        """End, after a `flush`. `cached_tokens` of the prompt did not have to be computed."""
        stopped = self._assembler.stopped
        usage = Usage(
            prompt_tokens=len(self.ids),
            cached_tokens=cached_tokens,
            completion_tokens=self._assembler.tokens,
            dropped_messages=self._dropped_messages,
            proposed_tokens=self._proposed_tokens,
            accepted_tokens=self._assembler.accepted,
        )
        stopped_by = stopped if stopped in self._stops else None
        self.generation.emit(Finished(self._reason, usage, self._stopwatch.timings(), stopped_by, self._model))

    @property
    def _reason(self) -> FinishReason:
        if self._eos or self._assembler.stopped is not None:
            return "stop"
        return "cancelled" if self.generation.cancelled else "length"

    def _emit(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.generation.emit(delta)
            self._tentative = Tentative()  # a delta takes it back


class Answers:
    """Opens the answers of one model.

    The model's own generation config moves here: `generate` would fill everything that a request leaves out from it,
    also what the request has to be without, as a temperature when it is greedy.
    """

    def __init__(self, model: Model) -> None:
        loaded: Any = model.model  # typed as a module, whose attributes may all be tensors
        self._name = model.name
        self._tokenizer = model.tokenizer
        self._context_tokens = model.context_tokens
        self._defaults = copy.deepcopy(loaded.generation_config)
        loaded.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        self._eos_ids = _as_list(self._defaults.eos_token_id) or _as_list(model.tokenizer.eos_token_id)
        self._stops: tuple[str, ...] = tuple(_as_list(self._defaults.stop_strings))

    def config(self, sampling: Sampling, max_new_tokens: int, prompt_tokens: int = 0) -> GenerationConfig:
        """How an answer is drawn and when it ends: it never leaves the context."""
        room = self._context_tokens - prompt_tokens
        return request_config(self._defaults, self._eos_ids, sampling, min(max_new_tokens, room))

    def open(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        max_new_tokens: int,
        stops: Sequence[str],
        generation: Generation,
        stopwatch: Stopwatch,
    ) -> Answer:
        """Begin an answer. `stops` end it without a word, `sampling.stop` by name."""
        config = self.config(sampling, max_new_tokens, len(prompt.ids))
        assembler = Assembler(
            self._tokenizer,
            stops=(*sampling.stop, *stops, *self._stops),
            reasoning_opened=prompt.reasoning_opened,
            after=prompt.ids if prompt.within else (),
            within=prompt.within,
        )
        eos_ids = frozenset(self._eos_ids)
        return Answer(self._name, prompt, sampling, config, eos_ids, assembler, generation, stopwatch)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
