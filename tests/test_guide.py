"""Every command of docs/guide.md is run as it stands, in an empty folder with a model of a few thousand numbers."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from streaming.engines.scripted import ScriptedEngine
from tests.browser.server import ROOT, free_port
from tests.serving import serve_engine
from tests.tiny import tiny_folder

GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```bash\n(.*?)\n```$", GUIDE, re.M | re.S)
APPS = [command for command in COMMANDS if "python app.py" in command]
START_S = 240.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return as_the_reader_has_it(tmp_path)


def as_the_reader_has_it(folder: Path) -> Path:
    """Where the reader stands: what the guide names is there."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (folder / "app.py").symlink_to(ROOT / "app.py")
    for name in ("my-model", "its-little-sister"):
        tiny_folder(folder / name)
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("STREAMING_", "GRADIO_"))}
    home = {"XDG_DATA_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT), "GRADIO_ANALYTICS_ENABLED": "False"}
    return clean | home | more


def log_in(folder: Path) -> None:
    """The guide's line for a user, typed as a person types it."""
    (command,) = [command for command in COMMANDS if "password" in command]
    subprocess.run(
        command, shell=True, cwd=folder, env=environment(folder), input=b"a secret\na secret\n", check=True, timeout=60
    )
    assert re.fullmatch(r"ann:scrypt\$\S+\n", (folder / "logins.txt").read_text())


@dataclass(frozen=True)
class Start:
    """A command of the guide on its way to an app, in a folder of its own."""

    folder: Path
    url: str
    process: subprocess.Popen[bytes]

    def output(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Start]]:
    """All apps of the guide, started at once: each is idle most of its start. They run on the model that the command
    names, or else on the scripted engine in place of the starter model."""
    served = serve_engine(ScriptedEngine())
    with ExitStack() as stack:
        starts = {}
        for command in APPS:
            folder, port = as_the_reader_has_it(tmp_path_factory.mktemp("guide")), free_port()
            more = {} if "--engine" in command or "--model" in command else {"STREAMING_ENGINE": "scripted"}
            if "logins.txt" in command:
                log_in(folder)
            process = stack.enter_context(
                subprocess.Popen(
                    shlex.split(command.replace("http://127.0.0.1:8000", served.url)),
                    cwd=folder,
                    env=environment(folder, STREAMING_PORT=str(port), PYTHONUNBUFFERED="1", **more),
                    stdout=stack.enter_context((folder / "log").open("wb")),
                    stderr=subprocess.STDOUT,
                )
            )
            stack.callback(process.send_signal, signal.SIGINT)
            starts[command] = Start(folder, f"http://127.0.0.1:{port}", process)
        yield starts
    served.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", APPS)
def test_the_app_comes_up(command: str, starts: dict[str, Start]) -> None:
    start = starts[command]
    wait_until_ready(start)
    assert f"Open {start.url}" in start.output()
    assert ("public link" in start.output().lower()) == ("--share" in command)
    assert (start.folder / "chats").exists() == ("./chats" in command)


def wait_until_ready(start: Start) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert start.process.poll() is None, start.output()
        assert time.monotonic() < deadline, start.output()
        try:
            ready = httpx.get(f"{start.url}/health", timeout=5).json()["status"] == "ok"
        except httpx.TransportError:
            ready = False
        if ready and "Open" in start.output():  # a link that cannot be had is waited for
            return
        time.sleep(0.1)


def test_a_line_in_a_pipe_is_answered(folder: Path) -> None:
    (command,) = [command for command in COMMANDS if "streaming chat" in command]
    answered = subprocess.run(
        command, shell=True, cwd=folder, env=environment(folder), capture_output=True, check=True, timeout=120
    )
    assert answered.stdout.strip()


def test_curl_gets_the_stream() -> None:
    (command,) = [command for command in COMMANDS if command.startswith("curl")]
    served = serve_engine(ScriptedEngine())
    command = command.replace("http://127.0.0.1:7860", served.url).replace("A word for rain?", "/say 3 tokens")
    lines = subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=60).stdout.splitlines()
    assert sum(line.startswith(b"data: {") for line in lines) >= 3
    assert [line for line in lines if line][-1] == b"data: [DONE]"
    served.close()


def test_every_command_is_one_of_these_and_every_file_is_there() -> None:
    (install,) = [command for command in COMMANDS if "pip install" in command]
    assert install in (ROOT / "README.md").read_text(encoding="utf-8"), "the gate runs it from there"
    tried = [*APPS, install, *(command for command in COMMANDS if re.match(r"curl|echo|.*streaming password", command))]
    assert sorted(tried) == sorted(COMMANDS)
    for link in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (ROOT / "docs" / link).exists(), link
