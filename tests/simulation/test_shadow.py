"""What shadow admission says it would refuse is what admission refuses on the same arrivals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import Tier
from surgetank.simulation.run import simulate
from tests.simulation.build import engine, load, scenario


def pulses(rate: float, factor: float, rows: int) -> list[float]:
    """Poisson arrivals, `factor` times as many in 30 s of every 90."""
    rng, at = np.random.default_rng(1), 0.0
    out: list[float] = []
    while len(out) < rows:
        at += rng.exponential(1 / (rate * (factor if at % 90 < 30 else 1)))
        out.append(at)
    return out


@pytest.mark.parametrize(
    ("settings", "rate", "factor"),
    [
        ({"a_ms": 10.0}, 25, 3.0),  # the limit binds: in truth the engine has room for all
        ({"a_ms": 10.0, "b_us": 100.0, "d_us": 300.0, "max_num_seqs": 32}, 12, 3.0),  # 60 s late
        ({"a_ms": 10.0, "b_us": 100.0, "d_us": 300.0, "max_num_seqs": 32}, 3, 2.0),  # light
    ],
)
def test_shadow_refuses_what_admission_refuses(
    settings: dict[str, Any], rate: float, factor: float
) -> None:
    """Of 1,500: in all within 6 % of them, each tenant's within 6 %, and the TTFT within 40 %."""
    rows = 1500
    rng = np.random.default_rng(7)
    tenants = np.where(rng.random(rows) < 0.7, "noisy", "victim").tolist()
    output = rng.geometric(1 / 80, rows)
    asked: dict[str, Any] = {
        "profile": engine(**settings),
        "slots": 32,
        "flow": FlowSpec(max_in_flight=32, queue_timeout=10.0, request_timeout=600.0),
        "tiers": (Tier(predicted_wait=True, ttft_objective=2.0),),
    }
    arrivals = load(pulses(rate, factor, rows), output=output, tenants=tenants, prompt=200)
    real = list(simulate(scenario(arrivals, policy="static", **asked)).records())
    run = simulate(scenario(arrivals, policy="shadow", **asked))
    told = list(run.records())
    assert all(record.outcome == "completed" for record in told)
    refused = Counter(r.tenant for r in real if r.outcome != "completed")
    would = Counter(r.tenant for r in told if r.shadow != "admitted")
    for tenant in ("noisy", "victim"):
        assert abs(would[tenant] - refused[tenant]) <= 0.06 * rows
    assert would.total() == pytest.approx(refused.total(), abs=0.06 * rows)
    assert run.shadow is not None
    # A record whose request has ended while its twin still waits does not know how that goes on.
    known = sum(record.shadow not in ("admitted", "waiting") for record in told)
    late = would.total() - known
    assert known <= sum(run.shadow.counts.refused.values()) <= known + late
    assert late <= 0.02 * rows
    served = np.quantile([r.ttft for r in real if r.ttft is not None], 0.95)
    foretold = np.quantile([r.shadow_ttft for r in told if r.shadow_ttft is not None], 0.95)
    assert foretold == pytest.approx(served, rel=0.4)
