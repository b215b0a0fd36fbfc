"""Simulated rehearsals with a known fault: what a verdict is tested on.

A schedule of pulses meets engines of the engine model whose clock runs at a speed of its own: 1 on
average, wandering (a noisy neighbour, heat, a garbage collector), and slower where a fault is
planted. The engines are run in their own time, and what they did is told in the world's, so a slow
stretch slows every step in it and nothing else.

Rule: the schedule's seed and the service's seed are apart. Two runs of one schedule differ in
service alone: in the lengths of the answers and in the speed's wandering.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from surgetank.engine import profile as engines
from surgetank.engine.bulk import run_fleet
from surgetank.loadtest.phases import Phase, cycles, phases_of
from surgetank.loadtest.runfile import (
    OUTCOMES,
    UNKNOWN,
    Labels,
    Objective,
    Run,
    Samples,
)
from surgetank.policy.request import HTTP_STATUS, Outcome
from surgetank.traffic import arrivals

Seconds = NDArray[np.float64]
Fault = Literal["none", "slower pulses", "slower recovery", "refusals"]

_STEP: Final = 0.25  # seconds of the speed's grid
_AFTER: Final = 3600.0  # seconds after the last arrival in which the engines may finish
_COMPLETED: Final = OUTCOMES.index(Outcome.COMPLETED.value)
_REFUSED: Final = OUTCOMES.index(Outcome.ENGINE_BUSY.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulses:
    """A schedule: requests/s, seconds, tokens."""

    base: float = 20.0
    peak: float = 80.0
    width: float = 30.0
    period: float = 90.0
    cycles: int = 20
    prompt: int = 512
    seed: int = 0

    @property
    def onset(self) -> float:
        """The pulse stands in the middle of its period."""
        return (self.period - self.width) / 2

    @property
    def duration(self) -> float:
        """Whole periods."""
        return self.cycles * self.period


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What serves it, and how much it varies.

    `output`: mean tokens of an answer, lognormal with `output_cv`, drawn anew by each seed;
    `speed_cv`: of the speed's wandering, whose correlation is exp(-t / `speed_scale`).
    """

    profile: str = "h100-llama-3.1-8b-bf16-tp1"
    replicas: int = 1
    output: int = 128
    output_cv: float = 0.5
    speed_cv: float = 0.03
    speed_scale: float = 20.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What is wrong with it. `size`: 0.10 is 10 % slower, 1.0 a recovery twice as long, 0.02 2 %.

    A slower recovery leaves the engines 1 / (1 + size) of the spare capacity that they had to drain
    a backlog with, for as long as the draining takes; `capacity`: requests/s that one such service
    can sustain, which says how much that is.
    """

    fault: Fault = "none"
    size: float = 0.0
    capacity: float = 0.0


def rehearse(
    pulses: Pulses,
    service: Service,
    planted: Planted | None = None,
    objective: Objective | None = None,
) -> Run:
    """Simulate one run. The same arguments give the same."""
    fault = planted or Planted()
    schedule = np.random.default_rng([pulses.seed, 1])
    chance = np.random.default_rng([service.seed, 2])
    due = arrivals.pulse(
        schedule,
        pulses.base,
        pulses.peak,
        pulses.width,
        pulses.period,
        pulses.duration,
        offset=pulses.onset,
    )
    rows = len(due)
    sigma = np.sqrt(np.log1p(service.output_cv**2))
    drawn = chance.lognormal(np.log(service.output) - sigma**2 / 2, sigma, rows)
    output = np.maximum(1, np.round(drawn)).astype(np.int64)
    phases = phases_of(pulses)
    clock = _Clock.of(pulses, phases, service, fault, chance)
    refused = np.zeros(rows, np.bool_)
    if fault.fault == "refusals":
        refused = chance.random(rows) < fault.size
    first, ended = _serve(due, output, ~refused, clock, pulses=pulses, service=service)
    return Run(
        description={"shape": "pulse"}
        | {
            name: getattr(pulses, name)
            for name in ("base", "peak", "width", "period", "cycles", "prompt", "seed")
        },
        fingerprint=f"pulse-{pulses}",
        duration=pulses.duration,
        phases=phases,
        samples=_samples(due, first, ended, output, refused, prompt=pulses.prompt),
        objective=objective or Objective(),
        target={"simulated": service.profile, "replicas": service.replicas},
        sender={"lag": {"p50": 0.0, "p99": 0.0, "max": 0.0}, "valid": True},
    )


@dataclass(frozen=True, slots=True)
class _Clock:
    """The engines' time beside the world's, both on one grid."""

    world: Seconds
    engine: Seconds = field(repr=False)

    @classmethod
    def of(
        cls,
        pulses: Pulses,
        phases: tuple[Phase, ...],
        service: Service,
        fault: Planted,
        chance: np.random.Generator,
    ) -> _Clock:
        edges = np.append(np.arange(0.0, pulses.duration, _STEP), pulses.duration)
        middle = (edges[:-1] + edges[1:]) / 2
        speed = _wandering(len(middle), service, chance) * speed_of(middle, pulses, phases, fault)
        engine = np.concatenate([[0.0], np.cumsum(speed * np.diff(edges))])
        return cls(
            np.append(edges, pulses.duration + _AFTER), np.append(engine, engine[-1] + _AFTER)
        )

    def to_engine(self, at: Seconds) -> Seconds:
        return np.interp(at, self.world, self.engine)

    def to_world(self, at: Seconds) -> Seconds:
        return np.interp(at, self.engine, self.world)


def _wandering(steps: int, service: Service, chance: np.random.Generator) -> Seconds:
    """Speed of mean 1: the exponential of an Ornstein-Uhlenbeck process on the grid."""
    keep = np.exp(-_STEP / service.speed_scale)
    shocks = chance.standard_normal(steps) * np.sqrt(1 - keep**2)
    shocks[0] /= np.sqrt(1 - keep**2)  # it starts where it would be after a long time
    walk = np.empty(steps)
    level = 0.0
    for i, shock in enumerate(shocks.tolist()):
        level = keep * level + shock
        walk[i] = level
    sigma = np.sqrt(np.log1p(service.speed_cv**2))
    speed: Seconds = np.exp(sigma * walk - sigma**2 / 2)
    return speed


def speed_of(at: Seconds, pulses: Pulses, phases: tuple[Phase, ...], fault: Planted) -> Seconds:
    """Tell how fast a fault lets the engines go at these moments; 1 is their own speed."""
    speed = np.ones(len(at))
    if fault.fault == "slower pulses":
        for cycle in cycles(phases):
            speed[(at >= cycle.pulse) & (at < cycle.pulse_end)] = 1 / (1 + fault.size)
    elif fault.fault == "slower recovery":
        slow, lasts = slower_recovery(pulses, fault)
        for cycle in cycles(phases):
            speed[(at >= cycle.pulse_end) & (at < min(cycle.pulse_end + lasts, cycle.until))] = slow
    return speed


def slower_recovery(pulses: Pulses, fault: Planted) -> tuple[float, float]:
    """Tell the speed of the engines after a pulse, and for how many seconds they have it."""
    spare = 1 - pulses.base / fault.capacity
    slow = pulses.base / fault.capacity + spare / (1 + fault.size)
    # Backlog at a pulse's end, and how long it now takes to go.
    backlog = max(0.0, (pulses.peak - fault.capacity) * pulses.width)
    return slow, backlog / (slow * fault.capacity - pulses.base)


def _serve(
    due: Seconds,
    output: NDArray[np.int64],
    kept: NDArray[np.bool_],
    clock: _Clock,
    *,
    pulses: Pulses,
    service: Service,
) -> tuple[Seconds, Seconds]:
    """First tokens and ends in the world's time; NaN for those that are not kept."""
    first, ended = np.full(len(due), np.nan), np.full(len(due), np.nan)
    done = run_fleet(
        engines.find(service.profile),
        clock.to_engine(due[kept]),
        np.full(int(kept.sum()), pulses.prompt),
        output[kept],
        replicas=service.replicas,
        routing="least_outstanding",
    )
    first[kept] = clock.to_world(done.first_token_at)
    ended[kept] = clock.to_world(done.finished_at)
    return first, ended


def _samples(
    due: Seconds,
    first: Seconds,
    ended: Seconds,
    output: NDArray[np.int64],
    refused: NDArray[np.bool_],
    *,
    prompt: int,
) -> Samples:
    rows = len(due)
    return Samples(
        scheduled=due,
        sent=due,
        first_byte=np.where(refused, due, first),
        first_token=first,
        ended=np.where(refused, due, ended),
        status=np.where(refused, HTTP_STATUS[Outcome.ENGINE_BUSY], 200).astype(np.int32),
        outcome=np.where(refused, _REFUSED, _COMPLETED).astype(np.int16),
        tenant=Labels(np.zeros(rows, np.int32), ("default",)),
        prompt_tokens=np.full(rows, prompt, np.int64),
        output_tokens=np.where(refused, UNKNOWN, output),
        attempts=np.ones(rows, np.int32),
    )
