"""A stand-in for the Hub: just as much of its protocol as fetching a model takes."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repos:
    """What the stand-in serves. A request for a file of `broken` gets half of it, and then the connection ends."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    served: list[str] = field(default_factory=list)


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
                siblings = [{"rfilename": name, "size": len(data)} for name, data in repos.files[repo].items()]
                info = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
                self.send(200, json.dumps(info).encode(), body)

        def serve(self, repo: str, name: str, body: bool) -> None:
            data = repos.files.get(repo, {}).get(name)
            if repo in repos.gated:  # its description is public
                self.send(403, b"", body, {"X-Error-Code": "GatedRepo"})
                return
            if data is None:
                self.send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
                return
            if body:
                repos.served.append(name)
            sent = data[: len(data) // 2] if body and name in repos.broken else data
            headers = {"ETag": f'"{sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
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
