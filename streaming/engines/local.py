"""A transformers model in this process.

All torch work, loading and warming up included, happens on the one thread of the worker, and no other thread computes:
computing threads own a team of OpenMP threads each, and teams that outnumber the cores slow each other down by a third.
Prompts are rendered by whoever asks. Importing this loads no torch.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING

from streaming import memory, models
from streaming.config import Config, on_zero_gpu
from streaming.engines.base import Generation, Status, check_model
from streaming.engines.queue import Request
from streaming.engines.stopwatch import Stopwatch
from streaming.engines.worker import Done, Worker
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
    model: str | None  # no other may answer
    prompt: Prompt | None = None  # None: no model was loaded yet
    of: object = None  # the mark of the model that it was rendered for
    pages: int | None = None  # of that model's batch, once that was asked


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model, and what it answers with. A job knows it by its `mark`: it would keep the model in memory by anything
    else of it."""

    name: str
    template: ChatTemplate
    answers: "Answers"
    lanes: "Lanes[_Job]"
    draft: str
    mark: object = field(default_factory=object)


class LocalEngine:
    """Loads `config.model` when it is started, and others in its place by `switch`. Answers many requests at once where
    the model and the request allow it, else one at a time; who has no place waits in a fair queue."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loaded: _Loaded | None = None
        self._used = False
        self._about = Status("loading", config.model)  # what is known of the model, also while it rests
        self._worker: Worker[_Job] = Worker(
            "inference",
            self._load,
            self._serve,
            model=config.model,
            unload=self._unload,
            idle_s=None if on_zero_gpu() else config.idle_s,
            max_waiting=config.max_waiting,
        )

    def start(self) -> None:
        self._worker.start()

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
        model: str | None = None,
    ) -> Generation:
        check_model(model, self._worker.model)
        check_prompt(prompt, continues=continues)
        sampling = sampling or Sampling()
        asked = prompt if isinstance(prompt, str) else tuple(prompt)
        job = _Job(asked, continues, sampling, sampling.max_new_tokens or self._config.max_new_tokens, model)
        if (loaded := self._loaded) and not self._worker.switching:  # or what is refused might fit the next model
            self._render(loaded, job)
        return self._worker.submit(user, job)

    def status(self) -> Status:
        worker = self._worker
        return replace(
            self._about,
            state=worker.state,
            model=worker.model,
            detail=worker.detail,
            running=worker.running,
            waiting=worker.waiting,
        )

    def wait_ready(self, timeout: float | None = None) -> Status:
        self._worker.start()
        self._worker.wait_loaded(timeout)
        return self.status()

    def switch(self, name: str, done: Done) -> None:
        if on_zero_gpu():
            raise InvalidRequest("On ZeroGPU there is one model: a Space names it with STREAMING_MODEL.", "model")
        self._worker.switch(name, done)

    def call_off(self) -> bool:
        return self._worker.call_off()

    def close(self) -> None:
        self._worker.close()
        self._loaded = None

    def _render(self, loaded: _Loaded, job: _Job) -> Prompt:
        """Make a job's prompt ready for this model. Raises InvalidRequest for what this model cannot do too."""
        sampling = job.sampling
        check_model(job.model, loaded.name)
        if isinstance(sampling.strategy, Assisted):
            _check_draft(sampling.strategy.model, loaded.draft)
        if isinstance(sampling.strategy, Assisted | PromptLookup) and not loaded.lanes.single.can_guess:
            raise InvalidRequest("Nothing can be guessed for this model: it cannot take a token back.", "strategy")
        if isinstance(job.asked, str):
            prompt = loaded.template.read(job.asked)
        else:
            prompt = loaded.template.render(
                job.asked,
                reserve_tokens=job.max_new_tokens,
                chat_template_kwargs=sampling.chat_template_kwargs,
                continues=job.continues,
            )
        job.prompt, job.of, job.pages = prompt, loaded.mark, None
        return prompt

    # -- the inference thread

    def _load(self, name: str) -> None:
        if on_zero_gpu():
            import_module("spaces")  # before torch looks for GPUs: there will be some
        self._unload()
        self._used = True
        self._about = Status("loading", name)
        model = self._read(name, "model")
        from streaming.engines.answers import Answers
        from streaming.engines.lanes import Lanes

        answers = Answers(model)
        batch, single, notices = self._open_lanes(model, answers)
        template = ChatTemplate(model.tokenizer, model.context_tokens)
        lanes = Lanes(self._worker, single, batch, wants=self._wants, open_answer=self._open_answer)
        draft = (self._config.draft_model or "") if "assisted" in single.strategies else ""
        self._loaded = _Loaded(name, template, answers, lanes, draft)
        self._about = Status(
            "ready",
            name,
            context_tokens=model.context_tokens,
            can_think=template.can_think,
            notices=model.notices + template.notices + notices,
            strategies=single.strategies,
            draft=draft,
        )

    def _read(self, name: str, kind: str) -> models.Model:
        self._worker.say(f"Looking for the {kind} {name}")
        source = models.prepare(name, cache_dir=self._config.cache_dir, progress=self._worker.say)
        self._worker.say(f"Loading {source.name} into memory")
        return models.load(source, dtype=self._config.dtype, weights=self._config.weights)

    def _unload(self) -> None:
        """Free the memory of the model, or of what there was of one that could not be loaded. It answers nobody now."""
        self._loaded = None
        if self._used:
            memory.give_back()

    def _open_lanes(
        self, model: models.Model, answers: "Answers"
    ) -> "tuple[BatchLane | None, GenerateLane | ZeroGpuLane, tuple[str, ...]]":
        """The lanes, and what there is to remark about them."""
        from streaming.engines.generate import GenerateLane
        from streaming.engines.zero_gpu import ZeroGpuLane

        if on_zero_gpu():
            return None, ZeroGpuLane(model), ()
        cache_bytes = int(1e9 * (self._config.kv_cache_gb or 0)) or memory.cache_bytes(model.model.device)
        batch = self._open_batch(model, int(BATCH_SHARE * cache_bytes))
        single_share = 1 - BATCH_SHARE if batch else 1
        single_bytes = int(single_share * cache_bytes)
        draft, notices = self._open_draft(model, int(DRAFT_SHARE * single_bytes))
        single = GenerateLane(
            model, answers, draft=draft, cache_bytes=int((1 - DRAFT_SHARE if draft else 1) * single_bytes)
        )
        single.warm_up()
        return batch, single, notices

    def _open_draft(self, model: models.Model, cache_bytes: int) -> "tuple[Draft | None, tuple[str, ...]]":
        """The draft model that was asked for. It has to fit the model that it was asked for with; with another one
        that took its place, all goes on without, and a remark says so."""
        from streaming.engines.speculation import Draft

        if self._config.draft_model is None:
            return None, ()
        try:
            return Draft(self._read(self._config.draft_model, "draft model"), model, cache_bytes=cache_bytes), ()
        except ModelError as error:
            if model.name == self._config.model:
                raise
            return None, (f"There are no guesses by a draft model: {error}",)

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
        loaded = self._ready
        if job.prompt is None or job.of is not loaded.mark:  # it came before this model did
            return self._render(loaded, job)
        return job.prompt

    def _wants(self, request: Request[_Job]) -> int:
        job, loaded = request.job, self._ready
        prompt_tokens = len(self._prompt(job).ids)
        if job.pages is None:
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


def _check_draft(wanted: str, draft: str) -> None:
    if not draft:
        raise NoDraft(
            "There is no draft model here to guess for an answer: it is named by --draft-model at the start.",
            "strategy",
        )
    if wanted not in (draft, models.title(draft)):
        raise NoDraft(f"There is no draft model {wanted!r} here: this engine has {draft!r}.", "strategy")
