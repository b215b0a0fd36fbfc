"""The baselines by the names that `simulate --policy` takes, NAME or NAME:KNOB.

Rule: without a knob each has its project's own default, or the published one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from surgetank.policy.plan import ScaleSpec
from surgetank.simulation.baselines.apa import Apa
from surgetank.simulation.baselines.dynamo import DynamoLoad, DynamoThroughput
from surgetank.simulation.baselines.hpa import Hpa, keda
from surgetank.simulation.baselines.kpa import Kpa
from surgetank.simulation.baselines.ray_serve import TARGET, RayServe
from surgetank.simulation.baselines.rule import Rule
from surgetank.simulation.baselines.ttft_gradient import TtftGradient
from surgetank.simulation.baselines.wva import KV_SHARE, Wva

_IN_FLIGHT: Final = 22.0  # 70 % of the gateway's published 32
_CONCURRENCY: Final = 32.0
_WAITING: Final = 5.0  # KEDA's examples
_KV_USE: Final = 0.5  # AIBrix's examples
_POD_TOKENS: Final = 4000.0  # prompt tokens/s, as published


@dataclass(frozen=True, slots=True)
class Named:
    """A baseline. `knob`: what its argument is, and its unit; `default` without one."""

    about: str
    knob: str
    default: float
    make: Callable[[float, ScaleSpec], Rule]


def _throughput(rho: float, spec: ScaleSpec) -> DynamoThroughput:
    return DynamoThroughput(
        rho,
        prompt_rate=spec.prompt_tokens_per_replica,
        output_rate=spec.output_tokens_per_replica,
    )


BASELINES: Final = MappingProxyType(
    {
        "hpa": Named(
            "Kubernetes HPA on requests in flight",
            "requests in flight per replica",
            _IN_FLIGHT,
            lambda knob, _: Hpa(knob),
        ),
        "keda": Named(
            "KEDA on the length of the queue",
            "requests waiting per replica",
            _WAITING,
            lambda knob, _: keda(knob),
        ),
        "kpa": Named(
            "Knative's autoscaler on concurrency",
            "concurrency limit of a replica",
            _CONCURRENCY,
            lambda knob, _: Kpa(knob),
        ),
        "apa": Named(
            "AIBrix's autoscaler on KV use", "KV use, 0..1", _KV_USE, lambda knob, _: Apa(knob)
        ),
        "wva": Named(
            "llm-d's variant autoscaler on KV tokens",
            "part of the KV that may be used, 0..1",
            KV_SHARE,
            lambda knob, _: Wva(knob),
        ),
        "dynamo-throughput": Named(
            "Dynamo's planner, throughput loop (last value)", "utilisation, 0..1", 1.0, _throughput
        ),
        "dynamo-load": Named(
            "Dynamo's planner, load loop",
            "TTFT objective, s",
            0.0,
            lambda knob, spec: DynamoLoad(knob or spec.ttft_objective),
        ),
        "dynamo-hybrid": Named(
            "Dynamo's planner, both loops",
            "utilisation, 0..1",
            1.0,
            lambda knob, spec: DynamoLoad(spec.ttft_objective, floor=_throughput(knob, spec)),
        ),
        "ray-serve": Named(
            "Ray Serve's autoscaling",
            "requests in flight per replica",
            TARGET,
            lambda knob, _: RayServe(knob),
        ),
        "ttft-gradient": Named(
            "the published TTFT-gradient rule, which never scales down",
            "prompt tokens/s of a replica",
            _POD_TOKENS,
            lambda knob, _: TtftGradient(knob),
        ),
        "ttft-gradient-down": Named(
            "the published TTFT-gradient rule with a scale-down after 300 s",
            "prompt tokens/s of a replica",
            _POD_TOKENS,
            lambda knob, _: TtftGradient(knob, down=True),
        ),
    }
)
"""By name."""
