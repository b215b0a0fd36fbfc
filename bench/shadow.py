"""How true the shadow is: what it says admission would refuse, beside what admission refuses.

`python -m bench.shadow`: the same simulated arrivals twice, with admission on and in shadow, on
engines that have room for all and on engines that fall far behind. No client tries again: one that
is refused and comes back is traffic that no shadow can see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from surgetank.engine.profile import EngineProfile
from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import Tier
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.workload import of_batch
from surgetank.traffic.trace import Batch, Labels

REQUESTS = 4000
SLOTS = 32
ROOMY = {"b_us": 0.0, "d_us": 0.0, "max_num_seqs": 256}  # a step of 10 ms whatever is in it
TIGHT = {"b_us": 100.0, "d_us": 300.0, "max_num_seqs": SLOTS}


@dataclass(frozen=True, slots=True)
class Case:
    """Requests per second, `factor` times as many in 30 s of every 90."""

    about: str
    engine: dict[str, Any]
    rate: float
    factor: float


CASES = (
    Case("the engine has room, the cap binds", ROOMY, 25, 3.0),
    Case("the engine has room, twice too many", ROOMY, 60, 2.0),
    Case("the engine falls behind in pulses", TIGHT, 8, 3.0),
    Case("the engine falls behind for long", TIGHT, 12, 3.0),
    Case("steady overload", TIGHT, 20, 1.5),
    Case("three times too many", TIGHT, 25, 2.0),
)


def scenario(case: Case, policy: str) -> Scenario:
    """Two tenants, 70 and 30 % of the requests; 200 tokens in, about 80 out."""
    rng = np.random.default_rng(1)
    at = 0.0
    arrived: list[float] = []
    while len(arrived) < REQUESTS:
        at += rng.exponential(1 / (case.rate * (case.factor if at % 90 < 30 else 1)))
        arrived.append(at)
    tenants = np.where(rng.random(REQUESTS) < 0.7, "noisy", "victim").tolist()
    profile = EngineProfile(
        name="even",
        a_ms=10.0,
        c_ns=0.0,
        e_ns=0.0,
        kv_blocks=6250,
        max_model_len=16384,
        **case.engine,
    )
    return Scenario(
        workload=of_batch(
            Batch(
                arrived=np.asarray(arrived),
                prompt_tokens=np.full(REQUESTS, 200, np.int64),
                output_tokens=rng.geometric(1 / 80, REQUESTS),
                tenant=Labels.of(tenants),
            )
        ),
        pools=(PoolPlan(model="model", profile=profile, slots=SLOTS),),
        policy=policy,
        flow=FlowSpec(max_in_flight=SLOTS, queue_timeout=10.0, request_timeout=600.0),
        tiers=(Tier(predicted_wait=True, ttft_objective=2.0),),
    )


def p95(values: list[float | None]) -> float:
    """Of those that are known."""
    return float(np.quantile([value for value in values if value is not None], 0.95))


def main() -> None:
    """Print the table of the docs."""
    print("| case | TTFT P95 as served | refused, on | in shadow | TTFT P95, on | in shadow |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        real = list(simulate(scenario(case, "static")).records())
        told = list(simulate(scenario(case, "shadow")).records())
        refused = sum(record.outcome != "completed" for record in real)
        would = sum(record.shadow != "admitted" for record in told)
        served, on = p95([r.ttft for r in told]), p95([r.ttft for r in real])
        foretold = p95([r.shadow_ttft for r in told])
        row = (case.about, f"{served:.2f} s", f"{refused:,}", f"{would:,}", f"{on:.2f} s")
        print(f"| {' | '.join(row)} | {foretold:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
