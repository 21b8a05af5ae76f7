"""Runs the app as its users do: `python app.py` in a process of its own, on a free port, and ended afterwards.

Knows nothing of pages. What the process says is kept, and shown when a test fails. Only `shared_app` is in
this process.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from streaming.config import Config
from streaming.ui.launch import build_app

ROOT = Path(__file__).parents[2]
END_S = 60.0
START_S = 90.0


@dataclass(frozen=True, slots=True)
class RunningApp:
    """`url` has no slash at its end."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def running_app(
    folder: Path, *, port: int | None = None, environment: Mapping[str, str] | None = None, **settings: object
) -> Iterator[RunningApp]:
    """The app on the scripted engine, or as `settings` say: `max_new_tokens=8`, `share=True`.

    It keeps conversations on the disk only if there is a `data_dir`. Its output goes to a file in `folder`. It is up
    when /health answers, be it that the model still loads. Raises RuntimeError with its output if it does not come up.
    """
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / f"app-{port}.log"
    history: dict[str, object] = {} if "data_dir" in settings else {"no_history": True}
    command = [sys.executable, "app.py", *_flags({"engine": "scripted", "port": port} | history | settings)]
    clean = {
        name: text for name, text in os.environ.items() if not name.startswith(("STREAMING_", "GRADIO_", "SPACE_"))
    }
    surroundings = clean | {"GRADIO_ANALYTICS_ENABLED": "False", "PYTHONUNBUFFERED": "1"} | dict(environment or {})
    with (
        log.open("ab") as output,
        subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        app = RunningApp(url, process, log)
        try:
            _wait_until_up(app)
            yield app
        finally:
            _end(process)


@contextmanager
def shared_app(link: str, **settings: object) -> Iterator[str]:
    """The address of an app to which Gradio's service would have given the link; `settings` as of `running_app`."""
    config = Config(**{"engine": "scripted", "no_history": True, "port": free_port()} | settings)  # type: ignore[arg-type]
    app = build_app(config)
    app.launch(block=False)
    app.page.share_url = link  # type: ignore[assignment]
    yield f"http://127.0.0.1:{config.port}"
    app.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _flags(settings: dict[str, object]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        flags += [flag] if value is True else [flag, str(value)]
    return flags


def _wait_until_up(app: RunningApp) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if app.process.poll() is not None:
            raise RuntimeError(f"The app ended with {app.process.returncode}:\n{app.output()}")
        try:
            httpx.get(f"{app.url}/health", timeout=5)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"The app was not up after {START_S:.0f} s:\n{app.output()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # as Ctrl-C: the app closes its engine
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise RuntimeError(f"Ctrl-C had not ended the app after {END_S:.0f} s.") from error
