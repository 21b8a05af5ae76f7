"""From a request's Sampling to the GenerationConfig of its `generate` call.

Imports transformers, so only the inference thread imports it. Knows no model: it is given what its makers set.
"""

import copy
from typing import Any

from transformers import GenerationConfig

from streaming.messages import Beam, PromptLookup, Sampling, Strategy

GREEDY_BELOW = 1e-5  # logits divided by less overflow, and sampling from them is greedy long before


def request_config(
    defaults: GenerationConfig, eos_ids: list[int], sampling: Sampling, max_new_tokens: int
) -> GenerationConfig:
    """Everything that `generate` needs to know. What `sampling` leaves open is as the model's makers set it.

    Expects that the model's own generation config is empty: `generate` fills every None from there.
    """
    config = copy.deepcopy(defaults)
    settings: Any = config
    settings.max_new_tokens, settings.max_length = max_new_tokens, None
    settings.eos_token_id = eos_ids or None
    if settings.pad_token_id is None and eos_ids:
        settings.pad_token_id = eos_ids[0]
    # Stop strings are matched on the text, the cache is ours, and how tokens are found is for the request to say.
    settings.stop_strings = settings.cache_implementation = settings.prefill_chunk_size = None
    settings.num_return_sequences = 1
    _search(settings, sampling.strategy)
    if sampling.repetition_penalty is not None:
        settings.repetition_penalty = float(sampling.repetition_penalty)
    if sampling.temperature is not None and sampling.temperature < GREEDY_BELOW:
        settings.do_sample = False
    elif (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) != (None,) * 4:
        settings.do_sample = True
    if settings.do_sample:
        _sample(settings, sampling)
    else:  # the library warns of what has no effect
        settings.temperature = settings.top_p = settings.top_k = settings.min_p = None
        settings.typical_p = settings.epsilon_cutoff = settings.eta_cutoff = None
    return config


def _search(settings: Any, strategy: Strategy | None) -> None:
    settings.num_beams, settings.prompt_lookup_num_tokens = 1, None
    settings.length_penalty, settings.early_stopping = None, None  # the library warns of what has no effect
    settings.num_beam_groups = settings.diversity_penalty = settings.constraints = settings.force_words_ids = None
    settings.assistant_early_exit = settings.use_mtp = settings.speculation_type = None
    match strategy:
        case Beam(num_beams, length_penalty, early_stopping):
            settings.num_beams = num_beams
            settings.length_penalty, settings.early_stopping = float(length_penalty), early_stopping
        case PromptLookup(num_tokens):
            settings.prompt_lookup_num_tokens = num_tokens


def _sample(settings: Any, sampling: Sampling) -> None:
    if sampling.temperature is not None:
        settings.temperature = float(sampling.temperature)
    elif not settings.temperature:  # the makers say 0, where they mean a greedy model
        settings.temperature = 1.0
    if sampling.top_p is not None:
        settings.top_p = float(sampling.top_p)
    if sampling.top_k is not None:
        settings.top_k = sampling.top_k
    if sampling.min_p is not None:
        settings.min_p = float(sampling.min_p)
