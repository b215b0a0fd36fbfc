"""The batching window of engines that run whole batches: its gain when idle, its cost at the peak.

    python bench/batching.py [--seeds 5] [--window 0.25] [--json]

Simulated, behind the live admission. Exits 1 when the window gains less than `GAINED` in requests
per busy second of the engine when idle, or makes the peak's P95 more than `LATER` longer.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from statistics import median

from surgetank.policy.flow import FlowSpec
from surgetank.studies.batching import Batched, Load, run

GAINED = 1.4  # times the requests per busy second, when idle
LATER = 1.05  # times the P95 of the whole answer, at the peak: its noise between two seeds is 1.2


def main() -> int:
    """Measure, print, and say by the exit code whether the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--window", type=float, default=FlowSpec().batching_window)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loads: tuple[Load, ...] = ("idle", "peak")
    pairs = {
        load: [
            (run(load, 0.0, seed), run(load, options.window, seed)) for seed in range(options.seeds)
        ]
        for load in loads
    }
    gained = median(b.per_busy_second / a.per_busy_second for a, b in pairs["idle"])
    later = median(b.total_p95 / a.total_p95 for a, b in pairs["peak"])
    kept = gained >= GAINED and later <= LATER
    if options.json:
        rows = [asdict(run_) for load in pairs.values() for pair in load for run_ in pair]
        print(json.dumps({"gained": gained, "later": later, "kept": kept, "runs": rows}))
        return 0 if kept else 1
    print("load  window  batch  requests/busy s  TTFT P95  whole P50  whole P95   (medians)")
    for load, runs in pairs.items():
        for which in (0, 1):
            _print(load, [pair[which] for pair in runs])
    print(f"idle: {gained:.2f} times the requests per busy second (at least {GAINED})")
    print(f"peak: {later:.2f} times the P95 (at most {LATER})")
    return 0 if kept else 1


def _print(load: str, runs: list[Batched]) -> None:
    def middle(name: str) -> float:
        return float(median(getattr(run_, name) for run_ in runs))

    print(
        f"{load:5} {runs[0].window:5.2f} s {middle('size'):6.2f} {middle('per_busy_second'):16.2f}"
        f" {middle('ttft_p95'):7.2f} s {middle('total_p50'):8.2f} s {middle('total_p95'):8.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
