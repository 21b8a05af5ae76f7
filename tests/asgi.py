"""Speaks to an ASGI app within this process, as clients over the network do who read slowly and leave early."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.types import ASGIApp, Message

LOCAL = "http://127.0.0.1:7860"
CHAT = "/v1/chat/completions"


class Client:
    """Whole responses, without asyncio for those who ask. NaN and half characters are sent as Python writes them."""

    def __init__(self, app: ASGIApp, runner: asyncio.Runner) -> None:
        self._app = app
        self._runner = runner

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str | bytes] | None = None
    ) -> httpx.Response:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = ({"Content-Type": "application/json"} if content is not None else {}) | dict(headers or {})
        raw = [(name.encode(), text if isinstance(text, bytes) else text.encode()) for name, text in named.items()]

        async def exchange() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url=LOCAL) as http:
                return await http.request(method, path, content=content, headers=raw)

        return self._runner.run(exchange())

    def get(self, path: str, **headers: str | bytes) -> httpx.Response:
        return self.send("GET", path, headers=headers)

    def chat(self, content: Any = "Hello", **fields: Any) -> httpx.Response:
        """Ask for an answer to one user message, or to `messages` if they are among the fields."""
        return self.send("POST", CHAT, {"messages": [{"role": "user", "content": content}]} | fields)


@contextmanager
def client_of(app: ASGIApp) -> Iterator[Client]:
    with asyncio.Runner() as runner:
        yield Client(app, runner)


class Exchange:
    """One chat request whose response is read piece by piece, by a client who can leave.

    `async with Exchange(app, ...) as exchange`; leaving the block waits until the app is done with it.
    """

    def __init__(self, app: ASGIApp, content: str = "Hello", **fields: Any) -> None:
        self._app = app
        self._body = json.dumps({"messages": [{"role": "user", "content": content}]} | fields).encode()
        self._asked = False
        self._gone = asyncio.Event()
        self._sent: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> "Exchange":
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "server": ("127.0.0.1", 7860),
            "client": ("127.0.0.1", 50000),
            "root_path": "",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": headers,
        }
        self._running = asyncio.ensure_future(self._run(scope))
        return self

    async def _run(self, scope: dict[str, Any]) -> None:
        await self._app(scope, self._receive, self._sent.put)

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.timeout(30):
            await self._running

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def read_until(self, text: str) -> str:
        """Everything that comes up to a piece that holds `text`."""
        got = ""
        async with asyncio.timeout(30):
            while text not in got:
                message = await self._sent.get()
                got += message.get("body", b"").decode()
        return got

    def leave(self) -> None:
        self._gone.set()


def events(body: str) -> list[Any]:
    """The data of server-sent events, in any client's reading: JSON but for [DONE]. Comments are left out."""
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in data]
