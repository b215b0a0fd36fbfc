"""What the gateway attains beside a plain pass-through, in simulation: limits and shedding.

    python bench/attainment.py [--seeds 3] [--only NAME] [--set KEY=VALUE] [--policies A,B]

A cell: attainment (of each seed), mean P95 of TTFT, share refused.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import replace
from statistics import mean
from typing import Any

from surgetank.policy.flow import FlowSpec
from surgetank.simulation.clients import KINDS
from surgetank.simulation.summary import Summary
from surgetank.studies.attainment import H100, SHAPES, TINY, Case, capacity

POLICIES = "passthrough,fifo-cap,static"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="profiles or loads with this in their name")
    parser.add_argument("--clients", default="none", choices=sorted(KINDS))
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of flow")
    asked = parser.parse_args()
    changes: dict[str, Any] = {}
    for text in asked.set:
        key, value = text.split("=", 1)
        changes[key] = ast.literal_eval(value)
    policies = asked.policies.split(",")
    for replicas in (TINY, H100):
        shapes = [s for s in SHAPES if asked.only in s.name or asked.only in replicas.profile]
        if not shapes:
            continue
        print(f"\n{replicas.count} x {replicas.profile}: {capacity(replicas):.1f} requests/s")
        print(f"{'within objectives':22}" + "".join(f"{name:>34}" for name in policies))
        for shape in shapes:
            case = Case(replicas, shape, replace(FlowSpec(), **changes), KINDS[asked.clients])
            runs = [[case.run(name, seed) for seed in range(asked.seeds)] for name in policies]
            print(f"{shape.name:22}" + "".join(f"{_cell(r):>34}" for r in runs), flush=True)


def _cell(runs: list[Summary]) -> str:
    each = "/".join(f"{100 * run.attainment:.0f}" for run in runs)
    attained = 100 * mean(run.attainment for run in runs)
    late = mean(run.ttft.p95 or 0.0 for run in runs)
    refused = mean(run.refused / run.requests for run in runs)
    return f"{attained:.1f} % ({each}) {late:.1f} s {100 * refused:.0f} %"


if __name__ == "__main__":
    main()
