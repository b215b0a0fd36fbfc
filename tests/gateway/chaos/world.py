"""A served fleet in real processes, callers that keep books, and what must hold when all is quiet.

Rule: whatever is done to the fleet, each request ends once for its client, leaves one record, and
nothing of it stays: the gauges are back at 0.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from surgetank.adapters.child import Child
from surgetank.loadtest.client import Call, Client, Exchange
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome
from tests.gateway.harness import Engine
from tests.gateway.processes import Served, chat, mock_engine, serve

PATIENCE = 120.0  # seconds for a fleet that is slowed by other work
_GAUGES = (
    "surgetank_queued",
    "surgetank_running",
    "surgetank_replica_in_flight",
    "surgetank_replica_kv_reserved_tokens",
)


@dataclass
class World:
    """`sent`: requests that reached the gateway, by how they ended for their clients."""

    served: Served
    engines: list[tuple[str, Child]]
    client: Client
    ended: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    async def ask(self, **more: Any) -> Exchange:
        """Send one request and put its ending down; `after`: seconds until the client hangs up."""
        after = more.pop("abandon_after", None)
        body = json.dumps(chat(**{"max_tokens": 4, "stream": True, **more})).encode()
        exchange = await self.client.send(Call(body, timeout=PATIENCE, abandon_after=after))
        self.sent += 1
        self.ended[word(exchange)] += 1
        return exchange

    async def burst(self, number: int, *, at_once: int = 64, **more: Any) -> list[Exchange]:
        """Send so many, `at_once` of them at any time."""
        left = iter(range(number))
        found: list[Exchange] = []

        async def one_after_another() -> None:
            for _ in left:
                found.append(await self.ask(**more))  # noqa: PERF401 - one list of all

        await asyncio.gather(*(one_after_another() for _ in range(min(at_once, number))))
        return found

    async def fault(self, number: int, **fault: Any) -> None:
        """Switch a fault of an engine on."""
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
            url = f"{self.engines[number][0]}/mock/faults"
            assert (await client.post(url, json=fault)).status_code < 300

    async def settled(self, *, unread: int = 0) -> list[RequestRecord]:
        """Wait until nothing is left in the gateway; return the records, one for each request.

        `unread`: how many may be missing, hung up before the gateway had read them.
        """
        await self.wait(self._at_rest)
        before = -1
        while before != (before := self._lines()):  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(1.0)  # the last batch, or a record too many, would come now
        records = self.served.records()
        assert self.sent - unread <= len(records) <= self.sent
        assert len({record.id for record in records}) == len(records)
        return records

    def _lines(self) -> int:
        path = self.served.folder / "records.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    async def _at_rest(self) -> bool:
        return sum([await self.served.metric(name) for name in _GAUGES]) == 0

    async def wait(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110 - the state of another process
                await asyncio.sleep(0.05)

    def rss(self) -> int:
        """Resident memory of the gateway, bytes."""
        status = Path(f"/proc/{self.served.child.pid}/status").read_text(encoding="ascii")
        (line,) = (x for x in status.splitlines() if x.startswith("VmRSS:"))
        return 1024 * int(line.split()[1])


def word(exchange: Exchange) -> str:
    """How an exchange ended: completed, refused STATUS, or what broke."""
    if exchange.outcome is Outcome.COMPLETED:
        return "completed"
    return f"{exchange.status} {exchange.outcome}"


@asynccontextmanager
async def world(
    folder: Path,
    *engines: tuple[str, ...],
    profile: str = "tiny-fast",
    scripted: Sequence[Engine] = (),
    **sections: Any,
) -> AsyncIterator[World]:
    """Run one engine for each tuple of options, and a gateway before them.

    `scripted`: engines of this process beside them, for what takes more room than one has.
    """
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(mock_engine("--profile", profile, *options))
            for options in engines
        ]
        for engine in scripted:
            await engine.start()
            stack.push_async_callback(engine.kill)
        urls = [url for url, _ in running]
        urls += [f"http://127.0.0.1:{engine.port}" for engine in scripted]
        settings = {
            "flow": {"max_queued": 100_000, "max_in_flight": 64, "queue_timeout": 60},
            "listen": {"port": 0, "max_connections": 12_000},
            # Engines and callers share this machine: one that is starved has not failed.
            "upstream": {"health_interval": 0.2, "health_timeout": 20},
            **sections,
        }
        served = await stack.enter_async_context(serve(folder, urls, **settings))
        client = Client(served.url)
        stack.push_async_callback(client.close)
        yield World(served, running, client)
