"""Serves an engine of this process over real HTTP, and starts servers that others wrote; each is ended afterwards."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from streaming.api import routes
from streaming.engines.base import Engine
from streaming.engines.scripted import ScriptedEngine
from tests.browser.server import ROOT, free_port

START_S = 150.0


class Served:
    """An ASGI app on a port of this machine. `url` has no slash at its end."""

    def __init__(self, app: ASGIApp, port: int = 0) -> None:
        config = uvicorn.Config(
            app, port=port, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="uvicorn", daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.005)
        self.port = int(self._server.servers[0].sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


def serve_engine(engine: Engine) -> Served:
    """The app's own API in front of an engine."""
    engine.start()
    return Served(Starlette(routes=routes(engine)))


@contextmanager
def scripted_server(port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """The same in a process of its own, which can be killed, on the scripted engine. It is up when this yields."""
    port = port or free_port()
    command = [sys.executable, "-m", "tests.serving", str(port)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            _wait_until_up(f"http://127.0.0.1:{port}", process)
            yield process
        finally:
            process.kill()


@contextmanager
def transformers_serve(model: Path, log: Path) -> Iterator[str]:
    """The server that comes with transformers, on a folder. Yields its address, with /v1."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model)]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        ) as process,
    ):
        try:
            _wait_until_up(url, process, log)
            yield f"{url}/v1"
        finally:
            process.kill()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path | None = None) -> None:
    deadline = time.monotonic() + START_S
    while not _is_up(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"The server is not up: {log.read_text(errors='replace') if log else process.poll()}")
        time.sleep(0.1)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    behind = ScriptedEngine()
    behind.start()
    uvicorn.run(Starlette(routes=routes(behind)), port=int(sys.argv[1]), log_level="error")
