"""What a gateway attains beside a plain pass-through: light load, pulses, a flash crowd.

Rule: loads are multiples of the capacity that was measured of the same replicas in saturation, so
that one table fits a laptop's engine and an H100; every policy gets the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import numpy as np

from surgetank.engine.profile import find
from surgetank.policy.flow import FlowSpec
from surgetank.simulation.clients import KINDS, ClientSpec
from surgetank.simulation.ledger import COMPLETED
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.summary import Summary
from surgetank.simulation.workload import Workload, of_batch
from surgetank.traffic import arrivals
from surgetank.traffic.tokencounts import parse_lengths
from surgetank.traffic.trace import Batch, Seconds

_MODEL: Final = "model"
_SATURATED: Final = 60.0  # seconds of arrivals at several times what can be done
_FIRST_GUESS: Final = 400.0  # requests/s that no replica here can do


@dataclass(frozen=True, slots=True)
class Replicas:
    """Some replicas of one profile, and what is asked of them, as `traffic.tokencounts` reads."""

    profile: str
    count: int
    prompt: str
    output: str

    @property
    def pool(self) -> PoolPlan:
        profile = find(self.profile)
        return PoolPlan(model=_MODEL, profile=profile, replicas=self.count)

    def workload(self, at: Seconds, rng: np.random.Generator) -> Workload:
        """Give each arrival its lengths."""
        prompt = parse_lengths(self.prompt, "prompt").draw(len(at), rng)
        output = parse_lengths(self.output, "output").draw(len(at), rng)
        return of_batch(Batch(at, prompt, output))


TINY: Final = Replicas("tiny", 2, "lognormal:150,0.7,1000", "lognormal:80,0.6,400")
H100: Final = Replicas(
    "h100-llama-3.1-8b-bf16-tp1", 1, "lognormal:500,0.8,8000", "lognormal:200,0.8,2000"
)


@cache
def capacity(of: Replicas) -> float:
    """Requests/s that they complete while more wait than they can run, in the engines' queues."""
    rate = _FIRST_GUESS * of.count
    for most in (1_000, 20_000):  # a rate far beyond it only takes time: come near first
        rng = np.random.default_rng(0)
        at = arrivals.poisson(rng, rate, _SATURATED)
        made = Scenario(
            workload=of.workload(at[:most], rng), pools=(of.pool,), policy="passthrough"
        )
        ledger = simulate(made).ledger
        ended = np.asarray(ledger.ended)[np.asarray(ledger.outcome) == COMPLETED]
        low, high = np.quantile(ended, (0.3, 0.7)).tolist()
        found = 0.4 * len(ended) / (high - low)
        rate = 3.0 * found
    return float(found)


@dataclass(frozen=True, slots=True)
class Shape:
    """Arrivals over time, in multiples of the capacity."""

    name: str
    base: float
    peak: float
    width: float = 20.0
    period: float = 80.0
    periods: int = 3
    ramp: float | None = None  # a flash crowd: climbs so long, holds `width`, decays by `period`/6

    @property
    def span(self) -> float:
        return self.period * self.periods

    def draw(self, rng: np.random.Generator, capacity: float) -> Seconds:
        base, peak = self.base * capacity, self.peak * capacity
        if self.ramp is None:
            offset = (self.period - self.width) / 2
            return arrivals.pulse(
                rng, base, peak, self.width, self.period, self.span, offset=offset
            )
        return arrivals.flash_crowd(
            rng,
            base,
            peak,
            start=self.period / 4,
            ramp=self.ramp,
            hold=self.width,
            decay=self.period / 6,
            duration=self.span,
        )


SHAPES: Final = (
    Shape("light, 30 %", 0.3, 0.3, 20.0, 60.0, 2),
    Shape("steady, 60 %", 0.6, 0.6, 20.0, 60.0, 2),
    Shape("pulses to 90 %", 0.3, 0.9),
    Shape("pulses to 200 %", 0.3, 2.0),
    Shape("pulses to 400 %", 0.3, 4.0),
    Shape("flash crowd to 300 %", 0.2, 3.0, 15.0, 120.0, 1, ramp=5.0),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One load on some replicas."""

    replicas: Replicas
    shape: Shape
    flow: FlowSpec = field(default_factory=FlowSpec)
    clients: ClientSpec = KINDS["none"]

    def scenario(self, policy: str, seed: int) -> Scenario:
        rng = np.random.default_rng([seed, 7])
        load = self.replicas.workload(self.shape.draw(rng, capacity(self.replicas)), rng)
        return Scenario(
            workload=replace(load, span=self.shape.span),
            pools=(self.replicas.pool,),
            policy=policy,
            flow=self.flow,
            clients=self.clients,
            seed=seed,
        )

    def run(self, policy: str, seed: int) -> Summary:
        return simulate(self.scenario(policy, seed)).summary
