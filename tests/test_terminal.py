"""The terminal chat: what it shows, what its commands do, and that Ctrl-C stops the answer and not the program.

The first half drives the chat object on an engine that plays fixed events; the second half is a real process in a
pseudo-terminal, typed at as a person would.
"""

import codecs
import fcntl
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from streaming.engines import Generation, Status
from streaming.errors import ContextTooLong, GenerationFailed, StreamingError
from streaming.events import Event, Finished, Prefill, Queued, ReasoningDelta, Tentative, TextDelta, Timings, Usage
from streaming.messages import Assisted, Beam, Message, PromptLookup, Sampling, Strategy, check_messages
from streaming.terminal import TerminalChat, summary

ROOT = Path(__file__).parents[1]
Play = Sequence[Event | StreamingError]


class Player:
    """An engine whose answers are given: the next list of events for each request."""

    def __init__(self, *plays: Play, state: Sequence[Status] = (Status("ready", "player"),)) -> None:
        self.plays = list(plays)
        self.states = list(state)
        self.asked: list[list[Message]] = []
        self.samplings: list[Sampling | None] = []

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
        model: str | None = None,
    ) -> Generation:
        assert not isinstance(prompt, str)
        check_messages(prompt, continues=continues)
        self.asked.append(list(prompt))
        self.samplings.append(sampling)
        generation = Generation()
        for item in self.plays.pop(0):
            if isinstance(item, StreamingError):
                generation.fail(item)
            else:
                generation.emit(item)
        return generation

    def start(self) -> None:
        """It is ready as it is."""

    def status(self) -> Status:
        return self.states[0]

    def wait_ready(self, timeout: float | None = None) -> Status:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def switch(self, name: str, done: Callable[[StreamingError | None], None]) -> None:
        """The terminal chat does not choose models."""

    def call_off(self) -> bool:
        return False

    def close(self) -> None:
        self.states = [Status("closed", "player")]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Desk:
    """A chat with its two outputs: `answers` and `notes`."""

    def __init__(self, engine: Player, terminal: bool = False) -> None:
        self.engine = engine
        self._answers = Screen() if terminal else io.StringIO()
        self._notes = io.StringIO()
        notes = Console(file=self._notes, force_terminal=terminal, width=80, color_system=None)
        self.chat = TerminalChat(engine, self._answers, notes)

    @property
    def answers(self) -> str:
        return self._answers.getvalue()

    @property
    def notes(self) -> str:
        return " ".join(self._notes.getvalue().split())

    def run(self, *lines: str) -> list[str]:
        """Type these lines; returns the draft that the prompt showed before each, and at the end."""
        drafts: list[str] = []
        waiting: Iterator[str] = iter(lines)

        def read(draft: str) -> str | None:
            drafts.append(draft)
            return next(waiting, None)

        self.chat.run(read)
        return drafts


def said(text: str, *, tokens: int = 2) -> Play:
    return [Prefill(0, 5), TextDelta(text, tokens), Finished("stop", Usage(5, 0, tokens))]


def test_an_answer_goes_to_the_output_and_all_else_to_the_error_output() -> None:
    desk = Desk(Player([Queued(1), Prefill(5, 5), TextDelta("It "), TextDelta("rains."), Finished("stop")]))
    desk.run("How is it outside?")
    assert desk.answers == "It rains.\n"
    assert desk.notes == "0 tokens"
    assert desk.chat.messages == [Message("user", "How is it outside?"), Message("assistant", "It rains.")]


def test_the_next_question_carries_the_chat_so_far() -> None:
    desk = Desk(Player(said("One."), said("Two.")))
    desk.run("1?", "2?")
    assert desk.engine.asked[1] == [Message("user", "1?"), Message("assistant", "One."), Message("user", "2?")]


def test_thinking_is_shown_apart_and_kept() -> None:
    desk = Desk(Player([ReasoningDelta("Hm, "), ReasoningDelta("well."), TextDelta("Yes."), Finished("stop")]))
    desk.run("Is it?")
    assert desk.answers == "Yes.\n"
    assert desk.notes.startswith("Hm, well.")
    assert desk.chat.messages[-1] == Message("assistant", "Yes.", "Hm, well.")


def test_an_answer_that_was_stopped_while_thinking_keeps_its_thoughts() -> None:
    """hermes-webui 893: a stop during the reasoning lost it."""
    desk = Desk(Player([ReasoningDelta("Hm"), Finished("cancelled")]))
    desk.run("Is it?")
    assert desk.answers == ""
    assert desk.notes == "Hm 0 tokens · stopped"
    assert desk.chat.messages[-1] == Message("assistant", "", "Hm")


def test_an_error_in_the_middle_keeps_what_was_said() -> None:
    """transformers 22576: an exception in the model left the reader waiting for ever."""
    desk = Desk(Player([TextDelta("One two"), GenerationFailed("The model broke.")], said("Again.")))
    desk.run("Count", "/retry")
    assert desk.answers == "One two\nAgain.\n"
    assert "The model broke." in desk.notes
    assert desk.chat.messages == [Message("user", "Count"), Message("assistant", "Again.")]
    assert desk.chat.failures == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_refused_text_comes_back_into_the_prompt(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(Player([ContextTooLong(9_000, 8_192)], said("Yes.")))
    if not late:
        monkeypatch.setattr(desk.engine, "stream", lambda *_: (_ for _ in ()).throw(ContextTooLong(9_000, 8_192)))
    assert desk.run("a long text") == ["", "a long text"]
    assert "9,000 tokens" in desk.notes
    assert desk.chat.messages == []


def test_an_error_before_the_first_word_leaves_the_question_to_be_retried() -> None:
    desk = Desk(Player([GenerationFailed("The model broke.")], said("Yes.")))
    assert desk.run("Is it?", "/retry") == ["", "", ""]
    assert desk.engine.asked[1] == [Message("user", "Is it?")]
    assert desk.chat.messages == [Message("user", "Is it?"), Message("assistant", "Yes.")]


def test_retry_puts_the_new_answer_in_the_place_of_the_old_one() -> None:
    desk = Desk(Player(said("One."), said("Two.")))
    desk.run("Is it?", "/retry")
    assert desk.chat.messages == [Message("user", "Is it?"), Message("assistant", "Two.")]


def test_retry_before_anything_was_said() -> None:
    desk = Desk(Player())
    desk.run("/retry")
    assert desk.notes == "There is nothing to answer again yet."


def test_the_system_prompt_goes_first_and_can_be_taken_back() -> None:
    desk = Desk(Player(said("Yes."), said("Yes.")))
    desk.run("/system Be brief.", "a", "/system", "b")
    assert desk.engine.asked[0] == [Message("system", "Be brief."), Message("user", "a")]
    assert [message.role for message in desk.engine.asked[1]] == ["user", "assistant", "user"]


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_line_is_nothing(text: str) -> None:
    desk = Desk(Player())
    desk.run(text)
    assert desk.notes == ""
    assert desk.engine.asked == []


def test_an_unknown_command_says_so_and_is_not_sent() -> None:
    desk = Desk(Player())
    desk.run("/sytsem x", "/retry now", "/")
    assert desk.notes.count("There is no command") == 3
    assert "'/sytsem x'" in desk.notes
    assert desk.engine.asked == []


def test_two_slashes_send_one() -> None:
    desk = Desk(Player(said("A path.")))
    desk.run("//etc/hosts is what?")
    assert desk.engine.asked == [[Message("user", "/etc/hosts is what?")]]


def test_exit_reads_no_further() -> None:
    desk = Desk(Player())
    assert desk.run("/exit", "not sent") == [""]


def test_help_names_every_command() -> None:
    desk = Desk(Player())
    desk.run("/help")
    assert {"/system", "/retry", "/strategy", "/save", "/help", "/exit"} <= set(desk.notes.split())


def test_save_as_markdown(tmp_path: Path) -> None:
    desk = Desk(Player(said("# Yes\n")))
    path = tmp_path / "chat.md"
    desk.run("/system Be brief.", "Is it?", f"/save {path}")
    assert (
        path.read_text(encoding="utf-8") == "## System\n\nBe brief.\n\n## User\n\nIs it?\n\n## Assistant\n\n# Yes\n\n"
    )


def test_save_as_json(tmp_path: Path) -> None:
    desk = Desk(Player(said("Ja 🙂")))
    path = tmp_path / "chat.json"
    desk.run("Ist es?", f"/save {path}")
    assert json.loads(path.read_text(encoding="utf-8")) == [
        {"role": "user", "content": "Ist es?"},
        {"role": "assistant", "content": "Ja 🙂"},
    ]


def test_save_never_overwrites_and_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    path.write_text("precious")
    desk = Desk(Player())
    desk.run(f"/save {path}", f"/save {tmp_path / 'no' / 'folder'}", "/save")
    assert path.read_text() == "precious"
    assert "is there already" in desk.notes
    assert "cannot be written: No such file" in desk.notes
    assert "/save needs the name of a file" in desk.notes


def test_model_text_does_not_steer_the_terminal() -> None:
    """An escape sequence in an answer could rewrite the screen, the window's title or the clipboard."""
    evil = "a\x1b]0;title\x07b\x9b2Jc\rd\x7f\te\n"
    on_screen = Desk(Player(said(evil)), terminal=True)
    on_screen.run("x")
    assert on_screen.answers == "a␛]0;title␇b\ufffd2Jcd␡\te\n"
    assert on_screen.chat.messages[-1].content == evil
    piped = Desk(Player(said(evil)))
    piped.run("x")
    assert piped.answers == evil


def test_markup_in_an_answer_is_text() -> None:
    desk = Desk(Player(said("[bold]x[/] :smile: [/nope]")), terminal=True)
    desk.run("x")
    assert desk.answers == "[bold]x[/] :smile: [/nope]\n"


def test_waiting_shows_on_a_terminal_only() -> None:
    play = [Queued(2), Queued(1, "Loading the model"), Prefill(512, 1_024), TextDelta("Yes."), Finished("stop")]
    on_screen, piped = Desk(Player(play), terminal=True), Desk(Player(play))
    on_screen.run("x")
    piped.run("x")
    assert "Reading: 512 of 1,024 tokens" in on_screen.notes
    assert piped.notes == "0 tokens"


def test_loading_tells_what_is_being_done_and_the_notices_of_the_model() -> None:
    states = [
        Status("loading", "m", "Downloading"),
        Status("loading", "m", "Downloading"),
        Status("ready", "m", notices=("A small model.",)),
    ]
    desk = Desk(Player(state=states))
    assert desk.chat.load()
    assert desk.notes == "Downloading A small model."


def test_a_model_that_cannot_be_loaded() -> None:
    desk = Desk(Player(state=[Status("loading", "m"), Status("failed", "m", "There is no model m.")]))
    assert not desk.chat.load()
    assert desk.notes == "Loading m There is no model m."


@pytest.mark.parametrize(
    ("finished", "line"),
    [
        (Finished("stop"), "0 tokens"),
        (
            Finished("stop", Usage(5, 0, 1_042), Timings(0.1, 0.254, 27.13)),
            "1,042 tokens · 27.1 tokens/s · first token 0.25 s",
        ),
        (Finished("length", Usage(5, 0, 8)), "8 tokens · cut at the longest answer allowed"),
        (Finished("cancelled"), "0 tokens · stopped"),
        (Finished("stop", stopped_by="END"), "0 tokens · ended at 'END'"),
        (
            Finished("stop", Usage(dropped_messages=4)),
            "0 tokens · the 4 oldest messages no longer fit the model's context",
        ),
    ],
)
def test_the_line_below_an_answer(finished: Finished, line: str) -> None:
    assert summary(finished) == line


# -- the real thing, on the scripted engine

COMMAND = [sys.executable, "-m", "streaming", "chat", "--engine", "scripted"]
CTRL_C, CTRL_D, ALT_ENTER, UP = "\x03", "\x04", "\x1b\r", "\x1b[A"


class Typist:
    """A process in a pseudo-terminal of 100 columns, and somebody who types and waits for what appears."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        self.process = subprocess.Popen(
            COMMAND,
            cwd=ROOT,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C becomes a signal
        )
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def see(self, pattern: str, timeout: float = 30.0) -> str:
        """Wait until it appears; what has been seen so far is done with."""
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.screen, re.S)):
            assert self._read(deadline), f"{pattern!r} did not appear in: {self.screen[-2000:]!r}"
        self.screen = self.screen[found.end() :]
        return found.group()

    def end(self, timeout: float = 10.0) -> int:
        deadline = time.monotonic() + timeout
        while self._read(deadline):
            pass
        return self.process.wait(timeout)

    def _read(self, deadline: float) -> bool:
        """Take in what has come. False when nothing more can come, or time is up."""
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            seen = self._decoder.decode(os.read(self._master, 65536))
        except OSError:  # how Linux says that the other end is closed
            return False
        if "\x1b[6n" in seen:  # prompt_toolkit asks where the cursor is
            os.write(self._master, b"\x1b[1;1R")
        self.screen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07", "", seen)
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def typist() -> Iterator[Typist]:
    typist = Typist()
    typist.see("›")
    yield typist
    typist.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(typist: Typist) -> None:
    typist.type("//say 5000 tokens at 50 tok/s\r")
    typist.see(r"(\S+\s+){30}")  # more than the echo of what was typed
    typist.type(CTRL_C)
    typist.see("· stopped")
    typist.type("//say 3 tokens at 50 tok/s\r")
    typist.see(r"3 tokens ·")
    typist.type("/exit\r")
    assert typist.end() == 0


def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_leaves(typist: Typist) -> None:
    typist.type("half a thought")
    typist.see("thought")
    typist.type(CTRL_C + CTRL_C)
    typist.see("once more")
    typist.see("›")
    typist.type(CTRL_C)
    assert typist.end() == 0


def test_ctrl_d_leaves(typist: Typist) -> None:
    typist.type(CTRL_D)
    assert typist.end() == 0


def test_alt_enter_breaks_the_line_and_the_arrow_brings_it_back(typist: Typist, tmp_path: Path) -> None:
    typist.type(f"//text{ALT_ENTER}first words\r")
    typist.see("tokens")
    typist.see("›")
    typist.type(f"{UP}\r")
    typist.see("tokens")
    typist.see("›")
    typist.type(f"/save {tmp_path}/chat.json\r")
    typist.see("Saved to")
    asked = [message["content"] for message in json.loads((tmp_path / "chat.json").read_text())]
    assert asked[0::2] == ["/text\nfirst words"] * 2


def test_a_pipe_gets_the_answers_alone() -> None:
    done = subprocess.run(
        COMMAND, cwd=ROOT, input="//say 3 tokens at 90 tok/s\n/nonsense\n", capture_output=True, text=True, timeout=60
    )
    assert len(done.stdout.split()) == 3
    assert "There is no command '/nonsense'" in done.stderr
    assert "3 tokens" in done.stderr
    assert done.returncode == 1


# -- strategies


def test_what_is_tentative_is_dim_and_goes_away() -> None:
    """Nothing of it is said; nothing of it goes into a pipe."""
    play: Play = [TextDelta("It "), Tentative("may \x1b be"), Tentative("snows"), TextDelta("rains"), Tentative("!")]
    desk = Desk(Player([*play, Finished("cancelled")]), terminal=True)
    desk.run("How is it outside?")
    dim = "\x1b7\x1b[2m{}\x1b[22m\x1b8".format
    wipe = "\x1b[K"
    assert desk.answers == f"It {dim('may ␛ be')}{wipe}{dim('snows')}{wipe}rains{dim('!')}{wipe}\n"
    assert desk.chat.messages[-1] == Message("assistant", "It rains")
    pipe = Desk(Player([*play, Finished("stop")]))
    pipe.run("How is it outside?")
    assert pipe.answers == "It rains\n"


def test_a_line_full_of_pictures_has_no_room_for_what_is_tentative(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control character takes no cell, the picture that is written in its place takes one."""
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "5")
    desk = Desk(Player([TextDelta("a" + "\x1b" * 18), Tentative("wraps"), Finished("stop")]), terminal=True)
    desk.run("How is it outside?")
    assert desk.answers == "a" + "␛" * 18 + "\n"


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ("plain", None),
        ("beams 2", Beam(2)),
        ("beams", Beam()),
        ("lookup 7", PromptLookup(7)),
        ("assisted", Assisted("small")),
    ],
)
def test_a_strategy_is_chosen(words: str, strategy: Strategy | None) -> None:
    desk = Desk(Player(said("Yes."), state=[Status("ready", "large", draft="small")]))
    desk.run(f"/strategy {words}", "Is it?")
    assert desk.engine.samplings == [Sampling(strategy=strategy)]
    assert words in desk.notes


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("beams 99", "num_beams is 99"),
        ("beams many", "/strategy is one of"),
        ("beams 2 3", "/strategy is one of"),
        ("greedy", "/strategy is one of"),
        ("", "/strategy is one of"),
        ("assisted", "needs the name of the model"),
    ],
)
def test_a_strategy_that_there_is_not(words: str, complaint: str) -> None:
    desk = Desk(Player(said("Yes.")))
    desk.run(f"/strategy {words}", "Is it?")
    assert complaint in desk.notes
    assert desk.engine.samplings == [None]


def test_guesses_are_summed_up() -> None:
    usage = Usage(completion_tokens=9, proposed_tokens=10, accepted_tokens=6)
    assert "6 of 10 guesses accepted" in summary(Finished("stop", usage))
