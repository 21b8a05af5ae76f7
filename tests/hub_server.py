"""A stand-in for the Hub: just as much of its protocol as fetching a model takes."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import HfApi

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repos:
    """What the stand-in serves. A request for a file of `broken` gets half of it, and then the connection ends. While
    there is a `gate`, the second half of weights does not come before it is set."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    served: list[str] = field(default_factory=list)
    gate: threading.Event | None = None
    held: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # for each that waits there


def go_there(monkeypatch: pytest.MonkeyPatch, address: str, cache: Path) -> None:
    """Have this process, and the children that it starts, take the server at `address` for the Hub, with this cache."""
    monkeypatch.setattr("streaming.hub.HfApi", partial(HfApi, endpoint=address))  # the library has read its own already
    monkeypatch.setattr("streaming.hub.HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "2")


@contextmanager
def hub(repos: Repos) -> Iterator[str]:
    """Serve on a free port of this machine; yields the address for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path).strip("/").split("/")
            if path[:2] == ["api", "models"]:
                self.describe("/".join(path[2:4]), path[4:], body)
            else:
                self.serve("/".join(path[:2]), "/".join(path[4:]), body)

        def describe(self, repo: str, rest: list[str], body: bool) -> None:
            if repo not in repos.files:
                self.send(404, b"", body, {"X-Error-Code": "RepoNotFound"})
            elif rest[:1] == ["tree"]:
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": sha1(data).hexdigest()}
                    for name, data in repos.files[repo].items()
                ]
                self.send(200, json.dumps(entries).encode(), body)
            else:
                files = repos.files[repo]
                siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
                info = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
                config = {"config": json.loads(files["config.json"])} if "config.json" in files else {}
                self.send(200, json.dumps(info | config).encode(), body)

        def serve(self, repo: str, name: str, body: bool) -> None:
            data = repos.files.get(repo, {}).get(name)
            if repo in repos.gated:  # its description is public
                self.send(403, b"", body, {"X-Error-Code": "GatedRepo"})
                return
            if data is None:
                self.send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
                return
            headers = {"ETag": f'"{sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if wanted := self.headers.get("Range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                part = data[int(first) : int(last or len(data)) + 1]
                self.send(206, part, body, headers | {"Content-Range": f"bytes {first}-{last}/{len(data)}"})
                return
            if body:
                repos.served.append(name)
            half, gate = len(data) // 2, repos.gate if name.endswith(".safetensors") else None
            if body and gate is not None:
                self.send(200, data[:half], body, headers, length=len(data))
                repos.held.release()
                gate.wait(60)
                with suppress(OSError):  # who asked may be gone
                    self.wfile.write(data[half:])
                return
            sent = data[:half] if body and name in repos.broken else data
            self.send(200, sent, body, headers, length=len(data))

        def send(
            self, status: int, data: bytes, body: bool, headers: dict[str, str] | None = None, length: int | None = None
        ) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data) if length is None else length))
            self.end_headers()
            if body:
                self.wfile.write(data)
            self.close_connection = length is not None and length != len(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
