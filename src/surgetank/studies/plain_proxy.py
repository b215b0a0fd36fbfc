"""A plain round-robin proxy: what the demo compares with, good at what it is.

Rule: no queue, no limit, no opinion. A request goes to the next replica in turn at once;
connections to replicas are kept alive; an answer's bytes are passed on as they come, never held; a
client that leaves takes its request with it; a replica that cannot be connected to is passed over.
What it does not do is know how busy anything is.

    python -m surgetank.studies.plain_proxy --replica http://127.0.0.1:8001 --replica ...

prints `READY http://127.0.0.1:PORT`, and ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from itertools import cycle
from typing import Final, cast
from urllib.parse import urlsplit

import uvloop

from surgetank.gateway.upstream import Pool, UpstreamConnection
from surgetank.wire.http1 import (
    LAST_CHUNK,
    Limits,
    ProtocolError,
    RequestHead,
    RequestParser,
    ResponseHead,
    chunk,
    request_head,
    response_head,
)

_HOST: Final = "127.0.0.1"
_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"content-length")
)
_BUFFERED: Final = 1 << 20  # bytes a client has not read yet, before its replica is paused
_LIMITS: Final = Limits()


class PlainProxy:
    """The replicas in turn. Made inside a running loop."""

    def __init__(self, replicas: Sequence[str]) -> None:
        """`replicas`: addresses, http://HOST:PORT."""
        parts = [urlsplit(url) for url in replicas]
        self._pools = [
            Pool(
                part.hostname or _HOST,
                part.port or 80,
                limits=_LIMITS,
                connect_timeout=2.0,
                idle_timeout=4.0,  # below the engines' own 5 s
                max_idle=256,
            )
            for part in parts
        ]
        self._turns = cycle(self._pools)
        self.clients: set[_Client] = set()

    @property
    def size(self) -> int:
        return len(self._pools)

    def next(self) -> Pool:
        """Return the replica whose turn it is."""
        return next(self._turns)

    async def listen(self, port: int = 0) -> tuple[asyncio.Server, str]:
        """Open the port; 0 takes a free one."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Client(self), _HOST, port, backlog=1024)
        return server, f"http://{_HOST}:{server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Hang up on everybody."""
        for client in list(self.clients):
            client.abort()
        for pool in self._pools:
            for connection in list(pool.open):
                connection.abort()


class _Client(asyncio.Protocol):
    """One client's connection, one request at a time; also the receiver of its answer."""

    def __init__(self, proxy: PlainProxy) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = RequestParser(_LIMITS)
        self._body = bytearray()
        self._ahead = b""
        self._message: tuple[RequestHead, bytes] | None = None
        self._pool: Pool | None = None
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tries = 0
        self._answering = False
        self._chunked = False

    # The client's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's TCP transport is one in all but name.
        made = self._transport = cast("asyncio.Transport", transport)
        made.set_write_buffer_limits(high=_BUFFERED)
        sock = made.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._proxy.clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._proxy.clients.discard(self)
        self._transport = None
        if self._connecting is not None:
            self._connecting.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def resume_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def data_received(self, data: bytes) -> None:
        if self._message is not None:
            self._ahead += data
            return
        try:
            self._body += self._parser.receive(data)
        except ProtocolError as error:
            self._fail(error.status)
            return
        head = self._parser.head
        if head is not None and self._parser.done:
            body, self._body = bytes(self._body), bytearray()
            self._message = head, body
            self._tries = 0
            self._forward(self._proxy.next())

    # The replica's side.

    def _forward(self, pool: Pool, *, fresh: bool = False) -> None:
        self._pool = pool
        self._tries += 1
        idle = None if fresh else pool.acquire()
        if idle is not None:
            self._send(idle)
        else:
            self._connecting = self._loop.create_task(self._connect(pool))

    async def _connect(self, pool: Pool) -> None:
        try:
            connection = await pool.connect()
        except (OSError, TimeoutError):
            if self._tries < self._proxy.size:
                self._forward(self._proxy.next())
            else:
                self._fail(502)
            return
        if self._transport is None:
            connection.abort()
        else:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        assert self._message is not None  # noqa: S101  (there is a request to send)
        assert self._pool is not None  # noqa: S101
        head, body = self._message
        fields = [(n, v) for n, v in head.headers if n not in _HOP and n != b"host"]
        fields += [
            (b"host", f"{self._pool.host}:{self._pool.port}".encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        self._upstream = connection
        self._answering = False
        connection.begin(self, request_head(head.method, head.target, fields), (body,))

    def upstream_head(self, head: ResponseHead) -> None:
        fields = [(n, v) for n, v in head.headers if n not in _HOP]
        self._chunked = head.content_length is None
        if head.content_length is None:
            fields.append((b"transfer-encoding", b"chunked"))
        else:
            fields.append((b"content-length", b"%d" % head.content_length))
        self._answering = True
        self._write(response_head(head.status, fields))

    def upstream_body(self, payload: bytes) -> None:
        self._write(chunk(payload) if self._chunked else payload)

    def upstream_whole(self, head: ResponseHead, payload: bytes) -> None:
        self.upstream_head(head)
        if payload:
            self.upstream_body(payload)
        self.upstream_end()

    def upstream_end(self) -> None:
        if self._chunked:
            self._write(LAST_CHUNK)
        self._upstream = None
        self._next()

    def upstream_lost(self, *, stale: bool) -> None:
        self._upstream = None
        if stale and self._pool is not None:
            self._forward(self._pool, fresh=True)
        elif self._answering:
            self.abort()
        else:
            self._fail(502)

    def upstream_broke(self, message: str) -> None:
        del message
        self.upstream_lost(stale=False)

    # The answer.

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _next(self) -> None:
        head = self._parser.head
        if self._transport is None or head is None:
            return
        if not head.keep_alive:
            self._transport.close()
            return
        self._message = None
        data, self._ahead = self._parser.excess + self._ahead, b""
        self._parser.reset()
        if data:
            self.data_received(data)

    def _fail(self, status: int) -> None:
        fields = [(b"content-length", b"0"), (b"connection", b"close")]
        self._write(response_head(status, fields))
        if self._transport is not None:
            self._transport.close()


async def serve(replicas: Sequence[str], port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    proxy = PlainProxy(replicas)
    server, address = await proxy.listen(port)
    sys.stdout.write(f"READY {address}\n")
    sys.stdout.flush()
    await stop.wait()
    server.close()
    proxy.close()


def main() -> None:
    """Run it from a command line."""
    parser = argparse.ArgumentParser(prog="plain_proxy", description="A round-robin proxy.")
    parser.add_argument("--replica", action="append", required=True, help="http://HOST:PORT")
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    uvloop.run(serve(asked.replica, asked.port))


if __name__ == "__main__":
    main()
