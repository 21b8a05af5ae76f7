"""What every engine is: a prompt in, a Generation out. A Generation carries events from one producer to one consumer.

Threading: the producer calls `emit` and `fail` from its own thread; the consumer iterates, or subscribes a listener,
from any other; `cancel` may come from anywhere, at any time, any number of times. Nothing here blocks the producer.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from streaming.errors import StreamingError, WrongModel
from streaming.events import Event, Finished
from streaming.messages import Message, Sampling

Item = Event | StreamingError
Listener = Callable[[Item], None]

LOG = logging.getLogger(__name__)


class Generation:
    """One answer on its way. Iterating yields events, the last of them Finished, or raises one StreamingError.

    Leaving the `with` block cancels. There is one consumer: events go either to an iteration or to a listener.
    """

    def __init__(self, on_cancel: Callable[[], None] = lambda: None) -> None:
        self._on_cancel = on_cancel
        self._lock = threading.RLock()  # a listener may cancel, and so end, what it listens to
        self._undelivered: deque[Item] = deque()
        self._consumed = False
        self._listener: Listener | None = None
        self._observers: list[Listener] = []
        self._ended = False
        self._cancelled = threading.Event()

    # -- the producer's side

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def ended(self) -> bool:
        return self._ended

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep, but wake up at a cancel. Says whether there was one."""
        return self._cancelled.wait(seconds)

    def emit(self, event: Event) -> None:
        """Hand one event over. After the end nothing more is delivered: there is exactly one."""
        self._deliver(event, last=isinstance(event, Finished))

    def fail(self, error: StreamingError) -> None:
        """End with an error instead of Finished."""
        self._deliver(error, last=True)

    def _deliver(self, item: Item, last: bool) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = last
            try:
                for observer in self._observers:
                    observer(item)
                if self._listener is None:
                    self._undelivered.append(item)
                else:
                    self._listener(item)
            except Exception:
                # The consumer is broken, not the producer, whose thread has other answers to give.
                LOG.exception("A listener raised: its answer is cancelled.")
                self._ended = True
                self._cancelled.set()

    # -- the consumer's side

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every event or error, past and future, in order. It must be quick and never raise."""
        with self._lock:
            if self._consumed:
                raise RuntimeError("a generation has one consumer, and this one has it already")
            self._consumed = True
            while self._undelivered:
                listener(self._undelivered.popleft())
            self._listener = listener

    def observe(self, observer: Listener) -> None:
        """Call `observer` with every item too, before the consumer: for counting. Only while there is no consumer."""
        with self._lock:
            if self._consumed:
                raise RuntimeError("a generation is observed from its beginning, and this one has a consumer already")
            for item in self._undelivered:
                observer(item)
            self._observers.append(observer)

    def __iter__(self) -> Iterator[Event]:
        items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.subscribe(items.put)
        return _drain(items)

    def cancel(self) -> None:
        """Ask the engine to stop. Returns at once; Finished("cancelled") follows when the model has really stopped."""
        if not self._cancelled.is_set():
            self._cancelled.set()
            self._on_cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def _drain(items: "queue.SimpleQueue[Item]") -> Iterator[Event]:
    while True:
        item = items.get()
        if isinstance(item, StreamingError):
            raise item
        yield item
        if isinstance(item, Finished):
            return


@dataclass(frozen=True, slots=True)
class Status:
    """What an engine says of itself: for the page's header and for /health.

    `model` is the one that answers who comes now. `detail` is a line for a person (a download's progress, or why
    loading failed). `context_tokens` is 0 until known.
    `can_think`: the chat template has a switch for reasoning. `notices` are lasting remarks about the model.
    `strategies` are those that a request may ask for, by their names; `draft` is the model that guesses for `assisted`.
    """

    state: Literal["loading", "ready", "failed", "closed"]
    model: str
    detail: str = ""
    context_tokens: int = 0
    can_think: bool = False
    notices: tuple[str, ...] = ()
    running: int = 0
    waiting: int = 0
    strategies: tuple[str, ...] = ()
    draft: str = ""


class Engine(Protocol):
    """Turns messages into answers. Making one costs nothing: it starts to load when it is first needed."""

    def start(self) -> None:
        """Begin to load, if that has not begun. Returns at once; `stream` and `wait_ready` start it too."""

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
        model: str | None = None,
    ) -> Generation:
        """Start an answer. Input errors are raised here; everything later arrives through the Generation.

        The prompt is a conversation, or a text that the model reads as it stands and goes on from. With `continues` the
        last message is an assistant's, in the middle of its content, or of its reasoning where it has no content yet:
        the answer goes on there. Events carry what is new; appended to what there was, it reads as one text.

        `user` names whose request it is: waiting requests of different users take turns. No other than `model` may
        answer, if one is named: it ends in WrongModel, here or later, where another one would.
        """

    def status(self) -> Status: ...

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Block until loading has ended, well or badly, or `timeout` seconds have passed. Never on an event loop."""

    def switch(self, name: str, done: Callable[[StreamingError | None], None]) -> None:
        """Answer by another model, which lies here already. Returns at once.

        Who came before is answered by the old model, who comes from now on waits for the new one. `done` is called
        once, by the engine's thread or by `close`: with None when the new one answers, else with why it could not be
        loaded; then the old one is back, and answers. Raises InvalidRequest where another switch is under way, or none
        is possible here.
        """

    def call_off(self) -> bool:
        """Take back a switch that still waits for the answers under way; its `done` is never called then. False: there
        is none, or it loads already."""

    def close(self) -> None:
        """Cancel what runs, refuse what waits, free the model. Idempotent."""


def check_model(wanted: str | None, answers: str) -> None:
    """Raise WrongModel where a request names another model than the one that would answer."""
    if wanted not in (None, answers):
        raise WrongModel(f"There is no model {wanted!r} here: this server has {answers!r}.", "model")
