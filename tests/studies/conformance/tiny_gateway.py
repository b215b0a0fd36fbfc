"""A tiny gateway to try the checks on: a limit, and on demand one well-known fault.

It passes on what it gets as it is, to the first of its engines. Faults: `leaky` never gives back
the slot of a client that left; `early` gives it back when the head of the answer was sent;
`unlimited` forgets its limit; `breaker` refuses everything for a minute after a 503; `silent`
closes instead of refusing. Standard library only: it starts in a moment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

FAULTS = ("leaky", "early", "unlimited", "breaker", "silent")
OPEN_FOR = 60.0


class Gateway:
    def __init__(self, upstream: str, limit: int, fault: str) -> None:
        self.host, _, port = upstream.rpartition("/")[2].partition(":")
        self.port = int(port)
        self.limit = limit
        self.fault = fault
        self.running = 0
        self.refuses_until = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        sizes = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-len")]
        body = await reader.readexactly(sizes[0]) if sizes else b""
        full = self.running >= self.limit and self.fault != "unlimited"
        if head.startswith(b"GET /health "):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        elif full and self.fault == "silent":
            return
        elif full or asyncio.get_running_loop().time() < self.refuses_until:
            text = b'{"error":{"message":"full","type":"rate_limit_error"}}'
            fields = b"retry-after: 1\r\nconnection: close\r\ncontent-length: %d" % len(text)
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\n%b\r\n\r\n%b" % (fields, text))
        else:
            await self._run(head, body, reader, writer)
        await writer.drain()

    async def _run(
        self, head: bytes, body: bytes, client: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.running += 1
        engine, upstream = await asyncio.open_connection(self.host, self.port)
        line, _, fields = head.partition(b"\r\n")
        upstream.write(line + b"\r\nconnection: close\r\n" + fields + body)
        passing = asyncio.ensure_future(self._pass_on(engine, writer))
        leaving = asyncio.ensure_future(client.read(1))
        done, _ = await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        upstream.transport.abort()
        for task in (passing, leaving):
            task.cancel()
        await asyncio.gather(passing, leaving, return_exceptions=True)
        whole = passing in done and passing.exception() is None
        if self.fault != "early" and (whole or self.fault != "leaky"):
            self.running -= 1

    async def _pass_on(self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await engine.read(65536)
        if self.fault == "early":
            self.running -= 1
        if self.fault == "breaker" and data.startswith(b"HTTP/1.1 503"):
            self.refuses_until = asyncio.get_running_loop().time() + OPEN_FOR
        while data:
            writer.write(data)
            await writer.drain()
            data = await engine.read(65536)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("upstream", nargs="+")
    asked = parser.parse_args()
    gateway = Gateway(asked.upstream[0], asked.limit, asked.fault)
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", asked.port, backlog=1024)
    await server.serve_forever()


asyncio.run(main())
