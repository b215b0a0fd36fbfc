"""A raw HTTP client for the tests, and a replica in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from surgetank.engine import profile as profiles
from surgetank.mockengine.connection import Connection
from surgetank.mockengine.server import MockEngine, MockSpec
from surgetank.wire.http1 import ResponseHead, ResponseParser, request_head

CAPTURES = Path(__file__).parents[1] / "data" / "captures" / "vllm"
BOUND = 20.0  # seconds a test may take before it is called stuck


@dataclass(frozen=True)
class Reply:
    """A whole answer; `pieces` are the body as it came, read by read."""

    head: ResponseHead
    body: bytes
    whole: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of each event; [DONE] is the string."""
        return events(self.body)


def events(body: bytes) -> list[Any]:
    parts = [p.strip() for p in body.decode().split("\n\n")]
    data = [p.removeprefix("data: ") for p in parts if p]
    return [d if d == "[DONE]" else json.loads(d) for d in data]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.parser = ResponseParser()
        self.body = b""

    def send(
        self,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        data = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        fields = {"host": "test", "content-length": str(len(data)), **(headers or {})}
        method = method or ("GET" if body is None else "POST")
        raw = [(k.encode(), v.encode()) for k, v in fields.items()]
        self.parser.reset(method)
        self.body = b""
        self.writer.write(request_head(method, path, raw) + data)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Read on until `enough`, or the end of the answer or the connection."""
        while not enough() and not self.parser.done:
            data = await self.reader.read(65536)
            if not data:
                return
            self.body += self.parser.receive(data)

    async def reply(self) -> Reply:
        """Read the answer to its end, or to the connection's."""
        await self.until(lambda: False)
        assert self.parser.head is not None
        return Reply(self.parser.head, self.body, self.parser.done)

    async def tokens(self, count: int) -> None:
        """Read until so many events with a token have come."""
        await self.until(lambda: self.body.count(b'"token_ids"') >= count)

    async def ask(self, path: str, body: Any = None, **more: Any) -> Reply:
        self.send(path, body, **more)
        return await self.reply()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):  # reset by the other side: closed too
            await self.writer.wait_closed()


class Replica:
    """A replica in this loop, and connections to it."""

    def __init__(self, engine: MockEngine, port: int) -> None:
        self.engine = engine
        self.port = port
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def ask(self, path: str, body: Any = None, **more: Any) -> Reply:
        return await (await self.connect()).ask(path, body, **more)

    def served(self, client: Client) -> Connection:
        """Find the replica's end of a connection."""
        name = client.writer.get_extra_info("sockname")
        return next(
            c
            for c in self.engine.connections
            if c._transport is not None and c._transport.get_extra_info("peername") == name
        )

    async def hang_up(self, client: Client) -> None:
        """Close a connection and wait until the replica has seen it."""
        connection = self.served(client)
        await client.close()
        await connection.gone.wait()

    async def in_flight(self, count: int) -> None:
        """Wait until so many requests run or wait: round trips, within the test's bound."""
        client = await self.connect()
        while self.engine.batcher.running + self.engine.batcher.waiting < count:
            await client.ask("/health")

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def replica(**changes: Any) -> AsyncIterator[Replica]:
    """Run a replica of `tiny-fast`; changes of its profile and of its spec by name."""
    profile = profiles.find("tiny-fast")
    own = {k: v for k, v in changes.items() if k in MockSpec.__dataclass_fields__}
    profile = replace(profile, **{k: v for k, v in changes.items() if k not in own})
    engine = MockEngine(MockSpec(**{"profile": profile, "model": "tiny", **own}))
    address = await engine.listen()
    running = Replica(engine, int(address.rpartition(":")[2]))
    try:
        yield running
    finally:
        await running.close()
        await engine.close()


def run(test: Callable[[Replica], Awaitable[None]], **changes: Any) -> None:
    """Run an asynchronous test against a replica, within BOUND."""

    async def bounded() -> None:
        async with asyncio.timeout(BOUND), replica(**changes) as running:
            await test(running)

    asyncio.run(bounded())


def chat(**fields: Any) -> dict[str, Any]:
    """Build a chat request of 18 prompt tokens: 53 bytes of text, one message."""
    text = "Tell me in a few words what a surge tank is made for."
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def shape(value: Any) -> Any:
    """Keep keys, their order and the types of values, not the values."""
    if isinstance(value, dict):
        return [(k, shape(v)) for k, v in value.items()]
    if isinstance(value, list):
        return [shape(v) for v in value]
    return type(value).__name__


def captured(name: str) -> tuple[int, bytes]:
    """Read a capture: its status and its body, any chunked coding taken off."""
    raw = (CAPTURES / name).read_bytes()
    head, _, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = body.decode().split("\n")
    kept = [line for line in lines if line.startswith(("data:", "{"))]
    return int(head.split()[1]), "\n\n".join(kept).encode()
