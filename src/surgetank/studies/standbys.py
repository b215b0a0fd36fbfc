"""A fivefold pulse on a fleet whose starts take 20 s: standbys serve it, and are refilled behind.

The core tier's clients wait at a screen (0.8 s to the first token), a batch may wait; both rise
fivefold for 40 s. Two replicas serve the base, three stand by: what the pulse needs is warm. The
standbys are asked for by a calendar, so that a fleet whose records hold no burst keeps them too.

Rule: a run is judged from records and fleet samples alone, in one way, whoever wrote them; a
request without a first token is infinitely late.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from surgetank.adapters.zones import local_seconds
from surgetank.engine.coldstart import ColdStart
from surgetank.engine.profile import Stage
from surgetank.loadtest.outcome import kind_of
from surgetank.loadtest.summary import nearest_rank
from surgetank.policy.calendar import Calendar, CalendarEvent, Expecting
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.policy.request import Kind
from surgetank.policy.scaling import ScalePolicy
from surgetank.policy.tenant import Tenant, Tier
from surgetank.simulation.policies import Policy, policy
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.workload import of_batch
from surgetank.studies.fleet_demo.measure import refilled
from surgetank.studies.fleet_demo.pulse import BASE, BURST, MODEL, RECOVERY, Phase
from surgetank.studies.fleet_demo.setup import FleetSetup
from surgetank.traffic.trace import Batch, Labels

OBJECTIVE: Final = 0.8  # seconds to the core's first token
CORE: Final = "core"
BATCH: Final = "batch"
TIERS: Final = (
    Tier(CORE, priority=0, ttft_objective=OBJECTIVE),
    Tier(BATCH, priority=2, min_share=0.1, ttft_objective=30.0, queue_timeout=40.0),
)
TENANTS: Final = (
    Tenant("chat", tier=CORE),
    Tenant("search", tier=CORE),
    Tenant("nightly", tier=BATCH),
    Tenant("crawler", tier=BATCH),
)
SETUP: Final = FleetSetup(
    objective=OBJECTIVE, base=2, standbys=3, max_replicas=8, scale_down_delay=15.0
)
_RATES: Final = {"chat": 1.7, "search": 1.1, "nightly": 0.5, "crawler": 0.4}  # requests/s
_PROMPTS: Final = {CORE: (60, 120), BATCH: (100, 300)}  # tokens
_OUTPUTS: Final = {CORE: (20, 40), BATCH: (40, 120)}
_CALM: Final = 5.0  # seconds of ticks before the first arrival, as in a fleet that is up


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to come, `at` seconds after the start; sizes in tokens."""

    at: float
    tenant: str
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """All rates are `factor` times as high during the burst. Seconds."""

    base: float = 30.0
    burst: float = 40.0
    recovery: float = 75.0
    factor: float = 5.0

    @property
    def onset(self) -> float:
        return self.base

    @property
    def length(self) -> float:
        return self.base + self.burst + self.recovery

    def phases(self) -> tuple[Phase, ...]:
        """Base, burst and recovery, one after the other."""
        lengths = (self.base, self.burst, self.recovery)
        ends = tuple(accumulate(lengths))
        return tuple(map(Phase, (BASE, BURST, RECOVERY), (0.0, *ends), ends))

    def requests(self, seed: int) -> tuple[Asked, ...]:
        """Draw Poisson arrivals of every tenant, in order of time."""
        draw = random.Random(seed)
        found = []
        for tenant in TENANTS:
            for phase in self.phases():
                rate = _RATES[tenant.name] * (self.factor if phase.name == BURST else 1.0)
                at = phase.begins + draw.expovariate(rate)
                while at < phase.ends:
                    prompt = draw.randint(*_PROMPTS[tenant.tier])
                    output = draw.randint(*_OUTPUTS[tenant.tier])
                    found.append(Asked(at, tenant.name, prompt, output))
                    at += draw.expovariate(rate)
        return tuple(sorted(found, key=lambda asked: asked.at))


@dataclass(frozen=True, slots=True)
class Move:
    """What a fleet did within one tick, `at` seconds after the onset."""

    at: float
    what: str  # promoted, launched, ready or released
    replicas: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. Times in seconds after the burst's onset; None: it never happened.

    `p95`: of the time to the first token, by tier and phase of arrival. `served`: first tokens of
    replicas that had served nobody before. `unanswered`: requests of the core that got no whole
    answer; `cut`: streams that had begun and did not end well, whosever they were.
    """

    seed: int
    requests: int
    p95: dict[tuple[str, str], float]
    served: tuple[float, ...]
    moves: tuple[Move, ...]
    refilled: float | None
    unanswered: int
    cut: int

    def times(self, what: str) -> tuple[float, ...]:
        """When each replica was promoted, launched, ready or released, from the onset on."""
        return tuple(
            move.at
            for move in self.moves
            if move.what == what and move.at >= 0
            for _ in range(move.replicas)
        )

    @property
    def order(self) -> tuple[str, ...]:
        """What was done from the onset on, by when it was done first."""
        return tuple(dict.fromkeys(move.what for move in self.moves if move.at >= 0))


def calendar(setup: FleetSetup) -> tuple[CalendarEvent, ...]:
    """What the operator asks for: so many standbys, whatever the last records say of bursts."""
    if not setup.standbys:
        return ()
    return (CalendarEvent("core hours", "00:00", 86_400.0, "daily", standbys=setup.standbys),)


def _policy(setup: FleetSetup) -> Policy:
    events = Calendar(calendar(setup), local=local_seconds)

    def scaler(_pool: PoolPlan, spec: ScaleSpec) -> ScalePolicy:
        expecting = Expecting(events) if events else None
        return ScalePolicy(spec, explains=False, expecting=expecting)

    return replace(policy("surgetank"), scaler=scaler)


def without(setup: FleetSetup) -> FleetSetup:
    """Give the same fleet with nothing warm beside what serves."""
    return replace(setup, standbys=0)


def simulated(
    pulse: Pulse, seed: int, *, setup: FleetSetup = SETUP, start: float = 20.0, phase: float = 0.5
) -> Trial:
    """Play it in virtual time. Seconds: a `start` takes so long; ticks come `phase` before."""
    asked = pulse.requests(seed)
    begins = _CALM + phase
    outputs = np.array([row.output for row in asked], np.int64)
    batch = Batch(
        np.array([begins + row.at for row in asked]),
        prompt_tokens=np.array([row.prompt for row in asked], np.int64),
        output_tokens=outputs,
        max_tokens=outputs,
        tenant=Labels.of(row.tenant for row in asked),
        model=Labels.of(MODEL for _ in asked),
    )
    pool = PoolPlan(
        model=MODEL,
        profile=setup.profile(),
        replicas=setup.base,
        standbys=setup.standbys,
        max_replicas=setup.max_replicas,
        scale=setup.pool().scale_spec(),
        start=ColdStart((Stage("start", start),)),
        drain_timeout=setup.pool().drain_timeout,
    )
    found = simulate(
        Scenario(
            workload=of_batch(batch),
            pools=(pool,),
            flow=setup.flow(),
            tiers=TIERS,
            tenants=TENANTS,
            seed=seed,
        ),
        chosen=_policy(setup),
    )
    records = list(found.records())
    return judged(
        pulse,
        seed,
        begins,
        clients=records,
        gateway=records,
        samples=found.samples,
        standbys=setup.standbys,
    )


def judged(
    pulse: Pulse,
    seed: int,
    begins: float,
    *,
    clients: Sequence[RequestRecord],
    gateway: Sequence[RequestRecord],
    samples: Sequence[FleetSample],
    standbys: int = SETUP.standbys,
) -> Trial:
    """Put a run together. `begins`: when its time 0 was, by the clock of records and samples.

    `clients`: records as whoever sent saw them; `gateway`: those that say which replica served.
    """
    onset = begins + pulse.onset
    tiers = {tenant.name: tenant.tier for tenant in TENANTS}
    ended = [record for record in clients if record.outcome]
    whole = [r for r in ended if kind_of(r.outcome) is Kind.COMPLETED]
    back = refilled(samples, standbys, onset)
    return Trial(
        seed=seed,
        requests=len(clients),
        p95={
            (tier.name, phase.name): _p95(
                record
                for record in clients
                if tiers[record.tenant] == tier.name
                and phase.begins <= _due(record) - begins < phase.ends
            )
            for tier in TIERS
            for phase in pulse.phases()
        },
        served=tuple(sorted(_first_tokens(gateway, onset))),
        moves=tuple(move for move in _moves(samples, onset) if move.at >= -pulse.onset),
        refilled=None if back is None else back - onset,
        unanswered=sum(tiers[r.tenant] == CORE for r in clients)
        - sum(tiers[r.tenant] == CORE for r in whole),
        cut=sum(r.first_token is not None for r in clients)
        - sum(r.first_token is not None for r in whole),
    )


def _due(record: RequestRecord) -> float:
    return record.arrived if record.scheduled is None else record.scheduled


def _p95(records: Iterable[RequestRecord]) -> float:
    return nearest_rank(
        sorted(math.inf if record.ttft is None else record.ttft for record in records), 0.95
    )


def _first_tokens(records: Iterable[RequestRecord], onset: float) -> Iterator[float]:
    """First tokens of those that had served nobody before the onset, in seconds after it."""
    first: dict[str, float] = {}
    for record in records:
        if record.first_token is not None and record.replica:
            known = first.get(record.replica, math.inf)
            first[record.replica] = min(known, record.first_token)
    return (at - onset for at in first.values() if at >= onset)


def _moves(samples: Iterable[FleetSample], onset: float) -> Iterator[Move]:
    """What changed from one sample to the next."""
    for before, sample in pairwise(samples):
        more = sample.serving - before.serving
        changes = {
            "promoted": more,
            "launched": sample.started,
            "ready": len(sample.start_times),
            "released": -more,
        }
        for what, replicas in changes.items():
            if replicas > 0:
                yield Move(sample.t - onset, what, replicas)
