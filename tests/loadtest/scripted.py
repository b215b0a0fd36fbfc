"""A tiny engine on a real socket: each request gets the next script; what it saw is kept."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from surgetank.wire.http1 import LAST_CHUNK, chunk

DATA = Path(__file__).parent / "data"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = STREAM_HEAD + chunk(TOKEN) + chunk(TOKEN) + chunk(USAGE) + chunk(DONE) + LAST_CHUNK


class Exchange:
    """One request as the engine saw it, and the way to answer it."""

    def __init__(
        self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.head = head
        self.body = body
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    async def gone(self) -> None:
        """Wait until the client has hung up."""
        try:
            while await self._reader.read(4096):
                pass
        except ConnectionResetError:
            pass


Script = bytes | Callable[[Exchange], Awaitable[None]]


class Engine:
    """Answers its requests with `scripts` in order, the last one for all that follow."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = scripts
        self._tls = tls
        self.requests: list[Exchange] = []
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}" if self._tls is None else f"https://localhost:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
                body = await reader.readexactly(int(length))
                exchange = Exchange(head, body, reader, writer)
                script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
                self.requests.append(exchange)
                if isinstance(script, bytes):
                    await exchange.write(script)
                else:
                    await script(exchange)
        except (asyncio.IncompleteReadError, ConnectionResetError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def capture(name: str) -> bytes:
    """Read the bytes of a captured answer, its chunk framing put back where it was taken away."""
    data = (DATA / name).read_bytes()
    head, _, body = data.partition(b"\r\n\r\n")
    if b"chunked" in head and body.startswith(b"data:"):
        return head + b"\r\n\r\n" + chunk(body) + LAST_CHUNK
    return data
