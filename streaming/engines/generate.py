"""One answer by transformers' `model.generate`: the prompt in chunks, tokens to events, failures to words.

Imports torch, so only the inference thread imports it, and everything here runs there. Knows neither the queue nor the
chat template. A cancel is effective within one decode step, or one chunk of the prompt.
"""

import copy
import inspect
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from streaming.assembler import Assembler
from streaming.engines.base import Generation
from streaming.engines.decoding import request_config
from streaming.engines.stopwatch import Stopwatch
from streaming.errors import GenerationFailed
from streaming.events import Delta, Finished, FinishReason, Prefill, Usage
from streaming.messages import Sampling
from streaming.models import Model
from streaming.templates import Prompt

CHUNK_TOKENS = 512  # 256 would halve what a cancel waits for in the prompt, and make the prompt a tenth slower
WARM_UP_TOKENS = 2


class GenerateLane:
    """Answers with one model, one request at a time.

    The model's own generation config moves here: `generate` would fill everything that a request leaves out from it,
    also what the request has to be without, as a temperature when it is greedy.
    """

    def __init__(self, model: Model) -> None:
        self._model: Any = model.model  # typed as a module, whose attributes may all be tensors
        self._tokenizer = model.tokenizer
        self._context_tokens = model.context_tokens
        self._defaults = copy.deepcopy(model.model.generation_config)
        self._model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        self._eos_ids = _as_list(self._defaults.eos_token_id) or _as_list(model.tokenizer.eos_token_id)
        self._stops: tuple[str, ...] = tuple(_as_list(self._defaults.stop_strings))
        self._chunks = self._takes_chunks()

    def warm_up(self) -> None:
        """The first answer of a process pays for what it sets up: let it be this one."""
        ids = torch.zeros((1, 8), dtype=torch.long, device=self._model.device)
        config = request_config(self._defaults, self._eos_ids, Sampling(), WARM_UP_TOKENS)
        self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)

    def answer(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        max_new_tokens: int,
        stops: Sequence[str],
        generation: Generation,
        stopwatch: Stopwatch,
    ) -> None:
        """Emit an answer from Prefill to Finished. `stops` end it without a word, `sampling.stop` by name.

        Whatever the model raises is raised, after everything that it had written was emitted.
        """
        room = self._context_tokens - len(prompt.ids)
        config = request_config(self._defaults, self._eos_ids, sampling, min(max_new_tokens, room))
        assembler = Assembler(
            self._tokenizer,
            stops=(*sampling.stop, *stops, *self._stops),
            reasoning_opened=prompt.reasoning_opened,
        )
        tap = _Tap(len(prompt.ids), frozenset(self._eos_ids), assembler, generation, stopwatch)
        try:
            self._generate(prompt, config, sampling.seed, tap, generation)
        finally:
            tap.flush()
        stopped_by = assembler.stopped if assembler.stopped in sampling.stop else None
        usage = Usage(
            prompt_tokens=len(prompt.ids),
            completion_tokens=assembler.tokens,
            dropped_messages=prompt.dropped_messages,
        )
        generation.emit(Finished(tap.reason, usage, stopwatch.timings(), stopped_by))

    def _generate(
        self, prompt: Prompt, config: GenerationConfig, seed: int | None, tap: "_Tap", generation: Generation
    ) -> None:
        ids = torch.tensor([prompt.ids], device=self._model.device)
        generation.emit(Prefill(0, len(prompt.ids)))
        cache = self._prefill(ids, generation)
        if generation.cancelled:
            return
        # An unseeded request gets fresh chance: without, a seeded one would make all that follow it repeatable.
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([tap]),
            **({"cache": cache} if cache is not None else {}),
        )

    def _prefill(self, ids: torch.Tensor, generation: Generation) -> DynamicCache | None:
        """Read a long prompt in chunks, all but its last token: a cache as long as the prompt would give wrong text."""
        total = ids.shape[1]
        if not self._chunks or total - 1 <= CHUNK_TOKENS:
            return None
        cache = self._new_cache()
        with torch.inference_mode():
            for start in range(0, total - 1, CHUNK_TOKENS):
                if generation.cancelled:
                    break
                end = min(start + CHUNK_TOKENS, total - 1)
                self._model(input_ids=ids[:, start:end], cache=cache, use_cache=True, logits_to_keep=1)
                generation.emit(Prefill(end, total))
        return cache

    def _new_cache(self) -> DynamicCache:
        return DynamicCache(config=self._model.config.get_text_config(decoder=True))

    def _takes_chunks(self) -> bool:
        """Only attention can be continued by several tokens at once; recurrent layers take all or one."""
        parameters = inspect.signature(self._model.forward).parameters
        return (
            {"cache", "logits_to_keep"} <= parameters.keys()
            and self._model._supports_default_dynamic_cache()
            and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in self._new_cache().layers)
        )


class _Tap(StoppingCriteria):
    """Sees each token in the decode step that made it, and ends the answer in that same step.

    A streamer gets the token only after the step has decided to go on: a stop string would cost one step more.
    """

    def __init__(
        self,
        prompt_tokens: int,
        eos_ids: frozenset[int],
        assembler: Assembler,
        generation: Generation,
        stopwatch: Stopwatch,
    ) -> None:
        self._seen = prompt_tokens
        self._eos_ids = eos_ids
        self._assembler = assembler
        self._generation = generation
        self._stopwatch = stopwatch
        self._eos = False

    def __call__(self, input_ids: torch.LongTensor, _scores: Any, **_: Any) -> Any:
        done = self._generation.cancelled or self._read(input_ids[0, self._seen :].tolist())
        self._seen = input_ids.shape[1]
        return torch.full((1,), done, dtype=torch.bool, device=input_ids.device)

    def _read(self, ids: list[int]) -> bool:
        self._stopwatch.tick(len(ids))
        for index, token_id in enumerate(ids):
            if token_id in self._eos_ids:
                self._eos = True
                ids = ids[:index]
                break
        self._emit(self._assembler.add(ids))
        return self._eos or self._assembler.stopped is not None

    def flush(self) -> None:
        self._emit(self._assembler.finish())

    def _emit(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._generation.emit(delta)

    @property
    def reason(self) -> FinishReason:
        if self._eos or self._assembler.stopped is not None:
            return "stop"
        return "cancelled" if self._generation.cancelled else "length"


def explained(error: Exception) -> GenerationFailed:
    """What the model raised, in words for a person."""
    # The error may live as long as its conversation, and its frames hold the cache of the answer.
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return GenerationFailed(
            "The memory ran out in the middle of this answer. Start a new conversation or ask for a shorter answer; "
            "if it happens again, choose a smaller model."
        )
    return GenerationFailed(
        f"The model failed in the middle of this answer: {str(error) or type(error).__name__}. You can try again."
    )


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
