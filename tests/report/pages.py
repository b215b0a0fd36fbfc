"""A page with every kind of chart, for the browser."""

from __future__ import annotations

import numpy as np

from surgetank.report.charts import Axis, Band, Chart, Series, Span
from surgetank.report.page import KeyFigure, Page, Section, Table, Text, html

NAMES = ("<script>alert(1)</script>", "夜間バッチ", "批处理任务", "مستأجر", "acme")
BEGIN = 1_764_460_800.0  # 2025-11-30 00:00 UTC
N = 600


def charts() -> tuple[Chart, ...]:
    """One of each kind."""
    rng = np.random.default_rng(1)
    x = [BEGIN + 300 * i for i in range(N)]
    rate = [float(v) for v in rng.poisson(20, N)]
    windows = [1.0, 10.0, 60.0, 600.0]
    return (
        Chart(
            "rate",
            "Arrivals",
            x,
            (Series("1 s", rate), Series("1 min", [20.0] * N, colour=5)),
            Axis("time (UTC)", "time"),
            Axis("requests/s"),
            spans=(Span(x[100], x[140], "episode 1"),),
            wide=True,
        ),
        Chart(
            "tenants",
            "By tenant",
            x,
            tuple(
                Series(name, [float(v) for v in rng.poisson(4, N)], colour=i)
                for i, name in enumerate(NAMES)
            ),
            Axis("time (UTC)", "time"),
            Axis("requests/s"),
            stacked=True,
            wide=True,
        ),
        Chart(
            "idc",
            "Dispersion",
            windows,
            (Series("requests", [1.5, 20, 100, 303]), Series("tokens", [1, 9, 80, None])),
            Axis("window", "log", "seconds", ticks=tuple(windows)),
            Axis("variance / mean", "log"),
            bands=(Band("Poisson", [0.9, 0.8, 0.7, 0.5], [1.1, 1.2, 1.3, 1.6]),),
        ),
        Chart(
            "gaps",
            "Gaps",
            [float(v) for v in np.geomspace(1e-4, 10, 40)],
            (Series("log", [float(v) for v in rng.random(40) / 40], "step"),),
            Axis("gap", "log", "seconds"),
            Axis("share", show="percent"),
        ),
        Chart(
            "shares",
            "Shares",
            [0.0, 1.0, 2.0, 3.0, 4.0],
            (Series("share", [0.4, 0.3, 0.2, 0.07, 0.03], "bar"),),
            Axis("", "names", names=NAMES),
            Axis("share", show="percent"),
        ),
        Chart(
            "elapsed",
            "Tokens",
            [60.0 * i for i in range(200)],
            (Series("prompt", [1e4 + 50 * i for i in range(200)], "area"),),
            Axis("time in the log", "time"),
            Axis("tokens/s", show="compact"),
        ),
        Chart("one", "One place", [5.0], (Series("a", [3.0], "points"),)),
        Chart("none", "Nothing", [], (Series("a", []),), empty="No request."),
    )


def whole() -> str:
    """Write the page."""
    return html(
        Page(
            "夜間バッチ report",
            "a log",
            tuple(KeyFigure(name, "12.3", "more", "warn") for name in NAMES),
            (
                Section("Words", (Text(("One.", "Two."), "warn"),)),
                Section("Charts", charts()),
                Section("Table", (Table(("tenant", "n"), [(name, "1") for name in NAMES]),)),
            ),
            "foot",
        )
    )
