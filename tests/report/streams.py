"""Streams of requests whose analysis is shown: pulses, a trickle, coarse stamps, a long week."""

from __future__ import annotations

from functools import cache

import numpy as np

from surgetank.traffic import arrivals
from surgetank.traffic.analysis import Analysis
from surgetank.traffic.burstiness import Accumulator
from surgetank.traffic.trace import BadRow, Batch, Labels, Seconds, Source

BEGIN = 1_764_460_800.0  # 2025-11-30 00:00 UTC
EVIL = (
    "<script>alert(1)</script>",
    "夜間バッチ",
    "مستأجر",
    "[red]x[/red]",
    "\x1b[31mred",
    "a\u202eb",
)
WEEK = 7 * 86400.0


def requests(times: Seconds, tenants: tuple[str, ...] = (), *, seed: int = 1) -> Batch:
    """Give arrivals lengths, and tenants whose shares fall by their order."""
    rng = np.random.default_rng(seed)
    n = len(times)
    names = None
    if tenants:
        weight = 1 / np.arange(1, len(tenants) + 1)
        codes = rng.choice(len(tenants), n, p=weight / weight.sum()).astype(np.int32)
        names = Labels(codes, tenants)
    return Batch(
        BEGIN + times,
        prompt_tokens=rng.lognormal(7, 1, n).astype(np.int64) + 1,
        output_tokens=rng.lognormal(5, 1, n).astype(np.int64) + 1,
        tenant=names,
    )


def analysis_of(batch: Batch, source: Source | None = None) -> Analysis:
    """Run the real accumulator."""
    accumulator = Accumulator()
    accumulator.add(batch)
    return accumulator.analyse(source or Source("requests.csv", "csv", rows=len(batch)))


@cache
def pulse() -> Analysis:
    """20 to 80 requests/s, 30 s of every 90 s; tenants with names of all kinds; five bad rows."""
    times = arrivals.pulse(np.random.default_rng(1), 20, 80, 30, 90, 900)
    source = Source(
        "夜間.log",
        "nginx-json",
        rows=len(times),
        skipped=7,
        bad=tuple(BadRow(i, f"no time in \x1b[31m{i}") for i in range(2, 7)),
        ignored={"probe": 12},
        arrival_from="end - duration",
        notes=("stamps are whole seconds",),
    )
    return analysis_of(requests(times, (*EVIL, *(f"tenant-{i:02}" for i in range(44)))), source)


@cache
def trickle() -> Analysis:
    """A Poisson stream without tenants or tokens."""
    return analysis_of(Batch(BEGIN + arrivals.poisson(np.random.default_rng(2), 2, 1200)))


@cache
def coarse() -> Analysis:
    """Stamps of 3 s, counted from the log's own origin."""
    times = arrivals.poisson(np.random.default_rng(3), 3, 3600)
    return analysis_of(Batch(np.floor(times / 3) * 3))


@cache
def two_requests() -> Analysis:
    """Too little for any figure."""
    return analysis_of(Batch(np.array([5.0, 6.0])))


@cache
def week() -> Analysis:
    """Seven days of 50 tenants: the largest page there is."""
    rng = np.random.default_rng(4)
    day = arrivals.diurnal(rng, 0.2, 0.8, WEEK)
    hourly = arrivals.cron_spike(rng, 0.05, 200, every=3600, duration=WEEK, spread=40)
    times = np.sort(np.concatenate([day, hourly])) * 1.0000123
    names = tuple(f"部门-{i:02}-<{'x' * 20}>" for i in range(50))
    return analysis_of(requests(times, names))


ALL = {
    "pulse": pulse,
    "trickle": trickle,
    "coarse": coarse,
    "two requests": two_requests,
    "week": week,
}
