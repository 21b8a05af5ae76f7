"""The lane on ZeroGPU: each answer gets a GPU for as long as it takes, in a forked worker process of Spaces' own.

The worker has the model by the fork, and makes ids; all that is done with them is done here. A flag set here would not
reach it: closing the generator does, after its next id. Imports torch; everything but `_write` runs on the inference
thread, which here computes nothing.
"""

from collections.abc import Generator
from importlib import import_module
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, cast

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from streaming.engines.answers import Answer
from streaming.engines.generate import nobody
from streaming.engines.strategies import Others
from streaming.errors import InvalidRequest
from streaming.messages import Assisted, Beam
from streaming.models import Model

START_S = 15.0  # until a worker has the model on its GPU
TOKENS_PER_S = 20.0  # a slow model's; what is asked for and not used costs the visitor nothing
LONGEST_S = 120.0  # more is not given to visitors who are not logged in


class ZeroGpuLane:
    """Answers one request at a time, each in a worker with a GPU."""

    can_guess = True  # by prompt lookup, where the model can take a token back
    strategies = ("prompt_lookup",)

    def __init__(self, model: Model) -> None:
        self._model = cast(Any, model.model)  # typed as a module, whose attributes may all be tensors
        spaces = import_module("spaces")  # a ZeroGPU Space brings it, in the version that fits the platform
        if spaces.config.Config.zero_gpu:
            self._model.to("cuda")  # noted down here, and done in each worker
        self._write_on_gpu = spaces.GPU(self._write, duration=duration)

    def answer(self, answer: Answer, *, others: Others = nobody) -> None:
        """Emit an answer from Prefill to Finished. Whatever the worker raises is raised, after all that it had
        written was emitted. Raises InvalidRequest for strategies that look into the model's steps."""
        if isinstance(answer.strategy, Beam | Assisted):
            raise InvalidRequest("Neither beam search nor an assistant model is to be had on ZeroGPU.", "strategy")
        answer.prefilled(0)
        writing = self._write_on_gpu(answer.ids, answer.config, answer.seed)
        try:
            for ids in writing:
                if answer.generation.cancelled or answer.read(ids):
                    break
                others()
        finally:
            answer.flush()
            writing.close()
        answer.finish(cached_tokens=0)

    def _write(self, prompt: list[int], config: GenerationConfig, seed: int | None) -> Generator[list[int], None, None]:
        """New ids as `generate` makes them. Runs in the worker; `generate` in a thread there, as it does not yield."""
        made: SimpleQueue[list[int] | BaseException | None] = SimpleQueue()
        stopped = Event()

        def run() -> None:
            try:
                if seed is None:
                    torch.seed()
                else:
                    torch.manual_seed(seed)
                ids = torch.tensor([prompt], device=self._model.device)
                tap = StoppingCriteriaList([_Tap(len(prompt), made, stopped)])
                self._model.generate(
                    ids, attention_mask=torch.ones_like(ids), generation_config=config, stopping_criteria=tap
                )
            except BaseException as error:  # SystemExit too: nobody may be left waiting
                made.put(error)
            else:
                made.put(None)

        thread = Thread(target=run, name="generate", daemon=True)
        thread.start()
        try:
            while (item := made.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()
            thread.join()


class _Tap(StoppingCriteria):
    """Puts the new ids of each decode step into a queue, and ends the call in the step after `stopped`."""

    def __init__(self, seen: int, made: "SimpleQueue[Any]", stopped: Event) -> None:
        self._seen = seen
        self._made = made
        self._stopped = stopped

    def __call__(self, input_ids: torch.LongTensor, _scores: Any, **_: Any) -> Any:
        self._made.put(input_ids[0, self._seen :].tolist())
        self._seen = input_ids.shape[1]
        return torch.full((1,), self._stopped.is_set(), dtype=torch.bool, device=input_ids.device)


def duration(_prompt: list[int], config: Any, _seed: int | None) -> float:
    """Seconds of a GPU to ask for, for what `_write` is called with."""
    return float(min(LONGEST_S, START_S + config.max_new_tokens / TOKENS_PER_S))
