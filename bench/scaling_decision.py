"""What one scaling decision costs: CPU milliseconds a tick, of a fleet of any size.

    python bench/scaling_decision.py [--replicas 1000] [--ticks 1200]

A pool whose need swings between a third and all of so many replicas is followed for twenty minutes
of virtual time, with all rules in hindsight and every alternative explained. Tenants do not count:
what scaling sees is summed over them. Prints the mean and the slowest ticks; exits 1 beyond 2 ms.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

from surgetank.policy.plan import Observation, ScaleSpec
from surgetank.policy.scaling import ScalePolicy

ALLOWED = 2.0  # ms, of the mean and of the 95th percentile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=1200)
    asked = parser.parse_args()
    spec = ScaleSpec(max_replicas=asked.replicas, standby_cost=0.25, max_step=asked.replicas)
    policy = ScalePolicy(spec)
    serving, standby = 1, 0
    spent = []
    for tick in range(1, asked.ticks + 1):
        share = 2 / 3 + math.sin(tick / 50) / 3
        tokens = share * 0.7 * asked.replicas * spec.prompt_tokens_per_replica
        seen = Observation(
            serving=serving,
            starting=0,
            standby=standby,
            as_of=float(tick),
            since=tick - 1.0,
            arrivals=round(tokens / 1000),
            prompt_tokens=tokens,
            expected_output=tokens / 20,
            output_tokens=tokens / 20,
            ttft_points=tuple((tick - 0.5, 0.3) for _ in range(min(1024, round(tokens / 1000)))),
            queue_length=0,
            queue_age=0.0,
            running=4 * serving,
            outstanding_output=1e5,
        )
        began = time.process_time()
        plan = policy.tick(seen, float(tick))
        spent.append(1000 * (time.process_time() - began))
        serving, standby = plan.replicas, plan.standbys
    spent.sort()
    mean, late = sum(spent) / len(spent), spent[math.ceil(0.95 * len(spent)) - 1]
    print(
        f"{asked.replicas} replicas: {mean:.2f} ms a tick on average, 95 % within {late:.2f} ms, "
        f"slowest {spent[-1]:.2f} ms"
    )
    return 0 if max(mean, late) <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
