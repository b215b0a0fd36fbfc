"""A fivefold pulse on a fleet whose starts take 20 s: standbys serve it, and are refilled behind.

    python bench/standbys.py [--seeds 5] [--seed 0] [--json]   # in virtual time, a second a run
    python bench/standbys.py --live [--seed 0] [--records DIR] # real processes, 3 minutes a run

Two replicas serve, three stand by; all rates rise fivefold for 40 s. `--live` runs `surgetank
serve` with its autoscaler, simulated replicas as processes and an open-loop sender, and plays the
same requests in the simulator beside it. Exits 1 when the first standby serves later than 7 s after
the onset, the P95 of the core's TTFT is 0.8 s or more in any phase, the standbys are not refilled,
a stream is cut, or the simulator tells another story than the live run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from pathlib import Path
from typing import Any

from surgetank.adapters.child import StartError
from surgetank.studies.live_standbys import Lived, live
from surgetank.studies.standbys import CORE, OBJECTIVE, SETUP, Pulse, Trial, simulated, without

SERVED_WITHIN = 7.0  # seconds after the onset


def main() -> int:
    """Measure, print, and say by the exit code whether the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--seeds", type=int, default=None, help="runs; default: 5, live 1")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--records", type=Path, help="live: folder that keeps what was written")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, problems = [], []
    for seed in range(options.seed, options.seed + (options.seeds or (1 if options.live else 5))):
        try:
            row, found = _live(seed, options) if options.live else _simulated(seed, options)
        except StartError as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 2
        rows.append(row)
        problems += [f"seed {seed}: {problem}" for problem in found]
    if options.json:
        print(json.dumps({"runs": rows, "problems": problems}, allow_nan=False))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _simulated(seed: int, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    found = simulated(Pulse(), seed)
    bare = simulated(Pulse(), seed, setup=without(SETUP))
    if not options.json:
        _print(f"seed {seed}", found)
        _print(f"seed {seed}, no standby", bare)
    return {"simulated": _row(found), "without_standbys": _row(bare)}, _problems(found)


def _live(seed: int, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    folder = None
    if options.records is not None:
        folder = options.records / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(live(seed, kept=folder))
    if not options.json:
        _print(f"live, seed {seed}", found.trial)
        _print("simulated", found.foretold)
        print(
            f"  a start takes {found.start:.1f} s; {found.drained} streams ran on replicas told to"
            f" go, {found.cut_by_scale_down} of them cut; sender's lag P99"
            f" {found.sent.lag.p99 * 1e3:.1f} ms"
        )
    row = {
        "live": _row(found.trial),
        "simulated": _row(found.foretold),
        "start_s": found.start,
        "streams_drained": found.drained,
        "streams_cut_by_scale_down": found.cut_by_scale_down,
        "sender": found.sent.sender_json(),
        "differences": found.differences(),
    }
    return row, _live_problems(found)


def _live_problems(found: Lived) -> list[str]:
    if found.sent.invalid:
        return [found.sent.invalid]
    problems = [*_problems(found.trial), *found.differences()]
    if found.cut_by_scale_down:
        problems.append(f"{found.cut_by_scale_down} streams were cut by scaling down")
    return problems


def _problems(found: Trial) -> list[str]:
    problems = []
    first = min(found.served, default=math.inf)
    if not first <= SERVED_WITHIN:
        problems.append(f"the first standby serves {first:.1f} s after the onset")
    for (tier, phase), value in found.p95.items():
        if tier == CORE and not value < OBJECTIVE:
            problems.append(f"the core's TTFT P95 in {phase} is {value:.2f} s, not < {OBJECTIVE}")
    if found.refilled is None:
        problems.append("the standbys are not refilled")
    if found.cut:
        problems.append(f"{found.cut} streams were cut")
    return problems


def _print(name: str, found: Trial) -> None:
    waits = ", ".join(
        f"{tier} {phase} {_seconds(value)}" for (tier, phase), value in found.p95.items()
    )
    moves = ", ".join(f"{m.at:.1f} {m.what} {m.replicas}" for m in found.moves if m.at >= 0)
    served = ", ".join(f"{at:.1f}" for at in found.served) or "none"
    back = "never" if found.refilled is None else f"at {found.refilled:.1f} s"
    print(f"{name}: {found.requests} requests")
    print(f"  TTFT P95: {waits}")
    print(f"  first tokens of new replicas, s after the onset: {served}; refilled {back}")
    print(f"  moves: {moves}")
    print(f"  core requests without a whole answer {found.unanswered}, streams cut {found.cut}")


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if math.isfinite(value) else "none"


def _row(found: Trial) -> dict[str, Any]:
    return {
        "seed": found.seed,
        "requests": found.requests,
        "ttft_p95": {
            f"{tier}/{phase}": value if math.isfinite(value) else None
            for (tier, phase), value in found.p95.items()
        },
        "served": list(found.served),
        "refilled": found.refilled,
        "moves": [{"at": m.at, "what": m.what, "replicas": m.replicas} for m in found.moves],
        "core_unanswered": found.unanswered,
        "streams_cut": found.cut,
    }


if __name__ == "__main__":
    sys.exit(main())
