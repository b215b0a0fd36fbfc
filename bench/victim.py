"""A quiet tenant beside one that pulses, under every contender: the table of the documentation.

    python bench/victim.py [--seeds 5] [--periods 3] [--h100] [--policies A,B]
    python bench/victim.py --live [--seeds 1] [--policies A,B]   # over HTTP, 3 to 4 minutes a seed

Live, the capacity is measured first, and a pass-through always runs: it says whether a round
counts.
Exits 1 when, live, surgetank misses a bound, a round is void, or the sender was late.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from math import inf
from statistics import mean

from surgetank.studies.attainment import H100, TINY, capacity
from surgetank.studies.live_victim import MAX_LAG, PLAIN, SURGETANK, Lived, live, measured_capacity
from surgetank.studies.victim import VOID_ABOVE, Figures, compare

VICTIM = 0.99  # at least, within its objective
NOISY = 1.0  # of its share of the work, at least; compared at two decimals
TOTAL = 0.95  # of what a queue that refuses nothing has done
_HEAD = "| admission | victim, each seed | TTFT P95 | noisy | its work | total | wasted | refused |"


def main() -> int:
    """Measure, print, and say by the exit code whether the bounds are kept (live)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=None, help="default: 5, live 1")
    parser.add_argument("--periods", type=int, default=None, help="of 90 s; default: 3, live 1")
    parser.add_argument("--h100", action="store_true", help="a larger engine; not live")
    parser.add_argument("--policies", default="", help="live: those beside the pass-through")
    parser.add_argument("--first", type=int, default=0, help="live: the first seed")
    parser.add_argument("--abreast", type=int, default=2, help="live: contenders at once")
    parser.add_argument("--live", action="store_true", help="over HTTP, with real processes")
    asked = parser.parse_args()
    names = [name for name in asked.policies.split(",") if name]
    if asked.live:
        if asked.h100:
            parser.error("--h100: is not live; its engine is too fast for one sender")
        seeds = range(asked.first, asked.first + (asked.seeds or 1))
        wanted = names or [SURGETANK]
        return asyncio.run(_live(seeds, asked.periods or 1, wanted, max(1, asked.abreast)))
    of = H100 if asked.h100 else TINY
    count = asked.seeds or 5
    rows: dict[str, list[Figures]] = {}
    print(f"{of.count} x {of.profile}, {capacity(of):.1f} requests/s; {count} seeds")
    for seed in range(count):
        for found in compare(of, seed=seed, periods=asked.periods or 3, policies=names):
            rows.setdefault(found.policy, []).append(found)
    _print(rows)
    return 0


async def _live(seeds: range, periods: int, names: Sequence[str], abreast: int) -> int:
    full, saturated = await measured_capacity()
    print(
        f"live: {TINY.count} x {TINY.profile}, measured capacity {full:.2f} requests/s", flush=True
    )
    problems = [f"capacity: {saturated.invalid}"] if saturated.invalid else []
    rows: dict[str, list[Figures]] = {}
    lags: list[float] = []
    for seed in seeds:
        began = time.monotonic()
        for one in await live(full, seed=seed, periods=periods, names=names, abreast=abreast):
            rows.setdefault(one.figures.policy, []).append(one.figures)
            lags.append(one.sent.lag.p99)
            problems += _problems(one)
            _print_run(one, time.monotonic() - began)
    _print(rows)
    print(f"send lag P99, worst run: {max(lags) * 1e3:.1f} ms (limit {MAX_LAG * 1e3:g} ms)")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _print_run(one: Lived, took: float) -> None:
    run = one.figures
    print(
        f"seed {run.seed} {run.policy}: victim {run.victim:.1%}, noisy's work {run.noisy_work:.3f},"
        f" total {run.total:.1%}, wasted {run.wasted:,}, lag P99 {one.sent.lag.p99 * 1e3:.1f} ms"
        f" ({took:.0f} s)",
        flush=True,
    )


def _problems(one: Lived) -> list[str]:
    run = one.figures
    name = f"{run.policy}, seed {run.seed}"
    if one.invalid:
        return [f"{name}: {one.invalid}"]
    if run.policy == PLAIN and run.victim > VOID_ABOVE:
        return [f"{name}: void, the victim kept {run.victim:.1%}, more than {VOID_ABOVE:.0%}"]
    if run.policy != SURGETANK:
        return []
    missed = []
    if run.victim < VICTIM:
        missed.append(f"the victim kept {run.victim:.1%}, not >= {VICTIM:.0%}")
    if round(run.noisy_work, 2) < NOISY:
        missed.append(f"the noisy one got {run.noisy_work:.3f} of its share")
    if run.total < TOTAL:
        missed.append(f"the total is {run.total:.1%}, not >= {TOTAL:.0%}")
    if run.wasted:
        missed.append(f"{run.wasted:,} tokens were wasted")
    return [f"{name}: {why}" for why in missed]


def _print(rows: dict[str, list[Figures]]) -> None:
    print(_HEAD)
    print("|---|---|---|---|---|---|---|---|")
    for name, runs in rows.items():
        each = ", ".join(f"{100 * run.victim:.1f}" for run in runs)
        print(
            f"| {name} | {100 * mean(r.victim for r in runs):.1f} % ({each})"
            f" | {_seconds(mean(r.victim_p95 for r in runs))}"
            f" | {100 * mean(r.noisy for r in runs):.0f} %"
            f" | {mean(r.noisy_work for r in runs):.2f}"
            f" | {100 * mean(r.total for r in runs):.1f} %"
            f" | {mean(r.wasted for r in runs):,.0f} | {mean(r.refused for r in runs):.0f} |"
        )
    void = [run for run in rows.get(PLAIN, []) if run.victim > VOID_ABOVE]
    if void:
        print(f"void: a pass-through kept the victim above {VOID_ABOVE:.0%} in {len(void)} rounds")


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < inf else "never"


if __name__ == "__main__":
    sys.exit(main())
