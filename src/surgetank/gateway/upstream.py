"""Connections to replicas: one protocol on the response side, and a pool per replica.

Rule: framing is checked to the byte before a connection is used again; a connection that says
anything unasked is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from surgetank.adapters.http import Tls
from surgetank.wire.http1 import Limits, ProtocolError, ResponseHead, ResponseParser

_SENT_AT_ONCE: Final = 1 << 16


class Receiver(Protocol):
    """Who asked: told of the answer piece by piece, exactly one of end, lost or broke at last.

    `upstream_whole` stands for head, body and end, when all of it came at once.
    """

    def upstream_head(self, head: ResponseHead) -> None: ...
    def upstream_body(self, payload: bytes) -> None: ...
    def upstream_end(self) -> None: ...
    def upstream_whole(self, head: ResponseHead, payload: bytes) -> None: ...
    def upstream_lost(self, *, stale: bool) -> None: ...
    def upstream_broke(self, message: str) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to a replica, serving one exchange at a time."""

    __slots__ = (
        "_head_seen",
        "_large",
        "_parser",
        "_passes",
        "_pool",
        "_seen",
        "_uses",
        "idle_since",
        "quick",
        "receiver",
        "transport",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = ResponseParser("POST", pool.limits)
        self.transport: asyncio.Transport | None = None
        self._uses = 0
        self._seen = False
        self._head_seen = False
        self._passes: Callable[[bytes], bytes] | None = None  # takes whole chunks, leaves the rest
        self.quick: Callable[[], Callable[[bytes], bytes] | None] | None = None  # who gives that
        self._large = False
        self.receiver: Receiver | None = None
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's TCP transport is one in all but name.
        transport = self.transport = cast("asyncio.Transport", transport)
        self._pool.open.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self, receiver: Receiver, head: bytes, body: Sequence[bytes | memoryview]) -> None:
        """Send a request, its body in parts; the receiver has the connection till its answer ends.

        Large parts are not copied to be sent, so they must not change.
        """
        self.receiver = receiver
        self._uses += 1
        self._seen = False
        self._head_seen = False
        self._passes = self.quick = None
        self._large = len(body) > 1 or len(body[0]) > _SENT_AT_ONCE
        if self._uses > 1:
            self._parser.reset("POST")
        if self.transport is not None:
            if self._large:
                self.transport.writelines((head, *body))
            else:
                self.transport.write(head + body[0])

    def abort(self) -> None:
        """Close at once and tell nobody: the receiver has turned away."""
        self.receiver = self._passes = self.quick = None
        if self.transport is not None:
            self.transport.abort()

    def cut(self) -> None:
        """Close at once; the receiver is told that its answer is lost."""
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        passes = self._passes
        if passes is not None:
            data = passes(data)
            if not data:
                return
            self._passes = None
        receiver = self.receiver
        if receiver is None:
            self.abort()
            return
        self._seen = True
        parser = self._parser
        try:
            payload = parser.receive(data)
        except ProtocolError as error:
            self.abort()
            receiver.upstream_broke(error.message)
            return
        if not self._head_seen:
            head = parser.head
            if head is None:
                return
            self._head_seen = True
            if parser.done:
                self._free()
                receiver.upstream_whole(head, payload)
                return
            receiver.upstream_head(head)
            if self.receiver is not receiver:
                return
        if payload:
            receiver.upstream_body(payload)
            if self.receiver is not receiver:
                return
        if parser.done:
            self._free()
            receiver.upstream_end()
        elif self.quick is not None and parser.boundary:
            self._passes = self.quick()

    def _free(self) -> None:
        """The answer has ended: the connection is nobody's now, or closed."""
        self.receiver = self._passes = self.quick = None
        head = self._parser.head
        if self._large and self._unsent():
            self.abort()  # the answer came first: what is left of the request would be in the way
        elif head is not None and head.keep_alive and not self._parser.excess:
            self._pool.release(self)
        elif self.transport is not None:
            self.transport.close()

    def _unsent(self) -> bool:
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def connection_lost(self, _exc: Exception | None) -> None:
        self._pool.forget(self)
        self.transport = None
        receiver, self.receiver = self.receiver, None
        self._passes = self.quick = None
        if receiver is None:
            return
        if self._head_seen:
            try:
                self._parser.eof()
            except ProtocolError:
                receiver.upstream_lost(stale=False)
            else:
                receiver.upstream_end()
            return
        receiver.upstream_lost(stale=self._uses > 1 and not self._seen)


class Pool:
    """Idle connections to one replica, newest first."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        limits: Limits,
        connect_timeout: float,
        idle_timeout: float,
        max_idle: int,
        tls: Tls | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.limits = limits
        self.open: set[UpstreamConnection] = set()
        self._idle: deque[UpstreamConnection] = deque()
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._max_idle = max_idle
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time

    def retune(self, *, connect_timeout: float, idle_timeout: float, max_idle: int) -> None:
        """Take other bounds; what is open stays open."""
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._max_idle = max_idle

    def retire(self) -> None:
        """Close what is idle, and from now on each connection once its answer has ended."""
        self._max_idle = 0
        self.close_idle()

    def acquire(self) -> UpstreamConnection | None:
        """Return a connection that is open and not idle for too long, None when there is none."""
        idle, oldest = self._idle, self._clock() - self._idle_timeout
        while idle:
            connection = idle.pop()
            transport = connection.transport
            if (
                connection.idle_since >= oldest
                and transport is not None
                and not transport.is_closing()
            ):
                return connection
            connection.abort()
        return None

    async def connect(self) -> UpstreamConnection:
        """Open a connection. Raises OSError (a certificate that is refused, too), TimeoutError."""
        tls = self._tls
        async with asyncio.timeout(self._connect_timeout):
            _, connection = await self._loop.create_connection(
                lambda: UpstreamConnection(self),
                self.host,
                self.port,
                ssl=None if tls is None else tls.context,
                server_hostname=None if tls is None else tls.server_name or self.host,
            )
        return connection

    def release(self, connection: UpstreamConnection) -> None:
        connection.idle_since = self._clock()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.popleft().abort()

    def forget(self, connection: UpstreamConnection) -> None:
        self.open.discard(connection)

    def close_idle(self) -> None:
        while self._idle:
            self._idle.pop().abort()
