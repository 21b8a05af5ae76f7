"""Every command of docs/guide.md is run as it stands, in an empty folder with a model of a few thousand numbers."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
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
START_S = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader stands: what the guide names is there."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "app.py").symlink_to(ROOT / "app.py")
    for name in ("my-model", "its-little-sister"):
        tiny_folder(tmp_path / name)
    return tmp_path


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


@pytest.mark.parametrize("command", APPS)
def test_the_app_comes_up(command: str, folder: Path) -> None:
    """On the model that the command names, or else on the scripted engine in place of the starter model."""
    port, more = free_port(), {}
    if "logins.txt" in command:
        log_in(folder)
    if "--engine" in command:
        served = serve_engine(ScriptedEngine())
        command = command.replace("http://127.0.0.1:8000", served.url)
    elif "--model" not in command:
        more = {"STREAMING_ENGINE": "scripted"}
    surroundings = environment(folder, STREAMING_PORT=str(port), PYTHONUNBUFFERED="1", **more)
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            shlex.split(command), cwd=folder, env=surroundings, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process, log)
            printed = log.read_text()
            assert f"Open http://127.0.0.1:{port}" in printed
            assert ("public link" in printed.lower()) == ("--share" in command)
            assert (folder / "chats").exists() == ("./chats" in command)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"{url}/health", timeout=5).json()["status"] == "ok" and "Open" in log.read_text():
                return
        except httpx.TransportError:
            pass
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
