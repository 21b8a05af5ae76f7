"""The lane of one answer at a time around a tiny model, what it says, and what plain `generate` would have said."""

from typing import Any

import torch
from transformers import LlamaForCausalLM

from streaming.engines.answers import Answers
from streaming.engines.base import Generation, Item
from streaming.engines.generate import GenerateLane
from streaming.engines.speculation import Draft
from streaming.engines.stopwatch import Stopwatch
from streaming.events import ReasoningDelta, TextDelta
from streaming.messages import Sampling
from streaming.models import Model
from streaming.templates import Prompt
from tests.tiny import CONTEXT_TOKENS
from tests.tokenizers import byte_level_bpe

IDS = list(range(10, 60))
TOKENIZER = byte_level_bpe()


class Lane(GenerateLane):
    """A lane with all that it needs to be asked."""

    def __init__(self, model: Any, tokenizer: Any, cache_bytes: int = 0, draft: Any = None) -> None:
        loaded = Model("tiny", model, tokenizer, CONTEXT_TOKENS)
        self.answers = Answers(loaded)
        self.draft = (
            Draft(Model("draft", draft, tokenizer, CONTEXT_TOKENS), loaded, cache_bytes=cache_bytes) if draft else None
        )
        super().__init__(loaded, self.answers, draft=self.draft, cache_bytes=cache_bytes)


def lane_of(model: Any, tokenizer: Any = TOKENIZER, draft: Any = None) -> Lane:
    return Lane(model, tokenizer, draft=draft)


def answer(lane: Lane, ids: list[int] = IDS, **settings: Any) -> list[Item]:
    """The events of an answer to these ids, greedy by default."""
    settings = {
        "max_new_tokens": 12,
        "generation": Generation(),
        "stops": (),
        "sampling": Sampling(temperature=0),
    } | settings
    prompt, sampling = Prompt(ids, 0, settings.pop("opened", False)), settings.pop("sampling")
    seen: list[Item] = []
    settings["generation"].subscribe(seen.append)
    lane.answer(lane.answers.open(prompt, sampling, stopwatch=Stopwatch(0.0), **settings))
    return seen


def texts_of(items: list[Item]) -> tuple[str, str]:
    """Reasoning and answer."""
    return "".join(item.text for item in items if isinstance(item, ReasoningDelta)), text_of(items)


def text_of(items: list[Item]) -> str:
    return "".join(item.text for item in items if isinstance(item, TextDelta))


def plainly(model: LlamaForCausalLM, max_new_tokens: int = 12, **settings: Any) -> list[int]:
    """The ids that plain `generate` gives, the prompt's left out."""
    ids = torch.tensor([IDS])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **settings)
    return made[0, len(IDS) :].tolist()


def decoded(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
