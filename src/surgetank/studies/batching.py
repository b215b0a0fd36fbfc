"""What the batching window is worth where an engine runs whole batches: when idle, and at the peak.

Idle: requests come in clumps (an agent's calls, a page that asks for several things), a few of them
within a fifth of a second. Without a window the first one leaves alone, and the others wait for its
end. Peak: as many as the engine can do; batches come together while the last one runs.

Rule: both see the same requests; what is gained is counted in requests per second that the engine
was busy, which is what is left for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from surgetank.engine import profile as engines
from surgetank.engine.static import StaticBatcher
from surgetank.policy.flow import FlowSpec
from surgetank.simulation.engines import LiteralEngine
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.workload import Workload, of_batch
from surgetank.traffic.trace import Batch

Load = Literal["idle", "peak"]

SIZE: Final = 8
_PROMPT, _OUTPUT = 100, 40  # tokens
_CLUMP, _WITHIN, _EVERY = 6, 0.2, 5.0  # requests, seconds, seconds
_PEAK: Final = 7.0  # requests per second, of about 7.4 that whole batches of 8 can do
_PATIENT: Final = 1e4  # seconds: nothing is refused, so that latencies are of all


@dataclass(frozen=True, slots=True)
class Batched:
    """One run. Seconds; `per_busy_second`: requests, of the time in which the engine computed."""

    load: Load
    window: float
    batches: int
    size: float
    per_busy_second: float
    ttft_p95: float
    total_p50: float
    total_p95: float


def workload(load: Load, seed: int, requests: int) -> Workload:
    """Draw what comes; the same with a window and without."""
    rng = np.random.default_rng([seed, 11])
    if load == "idle":
        clumps = np.arange(requests // _CLUMP) * _EVERY
        at = np.sort((clumps[:, None] + rng.uniform(0, _WITHIN, (len(clumps), _CLUMP))).ravel())
    else:
        at = np.cumsum(rng.exponential(1 / _PEAK, requests))
    output = np.clip(rng.lognormal(np.log(_OUTPUT), 0.3, len(at)), 5, 200)
    return of_batch(Batch(at, np.full(len(at), _PROMPT), output.astype(np.int64)))


def run(load: Load, window: float, seed: int = 0, requests: int = 600) -> Batched:
    """Simulate one engine that runs whole batches, behind the live admission."""
    pool = PoolPlan(model="model", profile=engines.find("tiny"), static_batch=SIZE)
    flow = FlowSpec(
        batching_window=window,
        max_queued=requests,
        queue_timeout=_PATIENT,
        request_timeout=_PATIENT,
    )
    given = workload(load, seed, requests)
    result = simulate(Scenario(workload=given, pools=(pool,), policy="static", flow=flow))
    engine = result.machines[0].engine
    assert isinstance(engine, LiteralEngine)  # noqa: S101 - as the pool asks for
    batcher = engine.batcher
    assert isinstance(batcher, StaticBatcher)  # noqa: S101 - the same
    total = result.requests.ended - given.arrived
    return Batched(
        load=load,
        window=window,
        batches=batcher.batches,
        size=len(given) / batcher.batches,
        per_busy_second=len(given) / batcher.busy,
        ttft_p95=float(np.percentile(result.requests.ttft, 95)),
        total_p50=float(np.percentile(total, 50)),
        total_p95=float(np.percentile(total, 95)),
    )
