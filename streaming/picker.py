"""Another model while the app runs: which there are, how large they are, and the way from a choice to an answer.

A choice is fetched in a child process if need be, then the engine switches; one at a time, for everybody alike. What a
name may be is decided here: where others come, never a folder or file of this machine. `choices` and `look_up` block,
the others return at once. Imports no torch, but where it has been.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from streaming import memory, models, weighing
from streaming.config import Config, on_zero_gpu
from streaming.disk import size_text
from streaming.engines.base import Engine
from streaming.engines.worker import RESTING
from streaming.errors import InvalidRequest, ModelError, ModelTooLarge, StreamingError
from streaming.fetching import Fetch, Progress
from streaming.models import STARTER, title
from streaming.weighing import Weight

LONGEST_NAME = 1_000
CLOSE_S = 10.0
SUGGESTIONS = {  # well known, small, open to everybody; millions of parameters of two bytes each
    "HuggingFaceTB/SmolLM2-360M-Instruct": 362,
    "Qwen/Qwen2.5-0.5B-Instruct": 494,
    "Qwen/Qwen3-0.6B": 752,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_544,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711,
    "Qwen/Qwen3-1.7B": 2_032,
    "ibm-granite/granite-3.3-2b-instruct": 2_534,
    "HuggingFaceTB/SmolLM3-3B": 3_075,
    "Qwen/Qwen3-4B-Instruct-2507": 4_022,
}

Origin = Literal["loaded", "cached", "suggested", "server", "asked"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """A model that can be chosen. `size_bytes` is on the disk where it is loaded or cached, else to be downloaded. What
    is 0 is not known, nor is a `fits` of None."""

    name: str
    title: str
    origin: Origin
    size_bytes: int
    parameters: int
    needs_bytes: int
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Picking:
    """What becomes of a choice. `failed` stays until the next one. `fraction` is of what is to be downloaded."""

    state: Literal["idle", "fetching", "waiting", "loading", "failed"]
    name: str = ""
    detail: str = ""
    fraction: float | None = None


@dataclass(eq=False, slots=True)
class _Way:
    """Of one choice, to the model that answers."""

    name: str
    progress: Progress
    fetch: Fetch | None = None
    switching: bool = False

    def tell(self, progress: Progress) -> None:
        self.progress = progress


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for a model in the place of the one that is loaded. It may be more where that is not `certain`."""

    free: int
    certain: bool
    accelerated: bool


class Picker:
    """Of an app. `offered`: whether models are chosen in it at all; `hub`: those of the Hub too."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._config = config
        self._lock = threading.RLock()
        self._way: _Way | None = None
        self._failed: Picking | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.offered = bool(config.model_patterns) and not on_zero_gpu()
        self.hub = self.offered and config.engine == "local"

    # -- what there is

    def choices(self) -> list[Choice]:
        """The model that answers, those that are here, and some that would fit; of a server those that it lists."""
        if not self.offered:
            return []
        answers = self._engine.status().model
        if self._config.engine != "local":
            return [self._listed(name) for name in dict.fromkeys((answers, *self._names())) if self._matches(name)]
        room = self._room()
        found = {answers: self._answering(answers, room)}
        for weight in weighing.cached(self._config.cache_dir):
            found.setdefault(weight.name, self._choice(weight, "cached", room))
        if STARTER not in found:
            found[STARTER] = self._choice(weighing.weigh(STARTER, self._config.cache_dir), "suggested", room)
        for name, millions in SUGGESTIONS.items():
            parameters = millions * 1_000_000
            choice = self._choice(Weight(name, False, 2 * parameters, parameters), "suggested", room)
            if choice.fits:
                found.setdefault(name, choice)
        return [choice for name, choice in found.items() if name == answers or self._matches(name)]

    def look_up(self, name: str) -> Choice:
        """Size and fit of any model, before anything of it is fetched. Raises InvalidRequest or a ModelError."""
        self._check(name)
        if self._config.engine != "local":
            return self._listed(name)
        room = self._room()
        if name == self._engine.status().model:
            return self._answering(name, room)
        weight = weighing.weigh(name, self._config.cache_dir)
        return self._choice(weight, "cached" if weight.here else "asked", room)

    # -- what becomes of a choice

    def choose(self, name: str) -> None:
        """Have `name` fetched if need be, and answered by. Raises InvalidRequest: it may not be chosen, another one is
        on its way, or it answers already. What goes wrong later is in `picking`."""
        self._check(name)
        with self._lock:
            if self._closed:
                raise InvalidRequest("The app is being closed.", "model")
            if self._way is not None:
                raise InvalidRequest(
                    f"{title(self._way.name)} is on its way already: wait until it answers, or cancel that.", "model"
                )
            status = self._engine.status()
            if name == status.model and status.state in ("loading", "ready"):
                raise InvalidRequest(f"{title(name)} is in use already.", "model")
            way = self._way = _Way(name, Progress(f"Looking for {name}"))
            self._failed = None
            self._thread = threading.Thread(target=self._go, args=(way,), name="picking", daemon=True)
            self._thread.start()

    def cancel(self) -> None:
        """Give up what is being fetched, or waits for the answers under way. No effect once it loads."""
        with self._lock:
            way = self._way
            self._failed = None
            if way is None or (way.switching and not self._engine.call_off()):
                return
            self._way = None
        if way.fetch is not None:
            way.fetch.cancel()

    def picking(self) -> Picking:
        with self._lock:
            way, failed = self._way, self._failed
        if way is None:
            return failed or Picking("idle")
        if not way.switching:
            return Picking("fetching", way.name, way.progress.words, way.progress.fraction)
        status = self._engine.status()
        if status.state == "loading":
            return Picking("loading", way.name, status.detail or f"Loading {way.name} into memory")
        return Picking("waiting", way.name, f"Waiting for the answers under way, then loading {way.name}")

    def close(self) -> None:
        """Give up what is on its way. A switch ends with its engine. Idempotent."""
        with self._lock:
            self._closed = True
            way, self._way = self._way, None
            thread = self._thread
        if way is not None and way.fetch is not None:
            way.fetch.cancel()
        if thread is not None:
            thread.join(CLOSE_S)

    def _go(self, way: _Way) -> None:
        try:
            if self._config.engine == "local" and not self._bring(way):
                return
            with self._lock:
                if self._way is way:
                    way.switching = True
                    self._engine.switch(way.name, lambda error: self._end(way, error))
        except StreamingError as error:
            self._end(way, error)
        except Exception as error:
            LOG.exception("%s could not be brought here.", way.name)
            self._end(way, ModelError(f"{way.name} could not be fetched: {str(error) or type(error).__name__}"))

    def _bring(self, way: _Way) -> bool:
        """See that the model is here and may fit. False: it was given up."""
        weight = weighing.weigh(way.name, self._config.cache_dir)
        room = self._room()
        choice = self._choice(weight, "asked", room)
        if choice.fits is False:
            raise ModelTooLarge(
                f"{way.name} does not fit into memory: it needs about {size_text(choice.needs_bytes)}, and "
                f"{size_text(room.free)} are free here for a model. Choose a smaller one."
            )
        if weight.here and (way.name == STARTER or models.local_path(way.name)):
            return True
        fetch = Fetch(way.name, self._config.cache_dir)  # of the Hub's cache too: there may be a newer version
        with self._lock:
            if self._way is not way:
                return False
            way.fetch = fetch
        return fetch.run(way.tell)

    def _end(self, way: _Way, error: StreamingError | None) -> None:
        with self._lock:
            if self._way is way:
                self._way = None
                self._failed = None if error is None else Picking("failed", way.name, str(error))

    # -- what may be chosen

    def _check(self, name: str) -> None:
        """Raise InvalidRequest unless visitors of this app may choose the model."""
        if not self.offered:
            raise InvalidRequest("Models are chosen here where the app was started with --allow-model.", "model")
        if not name or len(name) > LONGEST_NAME:
            raise InvalidRequest("Name a model of the Hub, such as HuggingFaceTB/SmolLM3-3B.", "model")
        if self._config.engine != "local":
            if name not in (self._engine.status().model, *(names := self._names())):
                raise InvalidRequest(f"There is no model {name} here: there are {', '.join(names)}.", "model")
        elif self._config.open and name not in (STARTER, self._config.model) and not models.only_on_hub(name):
            raise InvalidRequest(f"{name} cannot be chosen here: name a model of the Hub, as in owner/name.", "model")
        if not self._matches(name):
            allowed = ", ".join(self._config.model_patterns)
            raise InvalidRequest(f"{name} may not be chosen here. What may: {allowed}.", "model")

    def _matches(self, name: str) -> bool:
        """A pattern that a repository matches is for each GGUF file in it too."""
        names = (name, name.partition(":")[0])
        return name == self._config.model or any(
            fnmatchcase(one, pattern) for one in names for pattern in self._config.model_patterns
        )

    # -- figures

    def _names(self) -> tuple[str, ...]:
        """What there is to choose from where the engine has its models elsewhere."""
        listed: Callable[[], tuple[str, ...]] | None = getattr(self._engine, "models", None)
        return listed() if listed is not None else ()

    def _listed(self, name: str) -> Choice:
        loaded = name == self._engine.status().model
        return Choice(name, title(name), "loaded" if loaded else "server", 0, 0, 0, None)

    def _answering(self, name: str, room: _Room) -> Choice:
        choice = self._choice(self._loaded(name) or Weight(name, False, 0), "loaded", room)
        return replace(choice, fits=True if room.certain else None)

    def _loaded(self, name: str) -> Weight | None:
        """Of the model that answers, as far as its files are still there."""
        try:
            return weighing.on_disk(name, self._config.cache_dir)
        except ModelError:
            return None

    def _choice(self, weight: Weight, origin: Origin, room: _Room) -> Choice:
        needs = memory.needed_bytes(self._loaded_bytes(weight, room.accelerated))
        fits = None if not needs else True if needs <= room.free else False if room.certain else None
        return Choice(weight.name, title(weight.name), origin, weight.size_bytes, weight.parameters, needs, fits)

    def _loaded_bytes(self, weight: Weight, accelerated: bool) -> int:
        config = self._config
        return models.loaded_bytes(
            weight.parameters, weight.shared, dtype=config.dtype, weights=config.weights, accelerated=accelerated
        )

    def _room(self) -> _Room:
        status = self._engine.status()
        if status.state != "ready":  # torch may not have been imported yet, and this is no thread to do that in
            return _Room(memory.free_main_memory(), certain=False, accelerated=False)
        free, accelerated = memory.free_memory(), memory.accelerated()
        loaded = None if status.detail == RESTING else self._loaded(status.model)
        return _Room(free + (self._loaded_bytes(loaded, accelerated) if loaded else 0), True, accelerated)
