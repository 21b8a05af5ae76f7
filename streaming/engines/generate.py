"""The lane of one answer at a time, by transformers' `model.generate`: the prompt in chunks, then its tokens.

Imports torch, so only the inference thread imports it, and everything here runs there. Knows neither the queue nor the
chat template. A cancel is effective within one decode step, or one chunk of the prompt.
"""

import traceback
from functools import partial
from typing import Any

import torch

from streaming.engines.answers import Answer, Answers
from streaming.engines.prompts import PromptReader
from streaming.engines.speculation import Draft
from streaming.engines.strategies import Decoder, Others
from streaming.errors import GenerationFailed
from streaming.messages import Assisted, PromptLookup, Sampling
from streaming.models import Model

CHUNK_TOKENS = 512  # 256 would halve what a cancel waits for in the prompt, and make the prompt a tenth slower
SMALL_CHUNK_TOKENS = 128  # while others wait for their next token
WARM_UP_TOKENS = 2


def nobody() -> bool:
    """Nobody else is being answered."""
    return False


class GenerateLane:
    """Answers with one model, one request at a time, a `draft` guessing for it where a request asks for that.

    `cache_bytes` bounds what it keeps of earlier conversations.
    """

    def __init__(self, model: Model, answers: Answers, *, draft: Draft | None = None, cache_bytes: int = 0) -> None:
        self._model: Any = model.model  # typed as a module, whose attributes may all be tensors
        self._repeatable = rounds_finely(model)
        self._answers = answers
        self._prompts = PromptReader(self._model, cache_bytes=cache_bytes)
        self._decoder = Decoder(self._model, draft)

    @property
    def can_guess(self) -> bool:
        """Whether tokens can be taken back that were guessed wrongly. Recurrent layers cannot."""
        return self._prompts.in_chunks

    @property
    def strategies(self) -> tuple[str, ...]:
        """Those that an answer may ask for, by their names."""
        guesses = ("prompt_lookup", "assisted") if self._decoder.drafts else ("prompt_lookup",)
        return ("beam", *guesses) if self.can_guess else ("beam",)

    def warm_up(self) -> None:
        """The first answer of a process pays for what it sets up: let it be this one."""
        ids = torch.zeros((1, 8), dtype=torch.long, device=self._model.device)
        config = self._answers.config(Sampling(), WARM_UP_TOKENS)
        self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)

    def answer(self, answer: Answer, *, others: Others = nobody) -> None:
        """Emit an answer from Prefill to Finished. What is known of the prompt is not computed again.

        `others` is called between any two tokens or chunks: it makes one step for whoever else is being answered, and
        says whether there is anybody. Whatever the model raises is raised, after everything that it had written was
        emitted.
        """
        cached_tokens = 0
        try:
            cached_tokens = self._generate(answer, others)
        finally:
            answer.flush()
        answer.finish(cached_tokens)

    def _generate(self, answer: Answer, others: Others) -> int:
        answer.prefilled(0)
        exact = answer.seed is not None and not self._repeatable
        chunk = partial(_next_chunk, answer, others, exact)
        guessing = isinstance(answer.strategy, PromptLookup | Assisted)
        cache, cached_tokens = self._prompts.open(answer.ids, reuse=not exact, recording=guessing)
        if cached_tokens:
            answer.prefilled(cached_tokens)
        if cache is not None:
            self._prompts.read(answer.ids, cache, cached_tokens, chunk=chunk, told=answer.prefilled)
        written: list[int] = []
        if not answer.generation.cancelled:
            # An unseeded request gets fresh chance: without, a seeded one would make all that follow it repeatable.
            if answer.seed is None:
                torch.seed()
            else:
                torch.manual_seed(answer.seed)
            written = self._decoder.decode(answer, cache, others=others, chunk=chunk, reuse=not exact)
        if cache is not None:
            self._prompts.keep(answer.ids + written, cache)
        return cached_tokens


def _next_chunk(answer: Answer, others: Others, exact: bool) -> int:
    """How much of a prompt is read next, before others have their turn; 0 after a cancel."""
    if answer.generation.cancelled:
        return 0
    return SMALL_CHUNK_TOKENS if others() and not exact else CHUNK_TOKENS


def rounds_finely(model: Model) -> bool:
    """Whether a seed gives the same text although sums are rounded otherwise, in other chunks or beside others.

    Layers of 8 bits compute a few rows in half precision and many in full.
    """
    return model.model.dtype in (torch.float32, torch.float64) and not model.int8


def explained(error: BaseException) -> GenerationFailed:
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
