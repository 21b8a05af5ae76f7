"""An engine without a model: it plays a script, with the events, the delays and the failures of a real one.

For tests and demonstrations. Words are its tokens, one a decode step. As in the local engine, one long-lived thread
serves the requests of a fair queue; a cancel is effective before the next decode step.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from streaming.engines.base import Generation, Status, check_model
from streaming.engines.queue import Request
from streaming.engines.script import Fail, Hold, ReadPrompt, Say, Script, Think, Wait, demo, looked_up, words
from streaming.engines.stopwatch import Stopwatch
from streaming.engines.worker import Done, Worker
from streaming.errors import ContextTooLong, ModelError, ModelNotFound, NoDraft
from streaming.events import Finished, FinishReason, Kind, Prefill, Tentative, Usage, deltas_of
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling, check_prompt
from streaming.reasoning import Part, ReasoningParser
from streaming.stops import StopMatcher

MODELS = ("scripted", "scripted-b", "scripted-broken")  # all of them play the same script; the last cannot be loaded
NOTICE = "There is no model here: the answers are played from a script."
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class _Job:
    messages: tuple[Message, ...]
    said: str  # of the script, in an answer that goes on
    within: Kind | None  # which text that is in the middle of
    sampling: Sampling
    usage: Usage
    max_new_tokens: int
    model: str | None


class ScriptedEngine:
    """Plays `script(messages)` for each request; without a script, the demonstration of engines/script.py.

    A text for a prompt is a user's message to the script, which does not think then. An answer that goes on says what
    it has not said of the script yet. Beams lean towards the next words of the script, as many as there are beams;
    prompt lookup guesses words, and those that the script goes on with are accepted.

    `load(say)` takes the place of loading the first of MODELS: it may tell its progress, wait, and raise a ModelError.
    Loading another one takes `load_s`. `decode_steps` counts the steps of all answers so far.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        load: Callable[[Callable[[str], None]], None] | None = None,
        context_tokens: int = 8192,
        max_new_tokens: int = 1024,
        max_waiting: int | None = None,
        load_s: float = 0.5,
    ) -> None:
        self._script = script or demo
        self._loading = load
        self._context_tokens = context_tokens
        self._max_new_tokens = max_new_tokens
        self._load_s = load_s
        self._playing = MODELS[0]
        self._worker: Worker[_Job] = Worker(
            "scripted", self._load, self._serve, model=MODELS[0], max_waiting=max_waiting
        )
        self.decode_steps = 0

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
        if isinstance(sampling.strategy, Assisted):
            raise NoDraft("A script has no draft model to guess for it.", "strategy")
        wanted = sampling.max_new_tokens or self._max_new_tokens
        messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        kept = list(self._fit(messages, wanted))
        prompt_tokens = _count(kept)
        usage = Usage(prompt_tokens=prompt_tokens, dropped_messages=len(messages) - len(kept))
        room = self._context_tokens - prompt_tokens
        said, within = _begun(kept.pop()) if continues else ("", "text" if isinstance(prompt, str) else None)
        return self._worker.submit(user, _Job(tuple(kept), said, within, sampling, usage, min(wanted, room), model))

    def status(self) -> Status:
        worker = self._worker
        return Status(
            worker.state,
            worker.model,
            worker.detail,
            context_tokens=self._context_tokens,
            can_think=True,
            notices=(NOTICE,),
            running=worker.running,
            waiting=worker.waiting,
            strategies=("beam", "prompt_lookup"),
        )

    def wait_ready(self, timeout: float | None = None) -> Status:
        self._worker.start()
        self._worker.wait_loaded(timeout)
        return self.status()

    def models(self) -> tuple[str, ...]:
        return MODELS

    def switch(self, name: str, done: Done) -> None:
        self._worker.switch(name, done)

    def call_off(self) -> bool:
        return self._worker.call_off()

    def close(self) -> None:
        self._worker.close()

    def _fit(self, messages: Sequence[Message], reserve_tokens: int) -> Sequence[Message]:
        """Leave out the oldest turns, as the local engine does."""
        room = self._context_tokens - min(reserve_tokens, self._context_tokens // 2)
        kept = list(messages)
        while _count(kept) > room:
            turns = [index for index, message in enumerate(kept) if message.role == "user"]
            if len(turns) < 2:
                break
            kept[turns[0] : turns[1]] = [message for message in kept[turns[0] : turns[1]] if message.role == "system"]
        if _count(kept) >= self._context_tokens:
            raise ContextTooLong(_count(kept), self._context_tokens)
        return kept

    # -- the player's thread

    def _load(self, name: str) -> None:
        if name == MODELS[0]:
            if self._loading is not None:
                self._loading(self._worker.say)
        else:
            self._load_another(name)
        self._playing = name

    def _load_another(self, name: str) -> None:
        ready = time.monotonic() + self._load_s
        while (left := ready - time.monotonic()) > 0:
            self._worker.say(f"Loading {name} into memory")
            time.sleep(min(left, _POLL_S))
        if name not in MODELS:
            raise ModelNotFound(f"There is no script {name!r}: there are {', '.join(MODELS)}.")
        if name == MODELS[-1]:
            raise ModelError(f"{name} could not be loaded: it is broken on purpose.")

    def _serve(self, request: Request[_Job]) -> None:
        check_model(request.job.model, self._playing)
        player = _Player(request, self._playing, self._count_step)
        try:
            player.play(self._script)
        finally:  # what was said before a failure has been said
            player.flush()
        request.generation.emit(player.finished())

    def _count_step(self) -> None:
        self.decode_steps += 1


class _Player:
    """Plays one answer; `count_step` is called for each decode step, before what it says is emitted."""

    def __init__(self, request: Request[_Job], model: str, count_step: Callable[[], None]) -> None:
        self._model = model
        self._generation = request.generation
        self._job = request.job
        self._count_step = count_step
        self._stopwatch = Stopwatch(request.arrived)
        self._stops = StopMatcher(request.job.sampling.stop)
        self._reasoning = ReasoningParser(within=request.job.within)
        self._said = request.job.said
        self._words = [word for message in request.job.messages for word in words(message.content)]
        self._tokens = self._proposed = self._accepted = 0

    def play(self, script: Script) -> None:
        prompt_tokens = self._job.usage.prompt_tokens
        self._generation.emit(Prefill(0, prompt_tokens))
        within = self._job.within
        thinks = self._job.sampling.chat_template_kwargs.get("enable_thinking") is not False and within is None
        for step in script(self._job.messages):
            match step:
                case ReadPrompt(seconds, chunks):
                    self._read_prompt(seconds, chunks, prompt_tokens)
                case Say(text, pace):
                    self._decode(self._unsaid(text), pace)
                case Think(text, pace) if thinks or within == "reasoning":
                    opening = ["<think>\n"] if thinks else []
                    self._decode([*opening, *self._unsaid(text), "\n</think>\n\n"], pace)
                case Wait(seconds):
                    self._generation.wait_cancelled(seconds)
                case Hold(until):
                    while not until.wait(_POLL_S) and not self._generation.cancelled:
                        pass
                case Fail(message) if self._reason is None:
                    raise RuntimeError(message)
            if self._reason is not None:
                return

    def _read_prompt(self, seconds: float, chunks: int, tokens: int) -> None:
        for chunk in range(1, chunks + 1):
            if self._generation.wait_cancelled(seconds / chunks):
                return
            self._generation.emit(Prefill(tokens * chunk // chunks, tokens))

    def _unsaid(self, text: str) -> Iterator[str]:
        for token in words(text):
            if self._said.startswith(token):
                self._said = self._said.removeprefix(token)
            else:
                yield token.removeprefix(self._said)
                self._said = ""

    def _decode(self, tokens: Iterable[str], pace: float) -> None:
        due, ahead = time.monotonic(), deque(tokens)
        while ahead:
            due += 1 / pace
            self._generation.wait_cancelled(max(0.0, due - time.monotonic()))
            if self._reason is not None:
                return
            guessed = self._guess(ahead)
            self._step([ahead.popleft() for _ in range(guessed + 1)], guessed)
            self._lean(ahead)

    def _guess(self, ahead: Sequence[str]) -> int:
        """How many of the words ahead are guessed for the next step. It makes one more."""
        strategy = self._job.sampling.strategy
        if not isinstance(strategy, PromptLookup):
            return 0
        guess = looked_up(self._words, strategy.num_tokens)
        self._proposed += len(guess)
        right = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(guess, ahead, strict=False))))
        return min(right, len(ahead) - 1, self._job.max_new_tokens - self._tokens - 1)

    def _step(self, made: list[str], guessed: int) -> None:
        self._count_step()
        self._stopwatch.tick(len(made))
        parts: list[Part] = []
        by_guesses = 0
        for place, token in enumerate(made):
            if self._stops.stopped is not None:
                break
            self._tokens += 1
            self._accepted += place < guessed
            self._words.append(token)
            parts += self._reasoning.add(self._stops.add(token))
            if place < guessed:
                by_guesses = len(parts)
        self._emit(parts, by_guesses)

    def _lean(self, ahead: Sequence[str]) -> None:
        """Beams have these words in mind, without what a stop string would cut off."""
        strategy = self._job.sampling.strategy
        if not isinstance(strategy, Beam) or not ahead or self._reason is not None:
            return
        stops, reasoning = self._stops.fork(), self._reasoning.fork()
        text = stops.add("".join(islice(ahead, strategy.num_beams))) + stops.finish()
        parts = reasoning.add(text) + reasoning.finish()
        texts = {kind: "".join(text for each, text in parts if each == kind) for kind in ("text", "reasoning")}
        self._generation.emit(Tentative(**texts))

    @property
    def _reason(self) -> FinishReason | None:
        """Why the answer ends before its script, if it does."""
        if self._stops.stopped is not None:
            return "stop"
        if self._generation.cancelled:
            return "cancelled"
        return "length" if self._tokens >= self._job.max_new_tokens else None

    def _emit(self, parts: list[Part], by_guesses: int = 0) -> None:
        for delta in deltas_of(parts, self._tokens, self._accepted, by_guesses):
            self._generation.emit(delta)

    def flush(self) -> None:
        self._emit(self._reasoning.add(self._stops.finish()) + self._reasoning.finish())

    def finished(self) -> Finished:
        usage = replace(
            self._job.usage,
            completion_tokens=self._tokens,
            proposed_tokens=self._proposed,
            accepted_tokens=self._accepted,
        )
        return Finished(self._reason or "stop", usage, self._stopwatch.timings(), self._stops.stopped, self._model)


def _begun(message: Message) -> tuple[str, Kind | None]:
    """What has been said of an answer, and in the middle of which text that was."""
    if not message.is_blank:
        return message.content, "text"
    return (message.reasoning, "reasoning") if message.reasoning.strip() else ("", None)


def _count(messages: Sequence[Message]) -> int:
    """Words; a message without one counts as its role would."""
    return sum(max(1, len(words(message.content))) for message in messages)
