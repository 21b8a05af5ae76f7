"""Several tokens in one decode step: somebody guesses how the answer goes on, and the model accepts or rejects it.

Imports torch, so only the inference thread imports it, and everything here runs there. The loop is the library's; it is
only watched, to count what was guessed. What a draft model has read of a conversation is kept for the next turn.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig

from streaming.engines.prompts import PromptReader
from streaming.errors import ModelError
from streaming.models import Model
from streaming.standin import StandIn


class Draft:
    """A small model that guesses for the large one `of`. `cache_bytes` bounds what it keeps of conversations.

    Raises ModelError where the two do not have the same tokens.
    """

    def __init__(self, draft: Model, of: Model, *, cache_bytes: int = 0) -> None:
        _check(draft, of)
        self._context_tokens = draft.context_tokens
        self.model: Any = draft.model
        self._reader = PromptReader(self.model, cache_bytes=cache_bytes)
        self._settings = _own_settings(self.model.generation_config)

    def fits(self, tokens: int) -> bool:
        """Whether so many can be read at all: beyond its context a model guesses nothing that is right, or fails."""
        return tokens <= self._context_tokens

    def read(self, ids: list[int], *, chunk: Callable[[], int], reuse: bool) -> DynamicCache | None:
        """Begin an answer: read most of its prompt, as much at a time as `chunk` says. None where that is too short.

        Each answer begins with the settings as they were: the library counts in them what it has come to guess.
        """
        self.model.generation_config = copy.deepcopy(self._settings)
        cache, known = self._reader.open(ids[:-1], reuse=reuse, recording=True)
        if cache is not None:
            self._reader.read(ids[:-1], cache, known, chunk=chunk, told=lambda _: None)
        return cache if cache is not None and cache.get_seq_length() else None

    def keep(self, ids: list[int], speculation: "Speculation") -> None:
        """End an answer: `ids` are its prompt and what was written. Wrong guesses are not kept."""
        cache, known = speculation.draft_cache, speculation.known
        if cache is not None and self._reader.in_chunks and known:
            cache.crop(min(0, known - cache.get_seq_length()))
            self._reader.keep(ids, cache)


def _check(draft: Model, of: Model) -> None:
    if draft.tokenizer.get_vocab() != of.tokenizer.get_vocab():
        raise ModelError(
            f"{draft.name} cannot draft for {of.name}, because it has another tokenizer. "
            "Choose a smaller model of the same family for --draft-model."
        )
    sizes = [_vocabulary(model) for model in (draft, of)]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"{draft.name} cannot draft for {of.name}, because its vocabulary has {sizes[0]} entries, not {sizes[1]}. "
            "Choose another model of the same family for --draft-model."
        )


def _vocabulary(model: Model) -> int:
    config: Any = model.model.config
    return int(config.get_text_config(decoder=True).vocab_size)


def _own_settings(makers: GenerationConfig) -> GenerationConfig:
    """What the makers say about guessing. How an answer is drawn is for the large model's request to say."""
    names = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
    return GenerationConfig(**{name: getattr(makers, name) for name in names})  # type: ignore[no-untyped-call]


class Speculation:
    """What `generate` takes as its `custom_generate`: its loop for guessed tokens. `on_guess` gets how many there are.

    Without a draft the guesses come from where `generate` is told. `draft_cache` holds a beginning of the prompt, at
    least two tokens less; afterwards more of the conversation, of whose ids it has the first `known` right.
    """

    def __init__(
        self, on_guess: Callable[[int], None], draft: Any = None, draft_cache: DynamicCache | None = None
    ) -> None:
        self._on_guess = on_guess
        self._draft = draft
        self.draft_cache = draft_cache
        self.known = 0

    def __call__(
        self, model: Any, input_ids: torch.Tensor, *, inputs_tensor: torch.Tensor | None = None, **settings: Any
    ) -> Any:
        watched = _Watched(model, self)
        return type(model)._assisted_decoding(
            watched, input_ids, inputs_tensor=inputs_tensor, assistant_model=self._draft, **settings
        )

    def begin(self, generator: Any) -> None:
        """The library has made what guesses."""
        if self.draft_cache is not None:
            generator.assistant_kwargs["cache"] = self.draft_cache

    def guess(self, generator: Any, input_ids: torch.Tensor, **given: Any) -> Any:
        """The next guesses: the ids so far with more behind them, and their logits if a draft has computed any."""
        ids, logits = generator.get_candidates(input_ids, **given)
        self._on_guess(ids.shape[1] - input_ids.shape[1])
        if logits is not None:  # the draft has read all ids so far
            self.known = input_ids.shape[1]
            self.draft_cache = generator.assistant_kwargs["cache"]
        return ids, logits


class _Watched(StandIn):
    def __init__(self, model: Any, speculation: Speculation) -> None:
        super().__init__(model)
        self._speculation = speculation

    def _get_candidate_generator(self, **given: Any) -> Any:
        generator = self.model_behind._get_candidate_generator(**given)
        self._speculation.begin(generator)
        return _Counted(generator, self._speculation)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, next_sequence_length: int | None = None, cache: Any = None, **given: Any
    ) -> Any:
        """The loop's first step would have all ids read, also those that the cache holds: wrong text, no error."""
        if next_sequence_length is None:
            next_sequence_length = input_ids.shape[1] - cache.get_seq_length()
        return self.model_behind.prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, cache=cache, **given
        )


class _Counted:
    """A candidate generator, and what it guesses is counted. Not one of the library's classes, into whose model the
    loop would write its settings."""

    def __init__(self, generator: Any, speculation: Speculation) -> None:
        self._generator = generator
        self._speculation = speculation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def get_candidates(self, input_ids: torch.Tensor, **given: Any) -> Any:
        return self._speculation.guess(self._generator, input_ids, **given)
