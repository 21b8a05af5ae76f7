"""Fetching a model in a child process: it can be given up at once, and whoever answers meanwhile is not slowed down.

The child runs `models.prepare` and says on its output how it goes, a line of JSON each. Its input is a lifeline: when
the parent is gone it ends, and the child does with all who work for it. `run` blocks, and is for a thread of its own.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from streaming import models
from streaming.errors import ModelError, ModelNotFound, ModelTooLarge, NoDiskSpace, NoNetwork, StreamingError

KINDS = {kind.__name__: kind for kind in (ModelError, ModelNotFound, ModelTooLarge, NoDiskSpace, NoNetwork)}
TELL_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: words for a person, and bytes; a `total` of 0 is not known."""

    words: str
    done: int = 0
    total: int = 0

    @property
    def fraction(self) -> float | None:
        return min(self.done / self.total, 1.0) if self.total else None


class Fetch:
    """Brings the model `name` onto this machine, once. `cancel` may come from any thread, before `run` too."""

    def __init__(self, name: str, cache_dir: Path | None) -> None:
        self._name = name
        self._cache_dir = cache_dir
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._cancelled = False

    def run(self, progress: Callable[[Progress], None]) -> bool:
        """Block until the model is here. False: it was given up before.

        `progress` is called in this thread; what it raises ends the work. Raises the child's own ModelError.
        """
        with tempfile.TemporaryFile() as said:
            child = self._start(said)
            if child is None:
                return False
            with child:
                try:
                    last = self._converse(child, progress)
                    status = child.wait()
                except BaseException:
                    _kill(child)
                    raise
            if last.get("here"):
                return True
            if last:
                raise KINDS.get(last["error"], ModelError)(last["text"])
            _kill(child)  # an installer may have outlived it
            models.clear_away(self._name, self._cache_dir)
            if self._cancelled:
                return False
            raise ModelError(self._broken_off(status, said))

    def cancel(self) -> None:
        """End the child at once. Files that have come whole stay, and need not come again."""
        with self._lock:
            self._cancelled = True
            if self._child is not None and self._child.returncode is None:
                _kill(self._child)

    def _start(self, said: IO[bytes]) -> subprocess.Popen[str] | None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("STREAMING_")}  # no secrets
        with self._lock:
            if self._cancelled:
                return None
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "streaming.fetching",
                ],  # what to fetch is somebody's text: no argument is made of it
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                cwd=Path(__file__).parents[1],
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a group of its own, for all that work for it
            )
            return self._child

    def _converse(self, child: subprocess.Popen[str], progress: Callable[[Progress], None]) -> dict[str, Any]:
        """Ask, and pass on how it goes. Returns how it ended; nothing, if the child did not come to say it."""
        assert child.stdin is not None
        assert child.stdout is not None
        job = {"name": self._name, "cache_dir": str(self._cache_dir or ""), "folder": os.getcwd()}
        with suppress(BrokenPipeError):  # it is dead already
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
        for line in child.stdout:
            if not line.startswith("{"):
                continue  # a library's remark, before the child's own code ran
            if not line.endswith("\n"):
                break  # it was ended in the middle of it
            told = json.loads(line)
            if "words" not in told:
                return dict(told)
            progress(Progress(**told))
        return {}

    def _broken_off(self, status: int, said: IO[bytes]) -> str:
        if status < 0:
            return (
                f"Fetching {self._name} was ended from outside (by signal {-status}), perhaps because memory ran "
                "short. Choose it again: what has come whole is kept."
            )
        said.seek(0)
        lines = said.read().decode(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(lines) if line.strip()), "no reason was given")
        return f"Fetching {self._name} failed ({reason})."


def _kill(child: subprocess.Popen[str]) -> None:
    """The child, and whoever works for it: an installer, a converter."""
    if sys.platform == "win32":
        child.kill()
    else:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


# -- the child


class _Teller:
    """Says what becomes of it: the latest, and not too often. May be told from any thread."""

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._figures = (0, 0)
        self._news: Progress | None = None

    def measure(self, done: int, total: int) -> None:
        self._figures = done, total

    def say(self, words: str) -> None:
        self._news = Progress(words, *self._figures)

    def run(self) -> None:
        """Pass on what is new, for ever."""
        while True:
            time.sleep(TELL_EVERY_S)
            self.pass_on()

    def pass_on(self, end: dict[str, Any] | None = None) -> None:
        with self._lock:
            news, self._news = self._news, None
            for told in (asdict(news) if news else None, end):
                if told:
                    print(json.dumps(told), file=self._output, flush=True)


def _end_with_parent() -> None:
    """Wait for the end of the input, which is the parent's."""
    while os.read(sys.stdin.fileno(), 1):
        pass  # there is nothing more to be said
    if sys.platform == "win32":
        os._exit(1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    output, sys.stdout = sys.stdout, sys.stderr  # a library's remarks are no lines of ours
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.chdir(job["folder"])  # names of folders are meant from there
    teller = _Teller(output)
    threading.Thread(target=teller.run, daemon=True).start()
    cache_dir = Path(job["cache_dir"]) if job["cache_dir"] else None
    try:
        models.prepare(job["name"], cache_dir=cache_dir, progress=teller.say, measure=teller.measure)
    except StreamingError as error:
        teller.pass_on({"error": type(error).__name__, "text": str(error)})
    else:
        teller.pass_on({"here": True})


if __name__ == "__main__":
    main()
