"""The same pulse over real processes: `surgetank serve`, its replicas, an open-loop sender.

Rule: what the sender saw is what counts. The simulator is then given the very same requests, what
the fleet's first starts took, and where between two ticks the burst fell; nothing else of the run.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from surgetank.adapters.child import StartError
from surgetank.adapters.records import read_records, read_samples
from surgetank.autoscaler.spec import AutoscaleSpec
from surgetank.loadtest.client import Call, Client
from surgetank.loadtest.processes import OnProgress, send
from surgetank.loadtest.shot import LoadResult, Shot
from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.studies.fleet_demo.measure import at_rest, cut_by_scale_down, read_decisions
from surgetank.studies.fleet_demo.pulse import MODEL, body
from surgetank.studies.fleet_demo.setup import FLOW, FleetSetup
from surgetank.studies.fleet_demo.tail import SampleTail
from surgetank.studies.gateway_process import GatewayProcess
from surgetank.studies.standbys import (
    SETUP,
    TENANTS,
    TIERS,
    Asked,
    Pulse,
    Trial,
    calendar,
    judged,
    simulated,
)
from surgetank.studies.warmup import served

_START: Final = 60.0  # seconds beyond the cold start until all are up
_LOOK: Final = 0.2
_MAX_LAG: Final = 0.05  # seconds: first tokens count from when requests were due
_WITHIN, _OR = 0.10, 0.05  # part, or seconds, by which two P95s may differ
_TICK: Final = 1.0  # seconds between two decisions: what may lie between two promotions
_CLOCK: Final = 0.1  # seconds by which a tick may come late


@dataclass(frozen=True, slots=True)
class Lived:
    """One run, and what the simulator made of it.

    `drained`: streams that went on when their replica was told to go; `cut_by_scale_down`: those of
    them that did not end well. `start`: what the first starts took, seconds; `standbys`: there were
    at the onset.
    """

    trial: Trial
    foretold: Trial
    drained: int
    cut_by_scale_down: int
    start: float
    standbys: int
    sent: LoadResult

    def differences(self) -> list[str]:
        """Where the simulator tells another story, one line each."""
        ours, theirs = self.trial, self.foretold
        return [*_other_moves(ours, theirs, self.standbys), *_other_waits(ours, theirs)]


async def live(
    seed: int,
    pulse: Pulse = Pulse(),  # noqa: B008 - a frozen value
    *,
    setup: FleetSetup = SETUP,
    kept: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Lived:
    """Run it once. `kept`: an empty folder for the gateway's records and decisions.

    Raises StartError when something does not come up; all that starts is ended.
    """
    asked = pulse.requests(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = (kept or folder).absolute()
        records, decisions = written / "records.jsonl", written / "decisions.jsonl"
        async with AsyncExitStack() as parts:
            gateway = GatewayProcess(
                folder / "gateway",
                None,
                TENANTS,
                tiers=TIERS,
                flow=FLOW,
                autoscaler=AutoscaleSpec(
                    pools=(setup.pool(),),
                    calendar=calendar(setup),
                    state_dir=str(folder / "state"),
                    decisions=str(decisions),
                ),
                records=records,
            )
            await parts.enter_async_context(gateway)
            tail, bound = SampleTail(records), setup.cold_start + _START
            if not await _seen(tail, partial(_at_rest, setup), bound):
                raise StartError(f"the fleet was not up within {bound:g} s: {tail.latest}")
            await _warm(gateway)
            began = time.monotonic() + _LOOK
            sent = await send(
                gateway.url,
                [_shot(row, number, gateway.keys) for number, row in enumerate(asked)],
                seed=seed,
                start=began,
                max_lag=_MAX_LAG,
                on_progress=on_progress,
            )
            await asyncio.sleep(max(0.0, began + pulse.length - time.monotonic()))
            await _seen(tail, lambda sample: sample.standby >= setup.standbys, bound)
        samples, own = list(read_samples(records)), list(read_records(records))
        lines = read_decisions(decisions.read_text(encoding="utf-8"))
    begins = (sent.records[0].scheduled or 0.0) - asked[0].at
    starts = [s for sample in samples if sample.t < begins for s in sample.start_times]
    ticks = max(sample.t for sample in samples if sample.t <= begins)
    start = fmean(starts)
    return Lived(
        trial=judged(
            pulse,
            seed,
            begins,
            clients=sent.records,
            gateway=own,
            samples=samples,
            standbys=setup.standbys,
        ),
        foretold=simulated(pulse, seed, setup=setup, start=start, phase=begins - ticks),
        drained=_going_on(lines, own),
        cut_by_scale_down=len(cut_by_scale_down(lines, own)),
        start=start,
        standbys=setup.standbys,
        sent=sent,
    )


def _shot(asked: Asked, number: int, keys: Mapping[str, str]) -> Shot:
    return Shot(
        asked.at,
        body(asked.prompt, asked.output),
        tenant=asked.tenant,
        key=keys[asked.tenant],
        id=f"{number:06d}",
        model=MODEL,
        max_tokens=asked.output,
    )


def _at_rest(setup: FleetSetup, sample: FleetSample) -> bool:
    return at_rest(sample, serving=setup.base, standby=setup.standbys)


async def _seen(tail: SampleTail, wanted: Callable[[FleetSample], bool], bound: float) -> bool:
    """Wait for a sample that is as wanted; False: none came within `bound` seconds."""
    ends = time.monotonic() + bound
    while time.monotonic() < ends:
        sample = tail.read()
        if sample is not None and wanted(sample):
            return True
        await asyncio.sleep(_LOOK)
    return False


async def _warm(gateway: GatewayProcess) -> None:
    client = Client(gateway.url)
    try:
        await served(client, Call(body(8, 2), key=gateway.keys[TENANTS[0].name]))
    finally:
        await client.close()


def _going_on(lines: Iterable[Mapping[str, Any]], records: Sequence[RequestRecord]) -> int:
    """Count the streams that ran on a replica when it was told to drain."""
    told = [
        (effect["replica"], line["t"])
        for line in lines
        for effect in line["effects"]
        if effect["do"] == "drain"
    ]
    return sum(
        r.replica == replica and (r.dispatched or at) < at < (r.ended or at)
        for replica, at in told
        for r in records
    )


def _other_moves(live: Trial, foretold: Trial, standbys: int) -> Iterator[str]:
    """The order of the first of each kind, and when each standby was promoted and refilled."""
    if live.order != foretold.order:
        yield f"order: live {', '.join(live.order)}; simulated {', '.join(foretold.order)}"
    for what in ("promoted", "launched"):
        pairs = zip_longest(
            live.times(what)[:standbys], foretold.times(what)[:standbys], fillvalue=math.inf
        )
        for number, (ours, theirs) in enumerate(pairs, 1):
            if not abs(ours - theirs) <= _TICK + _CLOCK:
                yield f"{what}, {number}: live at {ours:.1f} s, simulated at {theirs:.1f} s"


def _other_waits(live: Trial, foretold: Trial) -> Iterator[str]:
    for (tier, phase), ours in live.p95.items():
        theirs = foretold.p95[tier, phase]
        if ours != theirs and not abs(ours - theirs) <= max(_OR, _WITHIN * theirs):
            yield f"TTFT P95 of {tier}, {phase}: live {ours:.3f} s, simulated {theirs:.3f} s"
