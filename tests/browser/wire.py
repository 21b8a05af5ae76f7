"""A network between the browser and the app that can break: it hands bytes on, until somebody cuts it.

Runs on an event loop in a thread of its own; all of it may be called from any other one.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Wire:
    """`url` is the app's address through it."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._open: set[asyncio.StreamWriter] = set()
        self._broken = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Every connection breaks, and new ones do so at once, until `mend`."""
        self._broken = True
        asyncio.run_coroutine_threadsafe(self._break(), self._loop).result(10)

    def mend(self) -> None:
        self._broken = False

    def close(self) -> None:
        self._server.close()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _break(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
        if self._broken:  # meanwhile
            writer.transport.abort()
            back.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(_hand_on(reader, back), _hand_on(there, writer))
        finally:
            self._open -= {writer, back}


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    try:
        yield made
    finally:
        made.close()
