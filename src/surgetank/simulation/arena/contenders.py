"""Who competes, and the one knob of each.

Rule: knobs go from costly to cheap and are fractions of what one replica can do, so that the same
grid fits every workload; each contender gets as many values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from surgetank.errors import InputError
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.scaling import ScalePolicy
from surgetank.simulation.baselines.apa import Apa
from surgetank.simulation.baselines.dynamo import DynamoLoad, DynamoThroughput
from surgetank.simulation.baselines.hpa import Hpa, keda
from surgetank.simulation.baselines.kpa import TARGET_SHARE, Kpa
from surgetank.simulation.baselines.ray_serve import RayServe
from surgetank.simulation.baselines.rule import Rule, Ruled
from surgetank.simulation.baselines.ttft_gradient import TtftGradient
from surgetank.simulation.baselines.wva import Wva
from surgetank.simulation.policies import Fixed, Scaler
from surgetank.simulation.scenario import PoolPlan


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one replica does of a workload at full load.

    `prompt`, `output`: tokens/s, each alone; `requests`: in flight at once, by Little's law;
    `kv`: part of the KV that those hold; `ttft`: the objective, s.
    """

    prompt: float
    output: float
    requests: float
    kv: float
    ttft: float


Make = Callable[[float, Capacity, PoolPlan, ScaleSpec], Scaler]


@dataclass(frozen=True, slots=True)
class Contender:
    """One policy with its knob. `standbys`: it gets the warm pool that all others get."""

    name: str
    about: str
    knob: str
    values: tuple[float, ...]
    make: Make
    standbys: bool = True
    priced: bool = False  # it is told the target and what a standby costs, as its owner would


_SHARES: Final = (0.15, 0.25, 0.4, 0.6, 0.85)
_CAREFUL: Final = 8.0  # a fleet without records, whose first burst is judged too
_UTILISATION: Final = (0.35, 0.5, 0.65, 0.8, 1.0)


def _rule(
    of: Callable[[float, Capacity], Rule],
) -> Make:
    def make(knob: float, capacity: Capacity, pool: PoolPlan, spec: ScaleSpec) -> Scaler:
        rule = of(knob, capacity)
        return Ruled(rule, least=pool.replicas, most=spec.max_replicas, standbys=spec.standbys)

    return make


def _surgetank(knob: float, _capacity: Capacity, pool: PoolPlan, spec: ScaleSpec) -> Scaler:
    careful = replace(spec, utilisation=knob, burst_factor=_CAREFUL)
    return ScalePolicy(careful, role=pool.role, explains=False)


def _static(knob: float, _capacity: Capacity, _pool: PoolPlan, _spec: ScaleSpec) -> Scaler:
    return Fixed(int(knob))


def _dynamo(knob: float, capacity: Capacity) -> DynamoThroughput:
    return DynamoThroughput(knob, prompt_rate=capacity.prompt, output_rate=capacity.output)


CONTENDERS: Final = MappingProxyType(
    {
        c.name: c
        for c in (
            Contender(
                "static",
                "the same number always",
                "replicas",
                (),
                _static,
                standbys=False,
            ),
            Contender(
                "hpa",
                "follows requests in flight every 15 s, and stays up for 300 s",
                "requests per replica",
                _SHARES,
                _rule(lambda k, c: Hpa(k * c.requests)),
            ),
            Contender(
                "keda",
                "sees only what waits, every 30 s: blind until the queue is there",
                "waiting per replica",
                (0.02, 0.05, 0.12, 0.3, 0.8),
                _rule(lambda k, c: keda(k * c.requests)),
            ),
            Contender(
                "kpa",
                "means over 60 s, and 6 s in panic: quick up, and down after a minute",
                "requests per replica",
                _SHARES,
                _rule(lambda k, c: Kpa(k * c.requests / TARGET_SHARE)),
            ),
            Contender(
                "apa",
                "means of KV use over 180 s: a burst is over before it moves",
                "KV use",
                _SHARES,
                _rule(lambda k, c: Apa(k * c.kv)),
            ),
            Contender(
                "wva",
                "KV tokens held against what can be held, once a minute",
                "part of the KV",
                _SHARES,
                _rule(lambda k, c: Wva(k * c.kv)),
            ),
            Contender(
                "dynamo-throughput",
                "the last 180 s again: right for drift, late for every burst",
                "utilisation",
                _UTILISATION,
                _rule(_dynamo),
            ),
            Contender(
                "dynamo-load",
                "one replica at a time, while none starts",
                "TTFT, part of the objective",
                (0.3, 0.45, 0.6, 0.8, 1.0),
                _rule(lambda k, c: DynamoLoad(k * c.ttft)),
            ),
            Contender(
                "dynamo-hybrid",
                "the load loop above the throughput loop's floor",
                "utilisation",
                _UTILISATION,
                _rule(lambda k, c: DynamoLoad(c.ttft, floor=_dynamo(k, c))),
            ),
            Contender(
                "ray-serve",
                "means over 30 s that must hold for 30 s up, 600 s down",
                "requests per replica",
                _SHARES,
                _rule(lambda k, c: RayServe(k * c.requests)),
            ),
            Contender(
                "ttft-gradient",
                "half as many again on a steep TTFT, and never down",
                "prompt tokens/s of a replica, part of what it can do",
                _UTILISATION,
                _rule(lambda k, c: TtftGradient(k * c.prompt, target=0.8 * c.ttft)),
            ),
            Contender(
                "ttft-gradient-down",
                "the same with a scale-down after 300 s",
                "prompt tokens/s of a replica, part of what it can do",
                _UTILISATION,
                _rule(lambda k, c: TtftGradient(k * c.prompt, target=0.8 * c.ttft, down=True)),
            ),
            Contender(
                "surgetank",
                "the rule that was the cheapest on its last records; a fixed number is one",
                "utilisation",
                (0.9, 0.95, 1.0),
                _surgetank,
                priced=True,
            ),
        )
    }
)
"""By name. `static` tries every number of replicas."""


def find(name: str) -> Contender:
    """Find a contender. Raises InputError."""
    found = CONTENDERS.get(name)
    if found is None:
        raise InputError(f"policy {name}: must be one of {', '.join(CONTENDERS)}")
    return found
