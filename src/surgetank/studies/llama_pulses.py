"""Pulses on a real llama.cpp server, straight at it and through the gateway.

Rule: nothing is modelled. One schedule makes two runs; the engine is llama.cpp with random weights,
fresh for each, and they are sent and judged by what `load` and `compare` are made of.

llama.cpp ends every stream when its KV is full: eight slots share 2,048 tokens, and eight requests
of the size sent need more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from surgetank.adapters.llamacpp.model import write_tiny_gguf
from surgetank.adapters.llamacpp.process import LlamaServer
from surgetank.loadtest.rehearsal import Plan, Rehearsed, bodies_of, rehearse
from surgetank.loadtest.report import report
from surgetank.loadtest.runfile import Objective, Run
from surgetank.loadtest.schedule import Schedule
from surgetank.loadtest.shapes import Pulses
from surgetank.loadtest.shot import Tally
from surgetank.loadtest.target import Target, preflight
from surgetank.loadtest.targetmetrics import find, least_interval, scrape
from surgetank.loadtest.tenants import TenantLoad, draw
from surgetank.policy.tenant import Tenant
from surgetank.studies.gateway_process import GatewayProcess
from surgetank.traffic.analysis import plain
from surgetank.traffic.tokencounts import parse_lengths

Way = Literal["direct", "gateway"]
WAYS: Final[tuple[Way, ...]] = ("direct", "gateway")
MODEL: Final = "tiny"
TENANT: Final = "default"
SLOTS: Final = 8
KV_TOKENS: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is sent. Requests/s, seconds, tokens."""

    pulses: Pulses = field(
        default_factory=lambda: Pulses(base=0.5, peak=12, width=6, period=24, duration=144)
    )
    prompt: str = "80"
    output: str = "lognormal:200,0.5,500"
    ttft: float = 2.0
    queue_timeout: float = 20.0  # of the gateway: who waits longer is refused
    timeout: float = 60.0
    max_lag: float = 0.02
    seed: int = 0

    def schedule(self) -> Schedule:
        """Draw it."""
        sizes = {"prompt": self.prompt, "output": self.output}
        prompt, output = (parse_lengths(text, name) for name, text in sizes.items())
        load = TenantLoad(TENANT, self.pulses, prompt, output, said=sizes)
        return draw([load], seed=self.seed)


async def run_pulses(
    folder: Path,
    setup: Setup,
    *,
    stop: asyncio.Event | None = None,
    on_progress: Callable[[Way, Tally], None] | None = None,
) -> dict[Way, Run]:
    """Run both ways, one after the other. Raises InputError without the `demo` extra, StartError.

    `stop` ends the way that is under way; nothing is left running.
    """
    model = folder / "tiny.gguf"
    write_tiny_gguf(model)
    runs: dict[Way, Run] = {}
    for way in WAYS:
        async with _served(folder, model, way, setup) as target:

            def told(tally: Tally, way: Way = way) -> None:
                if on_progress is not None:
                    on_progress(way, tally)

            done = await _rehearsed(setup, target, stop or asyncio.Event(), told)
            runs[way] = replace(done.run, summary=plain(report(done.run).to_json()))
    return runs


@dataclass(frozen=True, slots=True)
class _Way:
    target: Target
    metrics: str


@asynccontextmanager
async def _served(folder: Path, model: Path, way: Way, setup: Setup) -> AsyncIterator[_Way]:
    """Start the engine, and a gateway in front of it for that way."""
    async with LlamaServer(model, slots=SLOTS, context=KV_TOKENS, alias=MODEL) as engine:
        metrics = f"{engine.url}/metrics"
        if way == "direct":
            yield _Way(Target(engine.url, MODEL), metrics)
            return
        flow = {"queue_timeout": setup.queue_timeout, "request_timeout": setup.timeout}
        gateway = GatewayProcess(folder / "gateway", engine.url, [Tenant(TENANT)], flow=flow)
        async with gateway:
            yield _Way(Target(gateway.url, MODEL, keys=gateway.keys), metrics)


async def _rehearsed(
    setup: Setup, way: _Way, stop: asyncio.Event, told: Callable[[Tally], None]
) -> Rehearsed:
    schedule = setup.schedule()
    found = await preflight(way.target)
    metrics = await find([way.metrics])
    text = await scrape(way.metrics) if metrics else None
    plan = Plan(
        schedule=schedule,
        target=way.target,
        found=found,
        bodies=bodies_of(schedule, found, setup.seed),
        timeout=setup.timeout,
        objective=Objective(setup.ttft),
        metrics=metrics,
        metrics_interval=max(1.0, least_interval(text or "")),
        max_lag=setup.max_lag,
        seed=setup.seed,
    )
    return await rehearse(plan, stop=stop, on_progress=told)
