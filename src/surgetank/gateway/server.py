"""What all connections of one gateway process share, and its life from start to drain.

Rule: no decision and no byte of a request is handled here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from typing import Final

from surgetank.errors import ConfigError
from surgetank.gateway.connection import ClientConnection
from surgetank.gateway.driver import Driver
from surgetank.gateway.fleet import Fleet
from surgetank.gateway.keys import KeyRing, Owner
from surgetank.gateway.ledger import Ledger
from surgetank.gateway.metrics import Gauges, Metrics
from surgetank.gateway.relay import Exchange
from surgetank.gateway.spec import GatewaySpec
from surgetank.policy.flow import FlowControl, FlowSettings
from surgetank.policy.journal import Journal
from surgetank.policy.ladder import Step
from surgetank.wire.http1 import Limits

log = logging.getLogger("surgetank.gateway")

DEFAULT_TENANT: Final = "default"
_ANYONE: Final = Owner(DEFAULT_TENANT, "")
_FIRST_LOOK: Final = 10.0  # seconds in which replicas that are there are found
_LAST_WORDS: Final = 2.0  # seconds in which the last answers are sent; slower clients are cut off


class Gateway:
    """One gateway process: connections on one side, replicas on the other, decisions between."""

    def __init__(
        self,
        spec: GatewaySpec,
        flow: FlowControl | Journal,
        *,
        keys: KeyRing | None = None,
        write_record: Callable[[str], None] | None = None,
        records_dropped: Callable[[], int] = lambda: 0,
        wall_offset: float | None = None,
        promised: Iterable[str] = (),
        listener: socket.socket | None = None,
    ) -> None:
        """`promised`: models without which the gateway is not ready; `listener`: bound already."""
        self.loop = asyncio.get_running_loop()
        self.clock = self.loop.time  # bound once: each running stream holds it
        self.listen = spec.listen
        self.upstream = spec.upstream
        self.sessions = spec.sessions
        self.session_header = spec.sessions.header.lower().encode("ascii")
        self.limits = Limits(
            head_bytes=spec.listen.max_head_bytes, body_bytes=spec.listen.max_body_bytes
        )
        self.keys = keys
        self.metrics = Metrics()
        self.driver = Driver(flow, self.loop)
        self.driver.stepped = _log_step
        self.fleet = Fleet(spec.upstream, spec.replicas, self.driver, self.metrics)
        self.fleet.gone = self._replica_gone
        self.fleet.stranded = self._stranded
        self.wall_offset = time.time() - self.loop.time() if wall_offset is None else wall_offset
        self.ledger = Ledger(
            self.driver.flow,
            self.metrics,
            self.fleet.known_model,
            write_record,
            wall_offset=self.wall_offset,
        )
        self.ledger.shadow = lambda: self.driver.shadow
        self.clients: set[ClientConnection] = set()
        self.turned_away: set[ClientConnection] = set()  # beyond the bound, and being told
        self.upload_bytes = 0  # of bodies that are still coming
        self.draining = False
        self._awaited: set[ClientConnection] = set()  # open when draining began
        self._hurried = False
        self._changed = asyncio.Event()  # a connection has closed, or draining shall end
        self._records_dropped = records_dropped
        self._ids = itertools.count(1)
        self._id_prefix = f"req-{secrets.token_hex(4)}"
        self._drain_timeout = spec.drain_timeout
        self._server: asyncio.Server | None = None
        self._listener = listener
        self.hands_over = listener is not None
        self._promised = tuple(promised)

    async def start(self) -> int:
        """Listen and watch the replicas. Returns the port. Raises ConfigError when it cannot.

        On a listener that was handed in others may serve meanwhile: this one takes from it only
        once it is ready, or after `_FIRST_LOOK` seconds; till then the kernel keeps who comes.
        """
        import_module("surgetank.wire.long_text")  # NumPy loads now, not while clients wait
        host, port = self.listen.host, self.listen.port
        if self._listener is not None:
            self.fleet.start()
            await self._look_first()
        try:
            if self._listener is not None:
                self._server = await self.loop.create_server(
                    lambda: ClientConnection(self), sock=self._listener, backlog=4096
                )
            else:
                self._server = await self.loop.create_server(
                    lambda: ClientConnection(self), host, port, backlog=4096
                )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"listen.port = {port}: cannot listen on {host}: {reason}") from None
        if self._listener is None:
            self.fleet.start()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def _look_first(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK):
                while self.unready:
                    self.fleet.news.clear()
                    await self.fleet.news.wait()

    async def drain(self) -> None:
        """Let what runs or waits end, then end the rest with an answer, then close.

        The listener stays open meanwhile: who comes now is told to come back, not left to guess.
        One that was handed in is let go at once: another process serves who comes now, or will; and
        who is connected here gets one more answer, since no other process has that connection.
        """
        self.draining = True
        if self.hands_over and self._server is not None:
            self._server.close()
            for _ in range(3):  # what was accepted by now becomes a connection first
                await asyncio.sleep(0)
        self._awaited = set(self.clients)
        for client in list(self._awaited):
            client.drain()
        await self._clients_left(self._awaited, self._drain_timeout)
        self._hurried = False  # said while draining; the last words have their own bound
        if self._server is not None:
            self._server.close()
        self._shut_down()
        await self._clients_left(self.clients, _LAST_WORDS)
        for client in [*self.clients, *self.turned_away]:
            client.abort()
        await asyncio.sleep(0)
        await self.fleet.stop()
        self.driver.close()
        self.ledger.close()

    def reconfigure(
        self,
        spec: GatewaySpec,
        settings: FlowSettings,
        *,
        keys: KeyRing | None,
        promised: Iterable[str],
    ) -> None:
        """Take other settings while requests run; nothing of `spec.listen` binds anew.

        Raises ConfigError or ValueError, with nothing changed, for what does not fit.
        """
        replicas = self.fleet.prepare(spec.upstream, spec.replicas)
        self.driver.reconfigure(settings)
        self.listen = replace(spec.listen, host=self.listen.host, port=self.listen.port)
        self.limits = Limits(
            head_bytes=spec.listen.max_head_bytes, body_bytes=spec.listen.max_body_bytes
        )
        self.upstream = spec.upstream
        self.sessions = spec.sessions
        self.session_header = spec.sessions.header.lower().encode("ascii")
        self.keys = keys
        self._drain_timeout = spec.drain_timeout
        self._promised = tuple(promised)
        self.fleet.reconfigure(spec.upstream, replicas)

    @property
    def unready(self) -> str:
        """Why nobody should send requests here; "" when all is well."""
        if self.draining:
            return "draining"
        if not self.fleet.ready:
            return "no replica is ready"
        missing = self.fleet.unserved(self._promised)
        return f"no replica is ready for {', '.join(missing)}" if missing else ""

    def end_drain(self) -> None:
        """Wait no longer: end what still runs as at the end of the time to drain."""
        self._hurried = True
        self._changed.set()

    async def _clients_left(self, clients: set[ClientConnection], seconds: float) -> None:
        """Wait until all of `clients` have closed, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while clients and not self._hurried:
                    self._changed.clear()
                    await self._changed.wait()

    def _shut_down(self) -> None:
        """End every request that is alive, and every connection once its answer is sent."""
        alive = [ticket for ticket in self.driver.tickets() if isinstance(ticket, Exchange)]
        if alive:
            log.warning("%d requests had not ended when draining did", len(alive))
        for exchange in reversed(alive):  # the newest wait: none of them takes a place set free
            exchange.shut_down()
        for client in list(self.clients):
            client.shut_down()

    def closed(self, client: ClientConnection) -> None:
        """Take note that a client's connection has closed."""
        self.clients.discard(client)
        self.turned_away.discard(client)
        self._awaited.discard(client)
        self._changed.set()

    def _replica_gone(self, replica_id: str) -> None:
        for ticket in list(self.driver.tickets()):
            if isinstance(ticket, Exchange):
                ticket.replica_gone(replica_id)

    def _stranded(self, model: str) -> None:
        """No replica of a model is ready or expected: nothing has to wait for one."""
        for ticket in list(self.driver.tickets()):
            if isinstance(ticket, Exchange) and ticket.request.model == model:
                ticket.strand()

    def next_id(self) -> str:
        return f"{self._id_prefix}-{next(self._ids):x}"

    def owner_of(self, authorization: bytes | None) -> Owner | None:
        """Return the tenant and the name of a request's key, None when it has no valid one."""
        return _ANYONE if self.keys is None else self.keys.authenticate(authorization)

    @property
    def name(self) -> str:
        """A name of this process's life: new at each start."""
        return self._id_prefix

    def output_of_running(self, model: str) -> int:
        """Output tokens so far of all requests for a model that are alive."""
        return sum(
            ticket.output_tokens()
            for ticket in self.driver.tickets()
            if isinstance(ticket, Exchange) and ticket.request.model == model
        )

    def gauges(self) -> Gauges:
        """Return the state of queues and replicas now."""
        tenants = self.driver.flow.tenants()
        counts = {name: self.driver.flow.counts(name) for name in tenants}
        return Gauges(
            queued={name: c.queued for name, c in counts.items()},
            running={name: c.running for name, c in counts.items()},
            replicas=self.fleet.gauges(),
            connections=len(self.clients),
            records_dropped=self._records_dropped(),
            levels=self.driver.flow.degradation(),
            shadow=None if self.driver.shadow is None else self.driver.shadow.counts,
            sessions=self.driver.flow.sessions_under_way(),
            now=self.loop.time() + self.wall_offset,
        )


def _log_step(step: Step) -> None:
    """Say in one line that the degradation ladder took a step, and why."""
    log.log(
        logging.WARNING if step.level > step.was else logging.INFO,
        "degradation level %d -> %d, model %s: %s",
        *(step.was, step.level, step.model, step.reason),
    )
