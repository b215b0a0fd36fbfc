"""Prefix affinity beside round robin, least loaded and consistent hash: in the simulator, and live.

Twenty system prompts of 512 tokens, drawn at random before questions of 128 tokens, on four
replicas with a prefix cache; and a burst of one of them. What counts: prompt tokens found in caches
as a part of the best possible (each prefix computed once on each replica that it has to live on:
one, or in a burst as many as carry the load), the busiest replica by the mean, and the time to the
first token. Live: simulated replicas as servers behind a real gateway, in one process; the other
rules send to them directly. Exits 1 when ours misses 0.9 of the best or passes 1.3 times the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Self
from zlib import crc32

import numpy as np

from surgetank.adapters.http import fetch
from surgetank.engine import profile as profiles
from surgetank.gateway.server import Gateway
from surgetank.gateway.spec import GatewaySpec, ListenSpec, ReplicaSpec
from surgetank.mockengine.server import MockEngine, MockSpec
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.workload import Workload

REPLICAS = 4
SHARED = 512  # tokens of a system prompt
OWN = 128  # of a question
OUTPUT = 16
LEAST_HITS, MOST_LOAD = 0.9, 1.3
RULES = {
    "surgetank": "static",
    "round robin": "passthrough:round_robin",
    "least loaded": "passthrough",
    "consistent hash": "passthrough:consistent_hash",
}
_FLOW = FlowSpec(max_in_flight=64, queue_timeout=600.0, request_timeout=600.0, max_queued=10_000)
_CACHED = re.compile(rb'"cached_tokens": ?([0-9]+)')


@dataclass(frozen=True, slots=True)
class Figures:
    """One rule on one load. `hits`: of the best possible; `load`: the busiest by the mean."""

    rule: str
    hits: float
    load: float
    ttft_ms: float | None = None  # mean


# In the simulator.


def workload(requests: int, prefixes: int, rate: float, seed: int) -> Workload:
    """Poisson arrivals at `rate` per second, each with one of the prefixes."""
    rng = np.random.default_rng(seed)
    arrived = np.cumsum(rng.exponential(1 / rate, requests))
    zeros = np.zeros(requests, np.int32)
    return Workload(
        arrived=arrived,
        prompt=np.full(requests, SHARED + OWN),
        output=np.full(requests, 3 * OUTPUT),
        tenant=zeros,
        tenants=("t",),
        model=zeros,
        models=("m",),
        phase=zeros.astype(np.int8),
        phases=("all",),
        span=float(arrived[-1]),
        shared=rng.integers(0, prefixes, requests).astype(np.int32),
        shared_tokens=SHARED,
    )


def simulated(rule: str, load: Workload, *, lives_on: int, profile: str = "demo-fleet") -> Figures:
    """Run a workload under one of RULES. `lives_on`: replicas that each prefix has to live on."""
    engine = profiles.find(profile)
    slots = min(64, engine.max_num_seqs)
    pool = PoolPlan(model="m", profile=engine, replicas=REPLICAS, slots=slots)
    result = simulate(Scenario(workload=load, pools=(pool,), policy=RULES[rule], flow=_FLOW))
    records = list(result.records())
    if any(record.outcome != "completed" for record in records):
        raise SystemExit(f"{rule}: not every request was served: take a lower rate")
    assert load.shared is not None
    best = SHARED * (len(records) - lives_on * len(np.unique(load.shared)))
    hits = sum(record.cached_tokens or 0 for record in records) / best
    share = Counter(record.replica for record in records)
    ttft = float(np.mean([record.ttft for record in records]))
    return Figures(rule, hits, max(share.values()) * REPLICAS / len(records), 1000 * ttft)


# Live.


def body(shared: int, number: int, *, max_tokens: int = OUTPUT) -> bytes:
    """A chat whose prompt the engine takes for SHARED and OWN tokens."""
    system = (f"{shared:08d} " * SHARED)[: 4 * SHARED]
    own = (f"{number:08d}? " * OWN)[: 4 * (OWN - 8)]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": own}]
    told = {"model": "m", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
    return json.dumps(told).encode()


class Live:
    """Four servers with a prefix cache, and a gateway before them. `speed`: of the engines."""

    def __init__(self, speed: float, seed: int = 1) -> None:
        engine = replace(profiles.find("demo-fleet"), kv_blocks=8192)
        spec = MockSpec(engine, "m", speed=speed, prefix_cache=True)
        self._engines = [MockEngine(spec) for _ in range(REPLICAS)]
        self._draw = random.Random(seed).random
        self.gateway: Gateway | None = None
        self.urls: list[str] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self.urls = [await engine.listen() for engine in self._engines]
        flow = FlowControl(_FLOW, models=("m",), draw=self._draw)
        replicas = tuple(ReplicaSpec(url=url, slots=64) for url in self.urls)
        self.gateway = Gateway(
            GatewaySpec(listen=ListenSpec(port=0), replicas=replicas, drain_timeout=0.0), flow
        )
        self.url = f"http://127.0.0.1:{await self.gateway.start()}"
        async with asyncio.timeout(30):
            while len(flow.replicas()) < REPLICAS:
                self.gateway.fleet.news.clear()
                await self.gateway.fleet.news.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.gateway is not None:
            await self.gateway.drain()
        await asyncio.gather(*(engine.close() for engine in self._engines))

    async def ask(self, url: str, payload: bytes) -> int:
        """Send a chat; prompt tokens that were found in a cache."""
        answer = await fetch(
            f"{url}/v1/chat/completions",
            timeout=60.0,
            method="POST",
            headers=[(b"content-type", b"application/json")],
            body=payload,
        )
        found = _CACHED.search(answer.body)
        if answer.status != 200 or found is None:
            raise SystemExit(f"{url}: answered {answer.status}: {answer.body[:200]!r}")
        return int(found[1])

    def loads(self) -> list[int]:
        """Requests that the gateway has on each replica."""
        assert self.gateway is not None
        return [view.in_flight for view in self.gateway.driver.flow.replicas()]


async def live(rule: str, requests: int, prefixes: int, workers: int, speed: float) -> Figures:
    """Have `workers` clients send one request after another."""
    order = random.Random(2)
    rows = [(order.randrange(prefixes), number) for number in range(requests)]
    queue = iter(rows)
    sent: Counter[str] = Counter()
    open_on: Counter[str] = Counter()
    turn = count()
    cached = 0
    async with Live(speed) as fleet:

        def choose(shared: int) -> str:
            if rule == "round robin":
                return fleet.urls[next(turn) % REPLICAS]
            if rule == "least loaded":
                return min(fleet.urls, key=lambda url: open_on[url])
            return max(fleet.urls, key=lambda url: crc32(f"{url}/{shared}".encode()))

        async def work() -> None:
            nonlocal cached
            for shared, number in queue:
                url = fleet.url if rule == "surgetank" else choose(shared)
                sent[url] += 1
                open_on[url] += 1
                found = await fleet.ask(url, body(shared, number))
                cached += found
                open_on[url] -= 1

        await asyncio.gather(*(work() for _ in range(workers)))
        if rule == "surgetank":
            assert fleet.gateway is not None
            fleet.gateway.ledger.book()
            sent = served(fleet)
    best = SHARED * (requests - len({shared for shared, _ in rows}))
    return Figures(rule, cached / best, max(sent.values()) * REPLICAS / requests)


def served(fleet: Live) -> Counter[str]:
    """Requests that each engine has finished."""
    return Counter(
        {
            url: int(engine.metrics.success["length"]._value.get())  # noqa: SLF001 - no other way
            for url, engine in zip(fleet.urls, fleet._engines, strict=True)  # noqa: SLF001
        }
    )


async def live_burst(size: int) -> float:
    """Place a burst of one prefix on engines that stand still; the busiest by the mean."""
    async with Live(1e-6) as fleet:
        asks = [
            asyncio.ensure_future(fleet.ask(fleet.url, body(1, number))) for number in range(size)
        ]
        async with asyncio.timeout(60):
            while sum(fleet.loads()) < size:  # noqa: ASYNC110 - what is awaited is the gateway's
                await asyncio.sleep(0.005)
        busiest = max(fleet.loads()) * REPLICAS / size
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
    return busiest


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--prefixes", type=int, default=20)
    parser.add_argument("--rate", type=float, default=8.0, help="per second, in the simulator")
    parser.add_argument("--burst", type=int, default=100)
    parser.add_argument("--workers", type=int, default=5, help="live: requests at once")
    parser.add_argument("--speed", type=float, default=20.0, help="live: of the engines")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args(arguments)
    mixed = workload(told.requests, told.prefixes, told.rate, 1)
    burst = workload(told.burst, 1, 200.0, 2)
    simulations = [simulated(rule, mixed, lives_on=1) for rule in RULES]
    bursts = [simulated(rule, burst, lives_on=REPLICAS) for rule in RULES]
    lives = [
        asyncio.run(live(rule, told.requests, told.prefixes, told.workers, told.speed))
        for rule in RULES
    ]
    placed = asyncio.run(live_burst(told.burst))
    ours = min(simulations[0].hits, lives[0].hits)
    busiest = max(bursts[0].load, placed)
    if told.json:
        tables = {"simulated": simulations, "burst": bursts, "live": lives}
        rows = {name: [asdict(x) for x in table] for name, table in tables.items()}
        print(json.dumps(rows | {"live_burst_load": placed}))
    else:
        for name, table in (
            (f"simulated, {told.rate:g}/s", simulations),
            (f"simulated burst of {told.burst}, one prefix", bursts),
            (f"live, {told.workers} at once", lives),
        ):
            print(f"{name:<36} {'hits of best':>12} {'busiest/mean':>12} {'TTFT ms':>8}")
            for row in table:
                ttft = "" if row.ttft_ms is None else f"{row.ttft_ms:8.0f}"
                print(f"  {row.rule:<34} {row.hits:12.3f} {row.load:12.2f} {ttft:>8}")
        print(f"live burst of {told.burst}, one prefix: busiest/mean {placed:.2f}")
    return 0 if ours >= LEAST_HITS and busiest <= MOST_LOAD else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
