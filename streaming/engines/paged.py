"""transformers' continuous batching, one step at a time: many sequences in one forward pass, their keys and values in
pages that sequences with the same beginning share.

Every private name of the library that batching needs is used here, and guarded by tests/test_paged.py. Imports torch;
everything here runs on the one inference thread, which is why the library's own thread is never started.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.requests import RequestState

from streaming.engines.attention import apart

PAGE_TOKENS = 32  # smaller pages share more of a prompt: of 256 tokens each, 200 are computed again at every turn
Chooser = Callable[[list[str], torch.Tensor], list[int]]


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward pass did for one sequence: it stands at `position` tokens now, `computed` of them are new.

    `token` is what comes next; None as long as its prompt is not read to the end.
    """

    name: str
    position: int
    computed: int
    token: int | None


class PagedBatch:
    """Sequences of `pages` pages in all.

    A sequence goes on until it is ended. Whoever adds them sees to it that all of them can grow to their full length:
    the library would take the pages of one away in the middle, and raise when it is the last.
    """

    def __init__(self, model: Any, *, pages: int, max_tokens: int, max_rows: int) -> None:
        config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=pages,
            max_batch_tokens=max_tokens,
            max_requests_per_batch=max_rows,
            max_blocks_per_request=0,
            max_memory_percent=1.0,
            safety_margin=0.0,  # room is made by `forget`, oldest first; the library would drop all that is kept
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
        )
        self._model = model
        self._names: set[str] = set()
        self._choose: Chooser = _best
        self._tokens: list[int] = []
        greedy: Any = GenerationConfig
        with torch.inference_mode(), _MemoryAsUsed():
            manager = model.init_continuous_batching(greedy(do_sample=False, eos_token_id=-1), config)
            self._processor: Any = manager._create_batch_processor()
        self._processor.model_runner._sample = self._sample
        self._max_tokens: int = self._processor.max_batch_tokens

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str, ids: Sequence[int]) -> None:
        """Begin a sequence with a prompt of at least one id. A name is used once, ever."""
        self._names.add(name)
        self._processor.scheduler.add_waiting_request(RequestState(name, list(ids), max_new_tokens=None))

    def end(self, name: str) -> None:
        """Free a sequence's pages at once; the full ones are kept for whoever begins in the same way."""
        self._names.discard(name)
        self._processor.scheduler.set_request_cancellation(name)
        self._processor.scheduler.clear_cancelled_requests()

    def clear(self) -> None:
        """End all and keep nothing, as after a failure in the middle of a step."""
        self._names.clear()
        with torch.inference_mode():
            self._processor.reset()
            self._processor.cache.reset()

    def step(self, budget: int, choose: Chooser) -> list[Step]:
        """One forward pass of at most `budget` tokens: the next of each sequence, and as much of new prompts as fits.

        `choose` gets the names of those whose next token is due, and a row of logits for each, in 32 bits. Raises
        whatever it or the model raises; nothing can be relied on then until `clear`.
        """
        processor = self._processor
        self._choose, self._tokens = choose, []
        processor.max_batch_tokens = min(budget, self._max_tokens)
        with torch.inference_mode():
            if not processor.prepare_next_batch():
                raise RuntimeError("there was no room to go on with any answer")
            batch = processor.inputs_and_outputs.requests_in_batch
            with self._attention():
                processor._generation_step(self._model)
            processor.update_batch()
        tokens = iter(self._tokens)
        return [
            Step(
                item.state.request_id,
                item.state.position_offset,
                item.query_length,
                next(tokens) if item.has_new_token else None,
            )
            for item in batch
        ]

    def _attention(self) -> AbstractContextManager[None]:
        """Each sequence by itself, but where many small calls cost more than one large one does."""
        on_cpu = self._model.device.type == "cpu"
        return apart(self._model.config.get_text_config(decoder=True)) if on_cpu else nullcontext()

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """In the place of the library's own: rows [1, rows, vocabulary], of which the first ones are wanted."""
        batch = self._processor.inputs_and_outputs.requests_in_batch
        names = [item.state.request_id for item in batch if item.has_new_token]
        self._tokens = self._choose(names, scores[0, : len(names)]) if names else []
        output_ids[0, : len(names)] = torch.tensor(self._tokens, dtype=output_ids.dtype, device=output_ids.device)

    # -- pages

    @property
    def pages(self) -> int:
        pages: int = self._processor.cache.num_blocks
        return pages

    @property
    def kept_pages(self) -> int:
        """Pages that no sequence uses any more, and that one with the same beginning would."""
        return sum(len(allocator.ledger.cached_blocks) for allocator in self._allocators)

    def forget(self, at_most: int, ids: Sequence[int]) -> None:
        """Keep `at_most` pages for later, beside those of the beginning of `ids`. The least recently used ones go."""
        if not self._processor.cache.use_prefix_sharing:
            return
        for allocator in self._allocators:
            kept = allocator.ledger.cached_blocks
            wanted = [block for block in allocator.match_prefix_blocks(list(ids)) if block in kept]
            for block in wanted:  # to the end of the line
                del kept[block]
                kept[block] = None
            surplus = list(islice(kept, max(0, len(kept) - len(wanted) - at_most)))
            for block in surplus:
                del kept[block]
                del allocator.ledger.hash_to_block[allocator.ledger.block_to_hash.pop(block)]
            allocator.pool.free_blocks(allocator.index, surplus)

    @property
    def _allocators(self) -> list[Any]:
        return list(self._processor.cache.cache_allocators.values())


def _best(_names: list[str], logits: torch.Tensor) -> list[int]:
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


def disagreement(paged: PagedBatch, model: Any, ids: list[int], new_tokens: int = 3) -> float:
    """How far the logits are from those of a plain forward pass, relative to these; next to nothing is right.

    Models that compute attention in a way of their own may ignore the pages, and write nonsense without an error.
    """
    seen: list[torch.Tensor] = []

    def watch(names: list[str], logits: torch.Tensor) -> list[int]:
        seen.append(logits[0].clone())
        return _best(names, logits)

    written: list[int] = []
    paged.add("disagreement", ids)
    while len(written) < new_tokens:  # the prompt in several chunks
        written += [step.token for step in paged.step(-(-len(ids) // 3), watch) if step.token is not None]
    paged.clear()
    with torch.inference_mode():
        whole = torch.tensor([ids + written[:-1]], device=model.device)
        plain = model(input_ids=whole, use_cache=False).logits[0, len(ids) - 1 :].float()
    return float((torch.stack(seen) - plain).norm() / plain.norm())


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)


def page_bytes(model: Any, max_tokens: int) -> int:
    """What a page takes: keys and values of all layers, and its part of the mask of `max_tokens` in one step."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    numbers_per_token = 2 * config.num_hidden_layers * heads * size + max_tokens
    return int(PAGE_TOKENS * numbers_per_token * model.dtype.itemsize)


class _MemoryAsUsed(TorchFunctionMode):
    """Lets the cache on a CPU take memory page by page as it fills, where `torch.zeros` would write all of it: a model
    is then ready seconds earlier, and the machine keeps what nobody needs."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        settings = kwargs or {}
        on_cpu = torch.device(settings.get("device") or "cpu").type == "cpu"
        if func is torch.zeros and settings.get("dtype") is torch.uint8 and on_cpu:
            return torch.from_numpy(np.zeros(args, np.uint8))
        return func(*args, **settings)
