"""A transformers model in this process.

All torch work, loading and warming up included, happens on the one thread of the worker, and no other thread computes:
computing threads own a team of OpenMP threads each, and teams that outnumber the cores slow each other down by a third.
Prompts are rendered by whoever asks. Importing this loads no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming import models
from streaming.config import Config
from streaming.engines.base import Generation, Status
from streaming.engines.queue import Request
from streaming.engines.stopwatch import Stopwatch
from streaming.engines.worker import Worker
from streaming.errors import StreamingError
from streaming.messages import Message, Sampling, check_messages
from streaming.templates import ChatTemplate, Prompt

if TYPE_CHECKING:
    from streaming.engines.answers import Answers
    from streaming.engines.generate import GenerateLane


@dataclass(frozen=True, slots=True)
class _Job:
    messages: tuple[Message, ...]
    sampling: Sampling
    max_new_tokens: int
    prompt: Prompt | None  # None: the model was still loading


@dataclass(frozen=True, slots=True)
class _Loaded:
    template: ChatTemplate
    answers: "Answers"
    lane: "GenerateLane"
    context_tokens: int
    notices: tuple[str, ...]


class LocalEngine:
    """Loads `config.model` when it is started, and answers one request at a time; the others wait in a fair queue."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loaded: _Loaded | None = None
        self._worker: Worker[_Job] = Worker("inference", self._load, self._serve)

    def start(self) -> None:
        self._worker.start()

    def stream(self, messages: Sequence[Message], sampling: Sampling | None = None, *, user: str = "") -> Generation:
        check_messages(messages)
        sampling = sampling or Sampling()
        max_new_tokens = sampling.max_new_tokens or self._config.max_new_tokens
        loaded = self._loaded
        prompt = _render(loaded, messages, sampling, max_new_tokens) if loaded else None
        return self._worker.submit(user, _Job(tuple(messages), sampling, max_new_tokens, prompt))

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
        )

    def wait_ready(self, timeout: float | None = None) -> Status:
        self._worker.start()
        self._worker.wait_loaded(timeout)
        return self.status()

    def close(self) -> None:
        self._worker.close()
        self._loaded = None

    # -- the inference thread

    def _load(self) -> None:
        self._worker.say(f"Looking for the model {self._config.model}")
        source = models.prepare(self._config.model, cache_dir=self._config.cache_dir, progress=self._worker.say)
        self._worker.say(f"Loading {source.name} into memory")
        model = models.load(source, dtype=self._config.dtype)
        from streaming.engines.answers import Answers
        from streaming.engines.generate import GenerateLane

        answers = Answers(model)
        lane = GenerateLane(model, answers)
        lane.warm_up()
        template = ChatTemplate(model.tokenizer, model.context_tokens)
        self._loaded = _Loaded(template, answers, lane, model.context_tokens, model.notices + template.notices)

    def _serve(self, request: Request[_Job]) -> None:
        from streaming.engines.generate import explained

        loaded, job = self._loaded, request.job
        assert loaded is not None  # the worker serves nobody before _load has returned
        stopwatch = Stopwatch(request.arrived)
        try:
            answer = loaded.answers.open(
                job.prompt or _render(loaded, job.messages, job.sampling, job.max_new_tokens),
                job.sampling,
                max_new_tokens=job.max_new_tokens,
                stops=loaded.template.stops,
                generation=request.generation,
                stopwatch=stopwatch,
            )
            loaded.lane.answer(answer)
        except StreamingError:
            raise
        except Exception as error:
            raise explained(error) from error


def _render(loaded: _Loaded, messages: Sequence[Message], sampling: Sampling, max_new_tokens: int) -> Prompt:
    return loaded.template.render(
        messages, reserve_tokens=max_new_tokens, chat_template_kwargs=sampling.chat_template_kwargs
    )
