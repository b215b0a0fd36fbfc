"""The degradation ladder in an overload of all tiers: the core is kept, and it comes down again.

    python bench/ladder.py [--seeds 5] [--factor 4] [--html build/ladder.html] [--json]
    python bench/ladder.py --live [--seeds 1]     # over HTTP, 2.5 minutes a run
    python bench/ladder.py --live --without       # and the same without the ladder

A minute at `factor` times what the replicas can do: core 20 % of the requests, standard 50 %,
batch 30 %. Exits 1 when, with the ladder, the P95 of the core's TTFT is 0.8 s or more, when a run
has more than one reversal from the overload on, or does not end at step 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from surgetank.report import page
from surgetank.report.charts import Axis, Chart, Series, Span
from surgetank.report.files import write_whole
from surgetank.studies.ladder import Outcome, run
from surgetank.studies.live_ladder import Lived, live, overload

OBJECTIVE = 0.8
REVERSALS = 1
_HEAD = "run            tier       came  within 0.8 s  answered  TTFT P95  step  reversals  end"


def main() -> int:
    """Measure, print, and say by the exit code whether the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=None, help="default: 5, live 1")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--without", action="store_true", help="live: also without the ladder")
    parser.add_argument("--html", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seeds = options.seeds or (1 if options.live else 5)
    results: list[tuple[str, Outcome | Lived]] = []
    if not options.json:
        print(_HEAD)
    for seed in range(seeds):
        for ladder in (True, False) if options.without or not options.live else (True,):
            found: Outcome | Lived = (
                asyncio.run(live(seed, ladder=ladder, factor=options.factor))
                if options.live
                else run(seed, ladder=ladder, factor=options.factor)
            )
            name = f"{'live' if options.live else 'seed'} {seed} {'with' if ladder else 'without'}"
            results.append((name, found))
            if not options.json:
                _print(name, found)
    problems = [problem for name, found in results for problem in _problems(name, found)]
    if options.json:
        print(json.dumps({"runs": [_row(n, f) for n, f in results], "problems": problems}))
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.html is not None:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.html, page.html(_page(results, options.factor, live_=options.live)))
    return 1 if problems else 0


def _problems(name: str, found: Outcome | Lived) -> list[str]:
    if isinstance(found, Lived) and found.sent.invalid:
        return [f"{name}: {found.sent.invalid}"]
    if not found.ladder:
        return []
    core = found.served[0]
    problems = []
    if not core.ttft_p95 < OBJECTIVE:
        problems.append(f"{name}: the core's TTFT P95 is {core.ttft_p95:.2f} s, not < {OBJECTIVE}")
    if found.reversals > REVERSALS:
        problems.append(f"{name}: {found.reversals} reversals")
    if found.last:
        problems.append(f"{name}: it ends on step {found.last}")
    return problems


def _print(name: str, found: Outcome | Lived) -> None:
    for place, tier in enumerate(found.served):
        ladder = f"{found.highest:4} {found.reversals:10} {found.last:4}" if not place else ""
        print(
            f"{name if not place else '':14} {tier.tier:9} {tier.came:5} {tier.in_time:13.1%}"
            f" {tier.answered:9.1%} {_seconds(tier.ttft_p95):>9}  {ladder}"
        )


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if math.isfinite(value) else "none"


def _row(name: str, found: Outcome | Lived) -> dict[str, object]:
    return {
        "run": name,
        "ladder": found.ladder,
        "highest": found.highest,
        "reversals": found.reversals,
        "last": found.last,
        "told": found.told,
        "tiers": {
            tier.tier: {
                "came": tier.came,
                "in_time": tier.in_time,
                "answered": tier.answered,
                "ttft_p95": tier.ttft_p95 if math.isfinite(tier.ttft_p95) else None,
            }
            for tier in found.served
        },
    }


# The picture.


def _levels(found: Outcome | Lived, seconds: Sequence[int]) -> list[float]:
    """The highest step of each second."""
    if isinstance(found, Lived):
        return [max((x for at, x in found.levels if s <= at < s + 1), default=0) for s in seconds]
    levels = []
    for second in seconds:
        level = 0
        for step in found.steps:
            if step.at < second + 1:
                level = step.level
        levels.append(float(level))
    return levels


def _p95(found: Outcome | Lived, seconds: Sequence[int]) -> list[float | None]:
    """The P95 of the core's TTFT by the second of arrival; None where 5 % had no first token."""
    values: list[float | None] = []
    for second in seconds:
        ttft = sorted(value for at, value in found.ttft if second <= at < second + 1)
        last = ttft[max(0, math.ceil(0.95 * len(ttft)) - 1)] if ttft else math.inf
        values.append(last if math.isfinite(last) else None)
    return values


def _page(
    results: Sequence[tuple[str, Outcome | Lived]], factor: float, *, live_: bool
) -> page.Page:
    span = overload(factor) if live_ else None
    begins, ends = (span.before, span.ends) if span is not None else (30.0, 90.0)
    sections = []
    for number, (name, found) in enumerate(results):
        seconds = range(int(ends + (span.after if span is not None else 120.0)))
        marked = (Span(begins, ends, f"{factor:g} times the capacity"),)
        axis = Axis("seconds", "number")
        charts = (
            Chart(
                f"ttft-{number}",
                "Time to the first token of the core tier, P95 of each second",
                list(map(float, seconds)),
                (Series("TTFT P95", _p95(found, seconds), draw="points"),),
                x_axis=axis,
                y_axis=Axis("seconds", show="seconds"),
                spans=marked,
                spans_are="overload",
                wide=True,
                note="No point: one in twenty of that second, or more, got no first token.",
            ),
            Chart(
                f"level-{number}",
                "Step of the degradation ladder",
                list(map(float, seconds)),
                (Series("step", _levels(found, seconds), draw="step", colour=1),),
                x_axis=axis,
                y_axis=Axis("step"),
                spans=marked,
                spans_are="overload",
                wide=True,
            ),
        )
        head = ("tier", "came", "within 0.8 s", "answered", "TTFT P95")
        rows = [
            (t.tier, f"{t.came}", f"{t.in_time:.1%}", f"{t.answered:.1%}", _seconds(t.ttft_p95))
            for t in found.served
        ]
        sections.append(page.Section(name, (page.Table(head, rows), *charts)))
    kept = [found for _, found in results if found.ladder]
    worst = max((found.served[0].ttft_p95 for found in kept), default=math.inf)
    figures = (
        page.KeyFigure("Core TTFT P95, worst run", _seconds(worst), "objective 0.8 s"),
        page.KeyFigure("Highest step", f"{max((f.highest for f in kept), default=0)}"),
        page.KeyFigure("Reversals, worst run", f"{max((f.reversals for f in kept), default=0)}"),
    )
    about = f"{factor:g} times the capacity for a minute; core 20 %, standard 50 %, batch 30 %"
    return page.Page("Degradation ladder", about, figures, tuple(sections), "bench/ladder.py")


if __name__ == "__main__":
    sys.exit(main())
