"""A scripted engine, a gateway in the same loop, and a raw client: all on real sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from surgetank.gateway.keys import KeyRing
from surgetank.gateway.server import Gateway
from surgetank.gateway.spec import GatewaySpec, ListenSpec, ReplicaSpec, UpstreamSpec
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.record import RequestRecord
from surgetank.policy.tenant import Tenant, Tier

_OPEN: list[asyncio.StreamWriter] = []
PATIENCE = 10.0  # seconds after which a test gives up on an event that should have come


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an asynchronous test with a bound on its time."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(3 * PATIENCE):
                await test()
        finally:
            for writer in _OPEN:
                writer.transport.abort()
            _OPEN.clear()
            for _ in range(3):
                await asyncio.sleep(0)

    uvloop.run(bounded())  # the loop the gateway runs on


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the condition belongs to code under test
            await asyncio.sleep(0.002)


@dataclass
class Received:
    """A request as the engine saw it."""

    head: str
    body: bytes

    @property
    def path(self) -> str:
        return self.head.split(" ", 2)[1]

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.split("\r\n")[1:]
        return {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines if line)}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """What a script writes its answer with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.headers = ""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(
        self, status: int = 200, kind: str = "text/event-stream", more: str = ""
    ) -> None:
        await self.send(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )

    async def event(self, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        payload = f"data: {text}\n\n".encode()
        await self.send(b"%x\r\n%b\r\n" % (len(payload), payload))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def whole(
        self, body: Any, status: int = 200, more: str = "", kind: str = "application/json"
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = self.headers + more
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {len(data)}"
        await self.send(f"{head}\r\n\r\n".encode() + data)

    async def cut(self) -> None:
        self.writer.transport.abort()

    async def left(self) -> None:
        """Wait until the other side has closed."""
        while await self.reader.read(65536):
            pass


def delta(content: str | None = None, *, role: str | None = None, finish: str | None = None) -> Any:
    body: dict[str, Any] = {}
    if role is not None:
        body["role"] = role
    if content is not None:
        body["content"] = content
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "delta": body, "finish_reason": finish}],
    }


def usage_event(prompt: int, output: int) -> Any:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        },
    }


async def stream_words(
    connection: Connection, request: Received, words: Sequence[str] = ("a", "b")
) -> None:
    """Answer as vLLM does: role, one event a word, finish, usage when asked, [DONE]."""
    await connection.head()
    await connection.event(delta("", role="assistant"))
    for word in words:
        await connection.event(delta(word))
    await connection.event(delta("", finish="stop"))
    if (request.json.get("stream_options") or {}).get("include_usage"):
        await connection.event(usage_event(7, len(words)))
    await connection.event("[DONE]")
    await connection.end()


WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}

Script = Callable[[Received, Connection], Awaitable[None]]


NATIVE = {
    "/v1/embeddings": {
        "object": "list",
        "model": "tiny",
        "data": [{"index": 0, "object": "embedding", "embedding": [0.5, 0.25]}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    },
    "/v1/responses": {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [],
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 2,
            "total_tokens": 9,
        },
    },
    "/v1/messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "hi"}],
        "model": "tiny",
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 2},
    },
    "/v1/messages/count_tokens": {"input_tokens": 7},
}


async def answer_well(request: Received, connection: Connection) -> None:
    if request.json.get("stream"):
        await stream_words(connection, request)
    else:
        await connection.whole(NATIVE.get(request.path, WHOLE))


@dataclass
class Engine:
    """An engine on a real socket whose answers to completions are scripted, one per request."""

    scripts: list[Script] = field(default_factory=list)
    default: Script = answer_well
    health: int = 200
    health_body: Any = field(default_factory=lambda: {"status": "ok"})
    model: str = "tiny"
    props: Any = None
    lacks: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)  # routes whether it has them
    response_headers: str = ""
    tls: ssl.SSLContext | None = None
    scheme: str = ""
    protocols: set[str] = field(default_factory=set)  # as TLS agreed on them
    reads_at_most: int = 1 << 30  # bytes of a body; a larger one is answered before it is read
    _killed: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[Received] = field(default_factory=list)
    cancelled: int = 0
    connections: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        self.scheme = self.scheme or ("http" if self.tls is None else "https")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Vanish as after kill -9: the port closed, every connection reset."""
        self._killed.set()
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        _OPEN.append(writer)
        self.connections += 1
        if self.tls is not None:
            self.protocols.add(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        connection = Connection(reader, writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")[:-4]
                request = Received(head, b"")
                size = int(request.headers.get("content-length", "0"))
                if size > self.reads_at_most:
                    await self._answer(request, connection)
                    await self._killed.wait()  # the rest stays unread
                    return
                request.body = await reader.readexactly(size) if size else b""
                await self._answer(request, connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, request: Received, connection: Connection) -> None:
        if request.path == "/health":
            await connection.whole(self.health_body, self.health)
        elif request.path == "/v1/models":
            await connection.whole({"object": "list", "data": [{"id": self.model}]})
        elif request.path == "/props" and self.props is not None:
            await connection.whole(self.props)
        elif request.path in self.lacks:
            await connection.whole({"detail": "Not Found"}, 404)
        elif request.body == b"{}":
            self.asked.append(request.path)
            await connection.whole({"error": {"message": "model: Field required"}}, 400)
        elif request.path.startswith("/v1/"):
            connection.headers = self.response_headers
            self.requests.append(request)
            script = self.scripts.pop(0) if self.scripts else self.default
            task = asyncio.ensure_future(script(request, connection))
            await task
        else:
            await connection.whole({"error": {"message": "no"}}, 404)


@dataclass
class Running:
    """A gateway under test."""

    gateway: Gateway
    port: int
    written: list[RequestRecord]

    @property
    def records(self) -> list[RequestRecord]:
        """What has been written, all that ended by now included."""
        self.gateway.ledger.book()
        return self.written

    def record(self) -> RequestRecord:
        assert len(self.records) == 1
        return self.records[0]


@asynccontextmanager
async def serving(
    *engines: Engine,
    flow: FlowSpec | None = None,
    listen: ListenSpec | None = None,
    upstream: UpstreamSpec | None = None,
    tenants: Sequence[Tenant] = (),
    tiers: Sequence[Tier] = (),
    keys: KeyRing | None = None,
    drain_timeout: float = 5.0,
    replica: dict[str, Any] | None = None,
    wait_ready: bool = True,
    control: FlowControl | None = None,
) -> AsyncIterator[Running]:
    """Start the engines and a gateway before them; end both however the test ends."""
    for engine in engines:
        await engine.start()
    records: list[RequestRecord] = []
    spec = GatewaySpec(
        listen=listen or ListenSpec(port=0),
        upstream=upstream or UpstreamSpec(health_interval=0.05),
        replicas=tuple(
            ReplicaSpec(url=f"{e.scheme}://127.0.0.1:{e.port}", **(replica or {})) for e in engines
        ),
        drain_timeout=drain_timeout,
    )
    if control is None:
        control = FlowControl(flow or FlowSpec(), tenants=tenants, tiers=tiers, models=("tiny",))
    gateway = Gateway(
        spec,
        control,
        keys=keys,
        write_record=lambda line: records.append(RequestRecord.from_line(line)),
    )
    port = await gateway.start()
    try:
        if wait_ready:
            await until(lambda: all(t.ready for t in gateway.fleet))
        yield Running(gateway, port, records)
    finally:
        for client in list(gateway.clients):
            client.abort()
        await gateway.drain()
        for engine in engines:
            await engine.kill()


@dataclass
class Reply:
    """A response as the client saw it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        return [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]


class RawClient:
    """A client that sends exactly what it is told and reads one response at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 23)
        _OPEN.append(writer)
        return cls(reader, writer)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> Reply:
        async with asyncio.timeout(PATIENCE):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:] if line)
            }
            status = int(lines[0].split(" ")[1])
            return Reply(status, headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            if "content-length" in headers:
                return await self.reader.readexactly(int(headers["content-length"]))
            return await self.reader.read()
        body = b""
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
            if size == 0:
                return body
            body += data[:-2]

    async def closed(self) -> bool:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.transport.abort()


def post(
    body: Any, *, path: str = "/v1/chat/completions", headers: str = "", version: str = "1.1"
) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"POST {path} HTTP/{version}\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"{headers}content-length: {len(data)}\r\n\r\n"
    ).encode() + data


def chat(*, stream: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello there"}],
        "stream": stream,
        **more,
    }


async def ask(port: int, body: Any, **how: Any) -> Reply:
    """Send one request on a connection of its own and read the reply."""
    client = await RawClient.connect(port)
    client.send(post(body, **how))
    try:
        return await client.reply()
    finally:
        client.close()
