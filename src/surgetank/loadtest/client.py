"""A streaming HTTP/1.1 client for an OpenAI-compatible endpoint, on raw asyncio protocols.

Rule: what is measured is one attempt at one address: no redirects, and no retries but those of who
asks for them (`sender`). Each call ends with exactly one outcome, however it ends.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from surgetank.errors import InputError
from surgetank.loadtest.connection import Connection, Exchange, Flight
from surgetank.loadtest.outcome import reason_of_connect
from surgetank.policy.request import Outcome
from surgetank.wire.http1 import Limits, request_head

CHAT: Final = "/v1/chat/completions"
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it goes out. Key and body are kept out of its repr.

    `timeout`: seconds from sending to the end, then it failed; `abandon_after`: seconds until the
    client hangs up on purpose.
    """

    body: bytes = field(repr=False)
    key: str = field(default="", repr=False)
    route: str = CHAT
    timeout: float = 120.0
    abandon_after: float | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """How an https address is trusted: by the system's authorities, or by those of `cafile`.

    `verify=False` trusts anything: for a test bed with a certificate of its own.
    """

    cafile: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises InputError when the file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.cafile)
        except OSError as error:  # ssl.SSLError is one
            why = error.strerror or "not a PEM file of certificates"
            raise InputError(f"{self.cafile}: {why}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Client:
    """Sends calls to one address, with connections of its own that it uses again."""

    def __init__(self, url: str, *, limits: Limits | None = None, tls: Tls | None = None) -> None:
        """`url`: http(s)://HOST[:PORT], with a path prefix if need be. Raises InputError.

        A final /v1, as openai-python's base_url has it, is understood.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise InputError(f"{url}: {error}") from error
        if parts.scheme not in _PORTS or not parts.hostname:
            raise InputError(f"{url}: expected http://HOST:PORT or https://HOST")
        context = (tls or Tls()).context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._host = parts.netloc.rpartition("@")[2].encode()
        self._heads: dict[tuple[str, str, int], bytes] = {}
        self._pool = _Pool(parts.hostname, port, limits or Limits(), context)

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._pool.open)

    def launch(
        self,
        message: bytes,
        on_end: Callable[[Exchange], None],
        *,
        timeout: float,
        abandon_after: float | None = None,
    ) -> Flight:
        """Write what `message` made now if a connection is idle, else connect first.

        `on_end` is called once, with whatever became of it; `Flight.cut` hangs up.
        """
        flight = Flight(message, on_end)
        flight.limit(timeout, abandon_after)
        self._pool.place(flight)
        return flight

    def message(self, body: bytes, *, key: str, route: str, retries: int = 0) -> bytes:
        """One request as bytes. `retries`: how often it was tried, told as openai-python does."""
        known = route, key, retries
        head = self._heads.get(known)
        if head is None:
            if len(self._heads) > 1024:  # keys of very many tenants
                self._heads.clear()
            head = self._heads[known] = self._head(key, route, retries)
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def begin(self, call: Call) -> asyncio.Future[Exchange]:
        """Launch it; the future never raises. Cancelling it hangs up, and so does `close`."""
        future: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        flight = self.launch(
            self.message(call.body, key=call.key, route=call.route),
            partial(_settle, future),
            timeout=call.timeout,
            abandon_after=call.abandon_after,
        )
        future.add_done_callback(partial(_cut_when_cancelled, flight))
        return future

    async def send(self, call: Call) -> Exchange:
        """Send one call and wait for its end."""
        return await self.begin(call)

    async def close(self) -> None:
        """Hang up on everything; calls in flight end as abandoned."""
        await self._pool.close()

    def _head(self, key: str, route: str, retries: int) -> bytes:
        """Write the head up to the value of its last field, the length."""
        headers = [(b"host", self._host), (b"content-type", b"application/json")]
        if key:
            headers.append((b"authorization", b"Bearer " + key.encode()))
        if retries:
            headers.append((b"x-stainless-retry-count", b"%d" % retries))
        headers.append((b"content-length", b""))
        return request_head("POST", self._prefix + route, headers).removesuffix(b"\r\n\r\n")


def _settle(future: asyncio.Future[Exchange], exchange: Exchange) -> None:
    if not future.done():
        future.set_result(exchange)


def _cut_when_cancelled(flight: Flight, future: asyncio.Future[Exchange]) -> None:
    if future.cancelled():
        flight.cut(Outcome.ABANDONED, "cancelled")


class _Pool:
    """The connections to one address: idle ones, and those being made.

    The name is looked up until a connection was made; from then on that address is used, as long
    as it accepts: a thousand new connections must not mean a thousand look-ups.
    """

    def __init__(
        self, host: str, port: int, limits: Limits, context: ssl.SSLContext | None
    ) -> None:
        self._address = host, port
        self._known: str | None = None
        self._context = context
        self._limits = limits
        self._idle: dict[Connection, None] = {}  # the last one in is the first one out
        self._connecting: set[asyncio.Task[None]] = set()
        self.open: set[Connection] = set()

    def place(self, flight: Flight) -> None:
        """Put a flight on an idle connection at once, or on a new one."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable:
                connection.carry(flight)
                return
        self.connect(flight)

    def connect(self, flight: Flight) -> None:
        """Put a flight on a new connection."""
        task = asyncio.get_running_loop().create_task(self._connect(flight))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def opened(self, connection: Connection) -> None:
        self.open.add(connection)

    def release(self, connection: Connection) -> None:
        """Its call is over, and the next may use it."""
        self._idle[connection] = None

    def lost(self, connection: Connection) -> None:
        """Its socket is gone."""
        self.open.discard(connection)
        self._idle.pop(connection, None)

    async def close(self) -> None:
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        open_now = list(self.open)
        for connection in open_now:
            connection.hang_up(Outcome.ABANDONED, "client closed")
        await asyncio.gather(*(connection.lost for connection in open_now))

    async def _connect(self, flight: Flight) -> None:
        loop = asyncio.get_running_loop()
        (host, port), known = self._address, self._known
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self, self._limits),
                known or host,
                port,
                ssl=self._context,
                server_hostname=host if self._context is not None else None,
            )
        except OSError as error:
            if self._known == known:
                self._known = None
            flight.end(Outcome.UPSTREAM_FAILED, reason_of_connect(error))
            return
        except asyncio.CancelledError:
            flight.end(Outcome.ABANDONED, "client closed")
            raise
        self._known = connection.peer
        if flight.over:  # timed out, left or cancelled while it was connecting
            self.release(connection)
        else:
            connection.carry(flight)


__all__ = ["CHAT", "Call", "Client", "Exchange", "Tls"]
