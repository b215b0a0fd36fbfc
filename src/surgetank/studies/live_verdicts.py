"""Live rehearsals with a known fault: what a verdict is tested on beside the simulated ones.

Rule: nothing is simulated but the engine's step. Each run has a replica process of its own, fresh
for it, and meets the schedule through the sender of `surgetank load`; the runs of one pair go side
by side, so that whatever else the machine does happens to all of them.

The lengths of the answers are the engine's to draw, by a seed of its own, so that two equal
services differ as two runs of one build do. A fault is asked for over the replica's /mock/faults,
which know the time: the start of the schedule is agreed on before.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from surgetank.adapters.child import Child
from surgetank.adapters.http import fetch
from surgetank.errors import SurgetankError
from surgetank.loadtest import shapes
from surgetank.loadtest.calm import calm
from surgetank.loadtest.rehearsal import Plan, bodies_of, rehearse
from surgetank.loadtest.runfile import Objective, Run
from surgetank.loadtest.schedule import Schedule
from surgetank.loadtest.target import Target, preflight
from surgetank.loadtest.tenants import TenantLoad, draw
from surgetank.studies.rehearsal import Planted, Pulses, Service, slower_recovery
from surgetank.traffic.tokencounts import Lengths

REFERENCE: Final = "reference"
MOST_OUTPUT: Final = 128  # tokens, beyond what an engine draws
_LEAD_IN: Final = 1.5  # seconds between the agreement on a start and the start
_START_TIMEOUT: Final = 60.0
_STOP_TIMEOUT: Final = 10.0
_ASK_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """What is sent and who serves it. `service.speed_cv` is the simulated twin's: live, it is real.

    A pulse asks for more than a replica can do: 8 sequences of some 8 tokens at 13 to 17 ms a step
    are 54 requests/s. Answers vary less than those of 128 tokens do (CV 0.3), since a pulse has
    some 90 requests and not 2,400.
    """

    pulses: Pulses = field(
        default_factory=lambda: Pulses(base=20, peak=90, width=1, period=4, cycles=20, prompt=32)
    )
    service: Service = field(
        default_factory=lambda: Service(profile="tiny", output=8, output_cv=0.3, speed_cv=0.01)
    )
    objective: Objective = field(default_factory=lambda: Objective(ttft=0.5))
    capacity: float = 54.0  # requests/s that one replica can sustain
    max_lag: float = 0.02

    def schedule(self) -> Schedule:
        """Draw it."""
        pulses = self.pulses
        shape = shapes.Pulses(
            base=pulses.base,
            peak=pulses.peak,
            width=pulses.width,
            period=pulses.period,
            duration=pulses.duration,
        )
        prompt, most = Lengths("fixed", pulses.prompt), Lengths("fixed", MOST_OUTPUT)
        said = {"prompt": pulses.prompt, "output": f"up to {MOST_OUTPUT}"}
        return draw([TenantLoad("default", shape, prompt, most, said=said)], seed=pulses.seed)


def fault_of(pulses: Pulses, planted: Planted) -> dict[str, Any] | None:
    """Give a planted fault as /mock/faults takes it; `start` counts from the schedule's start."""
    every = {"period": pulses.period, "times": pulses.cycles}
    if planted.fault == "slower pulses":
        when = {"start": pulses.onset, "width": pulses.width}
        return {"kind": "slow", "factor": 1 + planted.size} | when | every
    if planted.fault == "slower recovery":
        speed, lasts = slower_recovery(pulses, planted)
        most = math.nextafter(pulses.period - pulses.width, 0)  # the next pulse is not meant
        when = {"start": pulses.onset + pulses.width, "width": min(lasts, most)}
        return {"kind": "slow", "factor": 1 / speed} | when | every
    if planted.fault == "refusals":
        return {"kind": "status", "status": 503, "share": planted.size}
    return None


async def run_side_by_side(
    bed: Bed, planted: Mapping[str, Planted], *, stop: asyncio.Event | None = None
) -> dict[str, Run]:
    """Run the reference and each of these at once, on one schedule; runs by name.

    Seeds of the services are those after `bed.service.seed`. Raises StartError, InputError, and
    SurgetankError when it was stopped.
    """
    stop = stop or asyncio.Event()
    schedule = bed.schedule()
    wanted = {REFERENCE: Planted(), **planted}
    async with AsyncExitStack() as stack:
        replicas = {
            name: _replica(replace(bed.service, seed=bed.service.seed + number))
            for number, name in enumerate(wanted)
        }
        for replica in replicas.values():
            stack.push_async_callback(replica.stop)
        addresses = await asyncio.gather(*(replica.start() for replica in replicas.values()))
        plans = {
            name: await _plan(bed, schedule, address)
            for name, (address, *_) in zip(replicas, addresses, strict=True)
        }
        start = time.monotonic() + _LEAD_IN
        for name, plan in plans.items():
            fault = fault_of(bed.pulses, wanted[name])
            if fault is not None:
                await _plant(plan.target.url, fault, start)
        with calm():
            done = await asyncio.gather(
                *(rehearse(plan, stop=stop, start=start) for plan in plans.values())
            )
    if stop.is_set():
        raise SurgetankError("stopped: a pair that was cut off is no pair")
    return {name: one.run for name, one in zip(plans, done, strict=True)}


def _replica(service: Service) -> Child:
    sigma = math.sqrt(math.log1p(service.output_cv**2))
    options = {
        "--profile": service.profile,
        "--port": "0",
        "--seed": str(service.seed),
        "--output-median": f"{service.output * math.exp(-(sigma**2) / 2):.4f}",
        "--output-sigma": f"{sigma:.4f}",
    }
    words = [word for option in options.items() for word in option]
    return Child(
        "a replica",
        [sys.executable, "-m", "surgetank", "engine", *words],
        start_timeout=_START_TIMEOUT,
        stop_timeout=_STOP_TIMEOUT,
    )


async def _plan(bed: Bed, schedule: Schedule, address: str) -> Plan:
    target = Target(address)
    found = await preflight(target, ignore_eos=False)
    return Plan(
        schedule=schedule,
        target=target,
        found=found,
        bodies=bodies_of(schedule, found, bed.pulses.seed),
        objective=bed.objective,
        processes=1,
        max_lag=bed.max_lag,
        seed=bed.pulses.seed,
    )


async def _plant(address: str, fault: Mapping[str, Any], start: float) -> None:
    asked = dict(fault)
    if "start" in asked:
        asked["start"] += start - time.monotonic()
    answer = await fetch(
        f"{address}/mock/faults",
        timeout=_ASK_TIMEOUT,
        method="POST",
        body=json.dumps(asked).encode(),
    )
    if answer.status != 200:
        raise SurgetankError(f"{address}/mock/faults: {answer.status} {answer.text[:200]}")
