"""A fleet as a fluid: what a scaler costs and keeps on a cell's arrivals, in about a second.

Seconds of work come in; replicas of a real Pool start, wake, serve and stop; one queue in front of
them is served first come, first served. No engine is stepped, so a policy can be tried on dozens of
scenarios in the time the exact simulator takes for one. What it says is to be confirmed there.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.coldstart import ColdStart
from surgetank.policy.plan import Observation
from surgetank.policy.pool import Attach, Detach, Drain, Pool, PoolEffect, PoolSpec, Start, Stop
from surgetank.simulation.policies import Scaler
from surgetank.simulation.workload import Workload

Floats = NDArray[np.float64]

_DECODE_SHARE = 0.5  # of a decode's cost: its steps carry prefills as well
_PACE = 0.4  # of the TPOT objective
_LEAST_PART = 0.15  # of a replica that prefills get


@dataclass(frozen=True, slots=True)
class Inflow:
    """What comes each second: requests, tokens, and the same as replica-seconds."""

    requests: Floats
    prompt: Floats
    output: Floats
    prefill: Floats
    decode: Floats
    stay: float  # s that a request decodes


def inflow(load: Workload, prompt_rate: float, output_rate: float, *, tpot: float) -> Inflow:
    """Count a workload by seconds, for replicas that do so many tokens/s of either kind alone."""
    at = load.arrived.astype(np.int64)
    size = int(at[-1]) + 1 if len(load) else 1
    prompt = load.prompt.astype(float)
    if load.cached is not None:
        prompt = prompt - np.maximum(0, load.cached)

    def by_second(weights: Floats | None) -> Floats:
        return np.bincount(at, weights=weights, minlength=size).astype(float)

    tokens, answers = by_second(prompt), by_second(load.output.astype(float))
    return Inflow(
        requests=by_second(None),
        prompt=tokens,
        output=answers,
        prefill=tokens / prompt_rate,
        decode=answers / output_rate,
        stay=max(1.0, float(load.output.mean()) * _PACE * tpot) if len(load) else 1.0,
    )


@dataclass(frozen=True, slots=True)
class FluidScore:
    """Of a stretch: attainment of the TTFT objective, and replica-hours at a standby cost of 1."""

    attainment: float
    replica_hours: float
    standby_hours: float
    launches: int

    def cost(self, standby_cost: float) -> float:
        """Replica-hours when a standby costs so much of a serving replica."""
        return self.replica_hours - (1 - standby_cost) * self.standby_hours


@dataclass(frozen=True, slots=True)
class FluidFleet:
    """Where scalers are tried. `objective`: TTFT, s; `spare`: of it, what the own prefill takes."""

    inflow: Inflow
    start: ColdStart
    replicas: int
    standbys: int
    most: int
    objective: float
    seed: int = 0
    lag: int = 1  # s
    spare: float = 0.25

    def run(self, scaler: Scaler, stretches: list[tuple[int, int]]) -> list[FluidScore]:
        """Follow a scaler from the beginning to the last stretch's end; score each."""
        return _Run(self, scaler).until(stretches)


class _Run:
    def __init__(self, fleet: FluidFleet, scaler: Scaler) -> None:
        self._of = fleet
        self._scaler = scaler
        self._rng = np.random.default_rng(fleet.seed)
        self._pool = Pool(
            PoolSpec(base=1, max_replicas=fleet.most), "m", draw=lambda: float(self._rng.random())
        )
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._serving: set[str] = set()
        self._launches = 0
        self._queue = 0.0
        self._waiting = 0.0  # requests
        self._decoding = 0.0
        self._seen: list[dict[str, object]] = []

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what))

    def _carry_out(self, effects: Sequence[PoolEffect], now: float) -> None:
        start, pool = self._of.start, self._pool
        for effect in effects:
            name = effect.replica
            match effect:
                case Start():
                    self._launches += 1
                    drawn = start.draw(self._rng, warm_node=False)
                    ends = pool.became_ready if drawn.ending == "ready" else pool.failed
                    self._at(now + drawn.seconds, self._then(ends, name))
                case Attach():
                    self._at(now + start.wake(self._rng), self._woke(name))
                case Detach() | Drain():
                    self._serving.discard(name)
                    if isinstance(effect, Drain):
                        stay = self._of.inflow.stay
                        self._at(now + stay, self._then(pool.drained, name))
                case Stop():
                    self._serving.discard(name)
                    self._at(now + 1.0, self._then(pool.stopped, name))

    def _then(
        self, what: Callable[[str, float], Sequence[PoolEffect]], name: str
    ) -> Callable[[float], None]:
        return lambda now: self._carry_out(what(name, now), now)

    def _woke(self, name: str) -> Callable[[float], None]:
        def woke(_now: float) -> None:
            if self._pool.state(name).value == "serving":
                self._serving.add(name)

        return woke

    def until(self, stretches: list[tuple[int, int]]) -> list[FluidScore]:
        fleet, came = self._of, self._of.inflow
        for i in range(fleet.replicas + fleet.standbys):
            self._pool.adopt(f"m-{i}", 0.0, serving=i < fleet.replicas)
            if i < fleet.replicas:
                self._serving.add(f"m-{i}")
        end = max(b for _, b in stretches)
        size = len(came.requests)
        missed, whole, warm, launched = (np.zeros(end) for _ in range(4))
        for second in range(end):
            now = float(second)
            self._tick(second, now)
            counts = self._pool.counts()
            whole[second] = counts.known - counts.gone
            warm[second] = counts.standby
            launched[second] = self._launches
            missed[second] = self._second(second) if second < size else 0.0
            while self._events and self._events[0][0] < now + 1:
                when, _, what = heapq.heappop(self._events)
                what(when)
            self._carry_out(list(self._pool.advance(now)), now)
        requests = np.pad(came.requests, (0, max(0, end - size)))[:end]
        return [
            FluidScore(
                attainment=1 - float(missed[a:b].sum()) / max(1.0, float(requests[a:b].sum())),
                replica_hours=float(whole[a:b].sum()) / 3600,
                standby_hours=float(warm[a:b].sum()) / 3600,
                launches=int(launched[b - 1] - launched[a]),
            )
            for a, b in stretches
        ]

    def _second(self, second: int) -> float:
        """Let a second's work in and out; give the requests that are late."""
        fleet, came = self._of, self._of.inflow
        self._decoding += came.decode[second]
        done = self._decoding * -math.expm1(-1.0 / came.stay)
        self._decoding -= done
        active = max(len(self._serving), 0.01)
        rate = max(_LEAST_PART * active, active - _DECODE_SHARE * done)
        slack = fleet.objective
        before, requests = self._queue / rate, float(came.requests[second])
        queue = self._queue + float(came.prefill[second])
        after = queue / rate
        self._queue = max(0.0, queue - rate)
        late = 0.0
        if requests and after > slack:
            late = requests * (1.0 if before >= slack else (after - slack) / (after - before))
        wait = self._queue / rate
        self._seen.append(
            {
                "as_of": float(second + 1),
                "since": float(second),
                "arrivals": int(requests),
                "prompt_tokens": float(came.prompt[second]),
                "expected_output": float(came.output[second]),
                "output_tokens": None,
                "ttft_points": tuple(
                    (second + 0.9, (fleet.objective + 0.1) if n < late else fleet.spare)
                    for n in range(int(requests))
                ),
                "queue_length": int(wait * requests),
                "queue_age": max(0.0, wait - slack),
                "running": int(done * 10),
                "outstanding_output": None,
            }
        )
        return late

    def _tick(self, second: int, now: float) -> None:
        counts = self._pool.counts()
        at = second - 1 - self._of.lag
        known = self._seen[at] if at >= 0 else {}
        seen = Observation(
            serving=counts.serving,
            starting=counts.starting,
            standby=counts.standby,
            start_time=self._pool.start_time(),
            **known,  # type: ignore[arg-type]  # fields by their names
        )
        self._carry_out(list(self._pool.reconcile(self._scaler.tick(seen, now), now)), now)
