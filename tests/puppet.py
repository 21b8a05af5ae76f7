"""An engine whose answers the test plays by hand, for what stands above engines: chats and the page's handlers."""

from collections.abc import Callable, Sequence

from streaming.engines.base import Generation, Status
from streaming.errors import StreamingError
from streaming.events import Finished, TextDelta
from streaming.messages import Message, Sampling


class Puppet:
    """`asked` are the prompts so far, and `continued` whether each was to be gone on with; `refusal`, if set, is raised
    instead of a new answer. `state` is what it says of itself."""

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []
        self.continued: list[bool] = []
        self.generations: list[Generation] = []
        self.refusal: Exception | None = None
        self.samplings: list[Sampling | None] = []
        self.state = Status("ready", "puppet")
        self.switches: list[tuple[str, Callable[[StreamingError | None], None]]] = []

    def start(self) -> None: ...

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
        model: str | None = None,
    ) -> Generation:
        if self.refusal is not None:
            raise self.refusal
        assert not isinstance(prompt, str)
        self.asked.append(list(prompt))
        self.continued.append(continues)
        self.samplings.append(sampling)
        self.generations.append(Generation(lambda: self.generations[-1].emit(Finished("cancelled"))))
        return self.generations[-1]

    def status(self) -> Status:
        return self.state

    def wait_ready(self, timeout: float | None = None) -> Status:
        return self.status()

    def switch(self, name: str, done: Callable[[StreamingError | None], None]) -> None:
        """To be ended by the test: `switches` has the names and whom to tell."""
        if self.refusal is not None:
            raise self.refusal
        self.switches.append((name, done))

    def call_off(self) -> bool:
        return bool(self.switches) and self.switches.pop() is not None

    def close(self) -> None: ...

    def say(self, text: str) -> None:
        self.generations[-1].emit(TextDelta(text, 1))

    def answer(self, text: str) -> None:
        self.say(text)
        self.generations[-1].emit(Finished("stop"))
