"""A comparison as a page: TTFT, attainment, queue and replicas over time, and the figures.

Rule: the page shows the numbers of the summaries; where a policy ran with several seeds, curves are
of the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.policy.record import FleetSample
from surgetank.report import numbers
from surgetank.report.charts import Axis, Chart, Series
from surgetank.report.page import KeyFigure, Page, Section, Table
from surgetank.simulation.result import Result
from surgetank.simulation.summary import Percentiles, Share, Summary

_PLACES: Final = 600  # of a chart: more is not seen
_LEAST_SHARE: Final = 10.0  # seconds: shares of a few requests are noise
_STATES: Final = ("serving", "starting", "standby", "draining")


def page(results: Sequence[Result], summaries: Sequence[Summary], *, about: str) -> Page:
    """Draw runs of one workload; at least one."""
    firsts = [r for r in results if r.scenario.seed == results[0].scenario.seed]
    return Page(
        title="Simulation",
        about=about,
        figures=tuple(_figure(summary) for summary in summaries[:8]),
        sections=(
            Section("Policies", (_totals(summaries),)),
            Section("Over time", tuple(_over_time(firsts))),
            Section("Replicas", tuple(_replicas(result) for result in firsts)),
            Section("Tenants and phases", tuple(_shares(summaries))),
        ),
        foot="Simulated by surgetank around its live policies; engine times as its profile's.",
    )


def _figure(summary: Summary) -> KeyFigure:
    return KeyFigure(
        f"{summary.policy}: within objectives",
        numbers.percent(summary.attainment),
        f"{numbers.number(summary.replica_hours)} replica-hours",
    )


def _three(values: Percentiles) -> str:
    return " / ".join(numbers.seconds(v) for v in (values.p50, values.p95, values.p99))


def _totals(summaries: Sequence[Summary]) -> Table:
    """Figures are rows, runs are columns."""
    seeds = len({s.seed for s in summaries}) > 1
    head = tuple(f"{s.policy} #{s.seed}" if seeds else s.policy for s in summaries)
    return Table(("", *head), [(name, *map(write, summaries)) for name, write in FIGURES])


FIGURES: Final[Sequence[tuple[str, Callable[[Summary], str]]]] = (
    ("requests", lambda s: numbers.count(s.requests)),
    ("within objectives", lambda s: numbers.percent(s.attainment)),
    ("goodput, requests/s", lambda s: numbers.number(s.goodput_rps)),
    ("worst minute", lambda s: numbers.percent(s.worst_minute)),
    ("TTFT P50", lambda s: numbers.seconds(s.ttft.p50)),
    ("TTFT P95", lambda s: numbers.seconds(s.ttft.p95)),
    ("TTFT P99", lambda s: numbers.seconds(s.ttft.p99)),
    ("TPOT P50", lambda s: numbers.seconds(s.tpot.p50)),
    ("TPOT P95", lambda s: numbers.seconds(s.tpot.p95)),
    ("completed", lambda s: numbers.count(s.completed)),
    ("refused", lambda s: numbers.count(s.refused)),
    ("abandoned", lambda s: numbers.count(s.abandoned)),
    ("failed, unfinished", lambda s: f"{s.failed:,}, {s.unfinished:,}"),
    ("calls per request", lambda s: f"{s.amplification:.2f}"),
    ("wasted tokens", lambda s: numbers.count(s.wasted_tokens)),
    ("preemptions", lambda s: numbers.count(s.preemptions)),
    ("replica-hours", lambda s: numbers.number(s.replica_hours)),
    ("launches", lambda s: numbers.count(s.launches)),
    ("simulated in", lambda s: numbers.seconds(s.wall_s)),
)
"""What a comparison shows of each run, in this order, wherever it is shown."""


def _shares(summaries: Sequence[Summary]) -> list[Table]:
    tables = []
    for what in ("per_tenant", "per_phase"):
        rows = []
        for summary in summaries:
            shares: Sequence[Share] = getattr(summary, what)
            rows += [
                (
                    share.tenant or share.phase,
                    summary.policy,
                    numbers.count(share.requests),
                    numbers.percent(share.attainment),
                    _three(share.ttft),
                )
                for share in shares[:50]
            ]
        name = "tenant" if what == "per_tenant" else "phase"
        head = (name, "policy", "requests", "within objectives", "TTFT P50/P95/P99")
        tables.append(Table(head, rows, words=(1,)))
    return tables


def _over_time(results: Sequence[Result]) -> list[Chart]:
    load = results[0].scenario.workload
    end = max(result.end for result in results)
    width = max(1.0, math.ceil(end / _PLACES))
    places = int(end // width) + 1
    x = [i * width + load.origin for i in range(places)]
    axis = Axis("time", "time")
    where = (load.arrived // width).astype(np.int64).clip(0, places - 1)
    rate = np.bincount(where, minlength=places) / width
    charts = [
        Chart(
            "arrivals",
            "Arrivals",
            x,
            (Series("requests/s", rate.tolist(), draw="area"),),
            axis,
            Axis("requests/s"),
            note="The same requests for every policy.",
            wide=True,
        )
    ]
    wide = max(_LEAST_SHARE, width)
    steps = [i * wide + load.origin for i in range(int(end // wide) + 1)]
    coarse = (load.arrived // wide).astype(np.int64).clip(0, len(steps) - 1)
    came = np.bincount(coarse, minlength=len(steps))
    ttft, kept, queue = [], [], []
    for colour, result in enumerate(results):
        seen = result.requests
        attained = np.bincount(coarse, weights=seen.attained, minlength=len(steps))
        part = np.divide(attained, came, out=np.full(len(steps), np.nan), where=came > 0)
        label, hue = result.policy, colour % 8
        ttft.append(Series(label, _p95(seen.ttft, where, places), colour=hue))
        kept.append(Series(label, part.tolist(), colour=hue))
        queue.append(Series(label, _sampled(result.samples, "queued", x, width), colour=hue))
    seconds, share = Axis("s", show="seconds"), Axis("share", show="percent")
    charts += [
        Chart("ttft", "TTFT, P95 by arrival", x, tuple(ttft), axis, seconds, wide=True),
        Chart("attained", "Within objectives, by arrival", steps, tuple(kept), axis, share),
        Chart("queue", "Waiting in the gateway", x, tuple(queue), axis, Axis("requests")),
    ]
    return charts


def _p95(values: NDArray[np.float64], where: NDArray[np.int64], places: int) -> list[float | None]:
    """P95 of those that fall into each place; None where there is none."""
    order = np.argsort(where, kind="stable")
    parts = np.split(values[order], np.searchsorted(where[order], np.arange(1, places)))
    known = [part[~np.isnan(part)] for part in parts]
    return [float(np.percentile(part, 95)) if len(part) else None for part in known]


def _sampled(
    samples: Sequence[FleetSample], name: str, x: Sequence[float], width: float
) -> list[float | None]:
    """The highest of each place, summed over pools."""
    by_time: dict[float, float] = {}
    for sample in samples:
        by_time[sample.t] = by_time.get(sample.t, 0.0) + (getattr(sample, name) or 0)
    found: list[float | None] = [None] * len(x)
    for at, value in by_time.items():
        place = min(len(x) - 1, max(0, int((at - x[0]) // width)))
        found[place] = max(found[place] or 0.0, value)
    return found


def _replicas(result: Result) -> Chart:
    width = max(1.0, math.ceil(result.end / _PLACES))
    places = int(result.end // width) + 1
    x = [i * width + result.scenario.workload.origin for i in range(places)]
    series = tuple(
        Series(state, _sampled(result.samples, state, x, width), draw="step", colour=colour)
        for colour, state in enumerate(_STATES)
    )
    name = "replicas-" + "".join(c if c.isalnum() else "-" for c in result.policy)
    title = f"Replicas: {result.policy}"
    return Chart(name, title, x, series, Axis("time", "time"), Axis("replicas"), stacked=True)
