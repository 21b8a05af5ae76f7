"""A chat in the terminal, on any engine: the answer streams as it is made; Ctrl-C stops it and not the program.

A pipe works too: each line of the input is a message, answers go to the output, everything else to the error output.
Knows neither torch nor Gradio. Threading: all in the caller's thread, which must be the main one. Ctrl-C only leaves
a note there, because a signal handler must not wait for a lock that the code which it interrupts may hold.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.markup import escape

from streaming.config import Config
from streaming.engines import Engine, Generation, open_engine
from streaming.errors import InvalidRequest, StreamingError
from streaming.events import Event, Finished, Prefill, Queued, ReasoningDelta, Tentative, TextDelta
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling, Strategy
from streaming.tails import Tail

HELP = """\
/system TEXT   how the model should behave from now on; without TEXT: no system prompt
/retry         have the last question answered again
/strategy HOW  from now on: plain, beams N, lookup N, or assisted where there is a draft model
/save FILE     keep the conversation: Markdown, or JSON where FILE ends in .json
/help          this list
/exit          leave, as Ctrl-D does
//...          a message that begins with a slash
Enter sends, Alt+Enter breaks the line, Ctrl-C stops an answer, the arrows bring back what was sent."""
COMMANDS = ("/system", "/retry", "/strategy", "/save", "/help", "/exit")
SECONDS_BETWEEN_LINES = 3.0  # of a download's progress

# Model text must not steer the terminal: escape sequences and the like become the pictures of their characters.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_INERT = _PICTURES | dict.fromkeys(range(0x80, 0xA0), 0xFFFD) | {ord("\r"): None}

Reader = Callable[[str], str | None]
Note = Event | StreamingError | None  # None: Ctrl-C


class TerminalChat:
    """One conversation. `answers` gets what the model says, `notes` all the rest; `failures` counts the errors."""

    def __init__(self, engine: Engine, answers: TextIO, notes: Console, sampling: Sampling | None = None) -> None:
        self._engine = engine
        self._answers = answers
        self._notes = notes
        self._sampling = sampling
        self.system = ""
        self.messages: list[Message] = []
        self.failures = 0

    def load(self) -> bool:
        """Wait for the model, showing what is being done. False if it cannot be had."""
        shown, due = "", 0.0
        while (status := self._engine.wait_ready(timeout=0.1)).state == "loading":
            detail = status.detail or f"Loading {status.model}"
            if detail != shown and time.monotonic() >= due:
                self._note(detail)
                shown, due = detail, time.monotonic() + SECONDS_BETWEEN_LINES
        if status.state != "ready":
            self._complain(status.detail)
            return False
        for notice in status.notices:
            self._note(notice)
        return True

    def run(self, read: Reader) -> None:
        """Take messages and commands until `read`, called with a draft to be edited, has no more."""
        draft = ""
        while (text := read(draft)) is not None:
            draft = ""
            if text.startswith("/") and not text.startswith("//"):
                if text.split()[0] == "/exit":
                    return
                self.command(text)
            elif text.strip() and not self.say(text.removeprefix("/") if text.startswith("//") else text):
                draft = text

    def command(self, text: str) -> None:
        """Do what a line that begins with a slash asks for."""
        name, _, argument = text.strip().partition(" ")
        match name, argument.strip():
            case "/help", "":
                self._note(HELP)
            case "/system", system:
                self.system = system
                self._note("The system prompt is set." if system else "There is no system prompt.")
            case "/retry", "":
                self.retry()
            case "/strategy", words:
                self.choose_strategy(words.split())
            case "/save", file if file:
                self.save(Path(file).expanduser())
            case ("/save", _):
                self._complain("/save needs the name of a file.")
            case _:
                self._complain(f"There is no command {text.strip()!r}. /help lists them; //... sends a leading slash.")

    def choose_strategy(self, words: Sequence[str]) -> None:
        """How the next answers are found. Refused in words if there is no such way."""
        strategy: Strategy | None = None
        try:
            match words:
                case ["plain"]:
                    pass
                case ["beams"]:
                    strategy = Beam()
                case ["beams", number]:
                    strategy = Beam(int(number))
                case ["lookup"]:
                    strategy = PromptLookup()
                case ["lookup", number]:
                    strategy = PromptLookup(int(number))
                case ["assisted"]:
                    strategy = Assisted(self._engine.status().draft)
                case _:
                    raise ValueError(words)
        except InvalidRequest as error:
            self._complain(str(error))
        except ValueError:
            self._complain("/strategy is one of: plain, beams N, lookup N, assisted.")
        else:
            self._sampling = replace(self._sampling or Sampling(), strategy=strategy)
            self._note(f"Answers are found like this from now on: {' '.join(words)}.")

    def say(self, text: str) -> bool:
        """Send a message and show the answer. False if it was refused; nothing has changed then."""
        return self._answer([*self.messages, Message("user", text)])

    def retry(self) -> None:
        """Answer the last question again; the new answer takes the old one's place."""
        if not self.messages:
            self._complain("There is nothing to answer again yet.")
            return
        answered = self.messages[-1].role == "assistant"
        self._answer(self.messages[:-1] if answered else self.messages)

    def save(self, path: Path) -> None:
        """Write the conversation to a new file."""
        messages = self._with_system(self.messages)
        if path.suffix == ".json":
            plain = [{"role": message.role, "content": message.content} for message in messages]
            text = json.dumps(plain, ensure_ascii=False, indent=2)
        else:
            text = "\n\n".join(f"## {message.role.capitalize()}\n\n{message.content}" for message in messages)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text + "\n")
        except FileExistsError:
            self._complain(f"{path} is there already: choose another name.")
        except OSError as error:
            self._complain(f"{path} cannot be written: {error.strerror}.")
        else:
            self._note(f"Saved to {path}.")

    # -- inside

    def _with_system(self, messages: Sequence[Message]) -> list[Message]:
        return [Message("system", self.system), *messages] if self.system else [*messages]

    def _answer(self, messages: list[Message]) -> bool:
        text: list[str] = []
        reasoning: list[str] = []
        tail = Tail(self._answers)
        try:
            with (
                _ctrl_c_noted() as inbox,
                self._engine.stream(self._with_system(messages), self._sampling) as generation,
            ):
                generation.subscribe(inbox.put)
                for event in self._until_first(_events(inbox, generation)):
                    match event:
                        case ReasoningDelta():
                            self._notes.out(event.text.translate(_INERT), end="", style="dim", highlight=False)
                            reasoning.append(event.text)
                        case TextDelta():
                            if reasoning and not text:
                                self._notes.print("\n")
                            tail.clear()
                            tail.passed(self._show(event.text))
                            text.append(event.text)
                        case Tentative() if self._answers.isatty() and not event.reasoning:
                            tail.show(event.text.translate(_INERT))
                        case Finished():
                            tail.clear()
                            self._end_line(text, reasoning)
                            self._note(summary(event))
        except StreamingError as error:
            tail.clear()
            self._end_line(text, reasoning)
            self._complain(str(error))
            if isinstance(error, InvalidRequest) and not (text or reasoning):
                return False
        said = Message("assistant", "".join(text), "".join(reasoning))
        self.messages = [*messages, said] if text or reasoning else messages
        return True

    def _until_first(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events without those that come before the answer: these show on a line that goes away."""
        with self._notes.status("") if self._notes.is_terminal else nullcontext() as line:
            while isinstance(event := next(events), Queued | Prefill):
                if line:
                    line.update(f"[dim]{escape(waiting(event))}[/]")
        yield event
        yield from (event for event in events if not isinstance(event, Queued | Prefill))

    def _show(self, text: str) -> str:
        """Returns what has been written: on a terminal, control characters as their pictures."""
        shown = text.translate(_INERT) if self._answers.isatty() else text
        self._answers.write(shown)
        self._answers.flush()
        return shown

    def _end_line(self, text: list[str], reasoning: list[str]) -> None:
        if text and not text[-1].endswith("\n"):
            self._show("\n")
        elif reasoning and not text:
            self._notes.print()

    def _note(self, text: str, style: str = "dim") -> None:
        whole_lines = not self._notes.is_terminal
        self._notes.print(text, style=style, markup=False, highlight=False, soft_wrap=whole_lines)

    def _complain(self, text: str) -> None:
        self.failures += 1
        self._note(text, style="red")


def waiting(event: Queued | Prefill) -> str:
    """What an answer waits for that has not begun."""
    if isinstance(event, Prefill):
        return f"Reading: {event.done:,} of {event.total:,} tokens"
    return event.detail or f"Waiting: number {event.position} in the queue"


def summary(finished: Finished) -> str:
    """One line about an answer: its size, its speed, why it ended early, what was left out of the prompt."""
    usage, timings = finished.usage, finished.timings
    parts = [f"{usage.completion_tokens:,} tokens"]
    if timings.decode_tps:
        parts.append(f"{timings.decode_tps:.1f} tokens/s")
    if timings.ttft_s:
        parts.append(f"first token {timings.ttft_s:.2f} s")
    if usage.proposed_tokens:
        parts.append(f"{usage.accepted_tokens:,} of {usage.proposed_tokens:,} guesses accepted")
    if finished.reason == "length":
        parts.append("cut at the longest answer allowed")
    elif finished.reason == "cancelled":
        parts.append("stopped")
    elif finished.stopped_by is not None:
        parts.append(f"ended at {finished.stopped_by!r}")
    if usage.dropped_messages:
        parts.append(f"the {usage.dropped_messages} oldest messages no longer fit the model's context")
    return " · ".join(parts)


@contextmanager
def _ctrl_c_noted() -> Iterator["SimpleQueue[Note]"]:
    """A queue that gets a None for each Ctrl-C. Its put() is one that a signal handler may call."""
    inbox: SimpleQueue[Note] = SimpleQueue()
    before = signal.signal(signal.SIGINT, lambda *_: inbox.put(None))
    try:
        yield inbox
    finally:
        signal.signal(signal.SIGINT, before)


def _events(inbox: "SimpleQueue[Note]", generation: Generation) -> Iterator[Event]:
    """The events of a generation; a None cancels it, and what had been made by then still comes."""
    while True:
        item = inbox.get()
        if item is None:
            generation.cancel()
        elif isinstance(item, StreamingError):
            raise item
        else:
            yield item
            if isinstance(item, Finished):
                return


class _Prompt:
    """Reads from a person: history, several lines, a draft. Ctrl-C clears the line; twice on an empty one leaves."""

    def __init__(self, notes: Console) -> None:
        self._notes = notes
        keys = KeyBindings()
        keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        keys.add("c-c")(self._clear)
        self._session: PromptSession[str] = PromptSession(
            "› ",
            multiline=True,
            key_bindings=keys,
            completer=WordCompleter(list(COMMANDS), sentence=True),
            complete_while_typing=False,
            prompt_continuation="  ",
        )

    @staticmethod
    def _clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    def __call__(self, draft: str) -> str | None:
        for last in (False, True):
            try:
                return self._session.prompt(default=draft)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not last:
                    self._notes.print("Ctrl-C once more, or Ctrl-D, leaves.", style="dim")
        return None


def _read_line(_: str) -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def chat(config: Config) -> int:
    """Talk until the user leaves, or the input ends. Returns the exit status: a pipe's is 1 if anything went wrong."""
    interactive = sys.stdin.isatty()
    notes = Console(stderr=True)
    engine = open_engine(config)
    try:
        talk = TerminalChat(engine, sys.stdout, notes)
        if not talk.load():
            return 1
        if interactive:
            notes.print(f"[bold]{escape(engine.status().model)}[/]  [dim]/help lists the commands[/]", highlight=False)
        talk.run(_Prompt(notes) if interactive else _read_line)
    finally:
        engine.close()
    return 1 if talk.failures and not interactive else 0
