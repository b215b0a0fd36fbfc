"""What a check has in its hands: replicas, the gateway before them, clients, and its evidence.

Rule: every wait has a bound; what was opened is closed on every way out. Times in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from surgetank.studies.conformance.client import LIMIT, Call, Line, get, post
from surgetank.studies.conformance.replica import Replica
from surgetank.studies.conformance.settings import Settings
from surgetank.studies.conformance.subject import Gateway, Subject
from surgetank.studies.conformance.verdict import Check, Failed, NotTestable

_POLL: Final = 0.005
_AT_ONCE: Final = 200  # connections being made at a time: a listener's backlog is not the subject
_WARM: Final = 30.0  # seconds that a gateway's very first requests may take
_KNOWN: Final = 15.0  # within which a gateway that runs already notices the replicas


class World:
    """One check's own. `quick`: scaled-down sizes where a check offers them."""

    def __init__(self, subject: Subject, check: Check, folder: Path, *, quick: bool) -> None:
        self.subject = subject
        self.quick = quick
        self.replicas: list[Replica] = []
        self.evidence: list[str] = []
        self.settings = Settings()
        self._check = check
        self._folder = folder
        self._gateway: Gateway | None = None
        self._lines: list[Line] = []
        self._starts = 0
        self.bound: asyncio.Timeout | None = None  # of the check

    # Its life.

    async def open(self) -> None:
        """Start the replicas, and the gateway unless the check does. Raises NotTestable."""
        given = self._check.given
        if given is not None:
            given = self.subject.possible(given, self._check.without)
        for i, port in enumerate(self.subject.ports(self._check.replicas)):
            replica = Replica(f"replica {i + 1}", port, model=self.subject.model)
            await replica.start()
            self.replicas.append(replica)
        if given is not None:
            await self._start(given)

    async def start(self, settings: Settings, *, without: tuple[str, ...] = ()) -> None:
        """Start the gateway, or start it anew. Raises NotTestable, and NotStarted."""
        await self._start(self.subject.possible(settings, frozenset(without)))

    async def _start(self, settings: Settings) -> None:
        await self.stop()
        self._starts += 1
        folder = self._folder / str(self._starts)
        folder.mkdir(mode=0o700)
        ports = [replica.port for replica in self.replicas]
        self.settings = settings
        async with self._unhurried():
            self._gateway = await self.subject.start(settings, ports, folder)
            if self._gateway.process is None:
                await self._noticed()
            if self._gateway.warm_up is not None:
                await self._warm(self._gateway.warm_up)
        for replica in self.replicas:
            replica.forget()

    @contextlib.asynccontextmanager
    async def _unhurried(self) -> AsyncIterator[None]:
        """The time of a start is not the check's: it has a bound of its own."""
        bound, began = self.bound, self.now
        until = None if bound is None else bound.when()
        if bound is not None:
            bound.reschedule(None)
        yield
        if bound is not None and until is not None:
            bound.reschedule(until + self.now - began)

    async def _warm(self, key: str) -> None:
        for stream in (False, True):
            message = post(self.chat(stream=stream), key=key, host=self.host)
            await (await self.connect()).ask(message, limit=_WARM).ending(_WARM + 1)

    async def _noticed(self) -> None:
        """A gateway that ran before the replicas has to see that they are there."""
        deadline, seen = self.now + _KNOWN, ""
        while self.now < deadline:
            try:
                call = await (await self.ask(limit=5.0)).ending()
            except Failed as refused:
                seen = str(refused)
            else:
                if call.ok:
                    return
                seen = call.shape
            await asyncio.sleep(0.2)
        raise NotTestable(f"no request was answered in {_KNOWN:g} s, at last: {seen}")

    async def stop(self) -> None:
        """End the gateway."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await asyncio.shield(gateway.stop())

    async def close(self) -> None:
        """Close everything."""
        for line in self._lines:
            line.abort()
        try:
            await self.stop()
        finally:
            for replica in self.replicas:
                await replica.die()

    # The parts.

    @property
    def gateway(self) -> Gateway:
        assert self._gateway is not None  # noqa: S101 (a check without `given` starts it first)
        return self._gateway

    @property
    def replica(self) -> Replica:
        """The first one."""
        return self.replicas[0]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def in_flight(self) -> int:
        """Requests at all replicas."""
        return sum(replica.in_flight for replica in self.replicas)

    @property
    def total(self) -> int:
        """Requests for text that reached any replica."""
        return sum(replica.total for replica in self.replicas)

    async def gauge(self, name: str) -> float:
        """Read a gauge; 0 while a page does not show it. Raises NotTestable."""
        return await self.gateway.gauge(name) or 0.0

    def tells(self, name: str) -> bool:
        """Whether it is known where this gateway tells a gauge."""
        return name in self.gateway.gauges

    def memory(self) -> int:
        """Bytes the gateway has in memory. Raises NotTestable."""
        return self.gateway.started("its memory").memory()

    def resident(self) -> int | None:
        """Bytes the gateway has in memory; None where that cannot be seen."""
        return None if self.gateway.process is None else self.gateway.process.memory()

    def key(self, tenant: str = "") -> str:
        """Return a tenant's API key; without a name the first one's, "" when keys are not used."""
        keys = self.gateway.keys
        return keys[tenant] if tenant else next(iter(keys.values()), "")

    # Clients.

    def chat(
        self, *, stream: bool = False, text: str = "hello there", **more: Any
    ) -> dict[str, Any]:
        """Write a chat request's body."""
        body = {"model": self.gateway.model, "messages": [{"role": "user", "content": text}]}
        return {**body, "stream": stream, **more}

    def message(
        self,
        body: object = None,
        *,
        tenant: str = "",
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        **more: Any,
    ) -> bytes:
        """Write a request: `body`, else a chat with `stream` and more members."""
        told = self.chat(stream=stream, **more) if body is None else body
        return post(told, path=path, key=self.key(tenant), headers=headers, host=self.host)

    def getting(self, path: str, *, method: str = "GET", tenant: str = "") -> bytes:
        """Write a request without a body."""
        return get(path, method=method, key=self.key(tenant), host=self.host)

    @property
    def host(self) -> str:
        return f"{self.gateway.host}:{self.gateway.port}"

    async def connect(self) -> Line:
        """Open one connection. Raises Failed when the gateway refuses it."""
        gateway = self.gateway
        try:
            async with asyncio.timeout(10.0):
                _, line = await asyncio.get_running_loop().create_connection(
                    Line, gateway.host, gateway.port
                )
        except (OSError, TimeoutError) as error:
            raise Failed(f"a connection was not accepted: {str(error) or 'within 10 s'}") from None
        self._lines.append(line)
        return line

    async def lines(self, number: int) -> list[Line]:
        """Open so many connections."""
        found: list[Line] = []
        while len(found) < number:
            some = min(_AT_ONCE, number - len(found))
            found += await asyncio.gather(*(self.connect() for _ in range(some)))
        return found

    async def ask(self, body: object = None, *, limit: float = LIMIT, **how: Any) -> Call:
        """Send a request on a connection of its own, not awaited; `how` as in `message`."""
        message = self.message(body, **how)
        return (await self.connect()).ask(message, limit=limit)

    async def burst(self, messages: Sequence[bytes], *, limit: float = LIMIT) -> list[Call]:
        """Send them all in one go, each on a connection that was open before."""
        lines = await self.lines(len(messages))
        return [
            line.ask(message, limit=limit) for line, message in zip(lines, messages, strict=True)
        ]

    @staticmethod
    async def ended(calls: Sequence[Call], seconds: float = LIMIT + 1) -> Sequence[Call]:
        """Wait until all have ended, or for so long."""
        await asyncio.gather(*(call.ending(seconds) for call in calls))
        return calls

    # Waiting and judging.

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for something at the replicas; False when it does not come in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    async def settles(self, gauge: str, value: float, seconds: float) -> float:
        """Read a gauge until it has a value, or the time is over; return what it says then."""
        deadline = self.now + seconds
        while True:
            told = await self.gauge(gauge)
            if told == value or self.now >= deadline:
                return told
            await asyncio.sleep(0.05)

    def note(self, text: str) -> None:
        """Keep a line of evidence."""
        self.evidence.append(text)

    def require(self, condition: object, seen: str) -> None:
        """Go on when it holds. Raises Failed with what was seen otherwise."""
        if not condition:
            raise Failed(seen)
