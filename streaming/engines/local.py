"""A transformers model in this process.

All torch work, loading and warming up included, happens on the one thread of the worker, and no other thread computes:
computing threads own a team of OpenMP threads each, and teams that outnumber the cores slow each other down by a third.
Prompts are rendered by whoever asks. Importing this loads no torch.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from streaming import memory, models
from streaming.config import Config, on_zero_gpu
from streaming.engines.base import Generation, Status
from streaming.engines.queue import Request
from streaming.engines.stopwatch import Stopwatch
from streaming.engines.worker import Worker
from streaming.errors import InvalidRequest, ModelError, NoDraft
from streaming.messages import Assisted, Message, PromptLookup, Sampling, check_prompt
from streaming.templates import ChatTemplate, Prompt

if TYPE_CHECKING:
    from streaming.engines.answers import Answer, Answers
    from streaming.engines.batching import BatchLane
    from streaming.engines.generate import GenerateLane
    from streaming.engines.lanes import Lanes
    from streaming.engines.speculation import Draft
    from streaming.engines.zero_gpu import ZeroGpuLane

BATCH_SHARE = 0.75  # of the memory for caches; the rest is for those answered alone
DRAFT_SHARE = 0.25  # of that rest, where there is a draft model

LOG = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Job:
    asked: str | tuple[Message, ...]
    continues: bool
    sampling: Sampling
    max_new_tokens: int
    prompt: Prompt | None = None  # None: the model was still loading
    pages: int | None = None  # of the batch's cache, once that was asked


@dataclass(frozen=True, slots=True)
class _Loaded:
    template: ChatTemplate
    answers: "Answers"
    lanes: "Lanes[_Job]"
    context_tokens: int
    notices: tuple[str, ...]


class LocalEngine:
    """Loads `config.model` when it is started. Answers many requests at once where the model and the request allow it,
    else one at a time; who has no place waits in a fair queue."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loaded: _Loaded | None = None
        self._worker: Worker[_Job] = Worker("inference", self._load, self._serve, max_waiting=config.max_waiting)

    def start(self) -> None:
        self._worker.start()

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
    ) -> Generation:
        check_prompt(prompt, continues=continues)
        sampling = sampling or Sampling()
        asked = prompt if isinstance(prompt, str) else tuple(prompt)
        job = _Job(asked, continues, sampling, sampling.max_new_tokens or self._config.max_new_tokens)
        if loaded := self._loaded:
            job.prompt = self._render(loaded, job)
        return self._worker.submit(user, job)

    def status(self) -> Status:
        loaded, worker = self._loaded, self._worker
        return Status(
            worker.state,
            self._config.model,
            worker.detail,
            context_tokens=loaded.context_tokens if loaded else 0,
            can_think=loaded.template.can_think if loaded else False,
            notices=loaded.notices if loaded else (),
            running=worker.running,
            waiting=worker.waiting,
            strategies=loaded.lanes.single.strategies if loaded else (),
            draft=(self._config.draft_model or "") if loaded else "",
        )

    def wait_ready(self, timeout: float | None = None) -> Status:
        self._worker.start()
        self._worker.wait_loaded(timeout)
        return self.status()

    def close(self) -> None:
        self._worker.close()
        self._loaded = None

    def _render(self, loaded: _Loaded, job: _Job) -> Prompt:
        """Raises InvalidRequest for what this model cannot do too."""
        sampling = job.sampling
        if isinstance(sampling.strategy, Assisted):
            _check_draft(sampling.strategy.model, self._config.draft_model)
        if isinstance(sampling.strategy, Assisted | PromptLookup) and not loaded.lanes.single.can_guess:
            raise InvalidRequest("Nothing can be guessed for this model: it cannot take a token back.", "strategy")
        if isinstance(job.asked, str):
            return loaded.template.read(job.asked)
        return loaded.template.render(
            job.asked,
            reserve_tokens=job.max_new_tokens,
            chat_template_kwargs=sampling.chat_template_kwargs,
            continues=job.continues,
        )

    # -- the inference thread

    def _load(self) -> None:
        if on_zero_gpu():
            import_module("spaces")  # before torch looks for GPUs: there will be some
        self._worker.say(f"Looking for the model {self._config.model}")
        source = models.prepare(self._config.model, cache_dir=self._config.cache_dir, progress=self._worker.say)
        self._worker.say(f"Loading {source.name} into memory")
        model = models.load(source, dtype=self._config.dtype)
        from streaming.engines.answers import Answers
        from streaming.engines.lanes import Lanes

        answers = Answers(model)
        batch, single = self._open_lanes(model, answers)
        template = ChatTemplate(model.tokenizer, model.context_tokens)
        lanes = Lanes(self._worker, single, batch, wants=self._wants, open_answer=self._open_answer)
        self._loaded = _Loaded(template, answers, lanes, model.context_tokens, model.notices + template.notices)

    def _open_lanes(
        self, model: models.Model, answers: "Answers"
    ) -> "tuple[BatchLane | None, GenerateLane | ZeroGpuLane]":
        from streaming.engines.generate import GenerateLane
        from streaming.engines.zero_gpu import ZeroGpuLane

        if on_zero_gpu():
            return None, ZeroGpuLane(model)
        cache_bytes = int(1e9 * (self._config.kv_cache_gb or 0)) or memory.cache_bytes(model.model.device)
        batch = self._open_batch(model, int(BATCH_SHARE * cache_bytes))
        single_share = 1 - BATCH_SHARE if batch else 1
        single_bytes = int(single_share * cache_bytes)
        draft = self._open_draft(model, int(DRAFT_SHARE * single_bytes))
        single = GenerateLane(
            model, answers, draft=draft, cache_bytes=int((1 - DRAFT_SHARE if draft else 1) * single_bytes)
        )
        single.warm_up()
        return batch, single

    def _open_draft(self, model: models.Model, cache_bytes: int) -> "Draft | None":
        from streaming.engines.speculation import Draft

        if self._config.draft_model is None:
            return None
        self._worker.say(f"Looking for the draft model {self._config.draft_model}")
        source = models.prepare(self._config.draft_model, cache_dir=self._config.cache_dir, progress=self._worker.say)
        self._worker.say(f"Loading {source.name} into memory")
        return Draft(models.load(source, dtype=self._config.dtype), model, cache_bytes=cache_bytes)

    def _open_batch(self, model: models.Model, cache_bytes: int) -> "BatchLane | None":
        from streaming.engines.batching import BatchLane, NotBatchable

        if self._config.batching == "off":
            return None
        try:
            batch = BatchLane(model, cache_bytes=cache_bytes)
        except NotBatchable as error:
            if self._config.batching == "on":
                raise ModelError(
                    f"{model.name} cannot answer several at once, because {error}. Start with --batching auto."
                ) from error
            LOG.warning("%s answers one request at a time, because %s.", model.name, error)
            return None
        LOG.info("%s answers several at once, with room for %d tokens.", model.name, batch.room_tokens)
        return batch

    def _serve(self, request: Request[_Job]) -> None:
        self._ready.lanes.serve(request)

    @property
    def _ready(self) -> _Loaded:
        loaded = self._loaded
        assert loaded is not None  # the worker serves nobody before _load has returned
        return loaded

    def _prompt(self, job: _Job) -> Prompt:
        if job.prompt is None:
            job.prompt = self._render(self._ready, job)
        return job.prompt

    def _wants(self, request: Request[_Job]) -> int:
        job, loaded = request.job, self._ready
        if job.pages is None:
            prompt_tokens = len(self._prompt(job).ids)
            config = loaded.answers.config(job.sampling, job.max_new_tokens, prompt_tokens)
            batch, plain = loaded.lanes.batch, job.sampling.strategy is None
            job.pages = batch.pages(prompt_tokens, config, job.sampling.seed) if batch is not None and plain else 0
        return job.pages

    def _open_answer(self, request: Request[_Job]) -> "Answer":
        job, loaded = request.job, self._ready
        return loaded.answers.open(
            self._prompt(job),
            job.sampling,
            max_new_tokens=job.max_new_tokens,
            stops=() if isinstance(job.asked, str) else loaded.template.stops,
            generation=request.generation,
            stopwatch=Stopwatch(request.arrived),
        )


def _check_draft(wanted: str, draft: str | None) -> None:
    if draft is None:
        raise NoDraft(
            "There is no draft model here to guess for an answer: it is named by --draft-model at the start.",
            "strategy",
        )
    if wanted not in (draft, models.title(draft)):
        raise NoDraft(f"There is no draft model {wanted!r} here: this engine has {draft!r}.", "strategy")
