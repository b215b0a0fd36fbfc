"""The gateway's figures, the bars they are held to, and the words for both.

Rule: CPU and latency are held to a ratio to nginx within a round, since that is stable where
microseconds are not; and where nginx's own figures are not stable, nothing is told at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from peers import NAMES, ROUTERS

OURS, MANY, PEER, NONE = "surgetank", "surgetank-many", "nginx", "direct"
JOINED = 0.95  # reads per chunk: with fewer, chunks were late enough to meet the next
STEADY = 0.15  # nginx's figures over the rounds: (most - least) / median, at most


@dataclass(slots=True)
class Figures:
    """One proxy's figures, a value a round. The shares are of one core."""

    request_us: list[float] = field(default_factory=list)  # at the full rate, CPU
    chunk_us: list[float] = field(default_factory=list)
    prompt_ms: list[float] = field(default_factory=list)  # of a request with a large prompt, CPU
    p50_ms: list[float] = field(default_factory=list)  # at the lower rate, as the client sees it
    idle_mb: list[float] = field(default_factory=list)  # of all idle streams together
    resting: list[float] = field(default_factory=list)  # share without any load: health checks
    loaded_us: list[float] = field(default_factory=list)  # request_us without the resting share
    reads_per_chunk: list[float] = field(default_factory=list)  # below 1: chunks were joined
    p99_ms: list[float] = field(default_factory=list)  # at the full rate
    client_share: list[float] = field(default_factory=list)
    upstream_share: list[float] = field(default_factory=list)


All = dict[str, Figures]


@dataclass(frozen=True, slots=True)
class Bar:
    """What ours is held to: the median over the rounds, at most `most`."""

    what: str
    most: float
    unit: str
    values: Callable[[All], list[float]]  # a value a round; KeyError when a row was not asked for


def _over(name: str, to: str, what: str) -> Callable[[All], list[float]]:
    def values(figures: All) -> list[float]:
        own, other = getattr(figures[name], what), getattr(figures[to], what)
        return [a / b for a, b in zip(own, other, strict=True)]

    return values


def _added(figures: All) -> list[float]:
    """Latency added to that of no proxy at all, ours over nginx's."""
    rounds = zip(*(figures[name].p50_ms for name in (OURS, PEER, NONE)), strict=True)
    return [(own - none) / (peer - none) for own, peer, none in rounds]


BARS = (
    Bar("CPU of a small request, over nginx's", 3.0, "x", _over(OURS, PEER, "request_us")),
    Bar("CPU of a streamed chunk, over nginx's", 1.2, "x", _over(OURS, PEER, "chunk_us")),
    Bar("median latency added at 500 requests/s, over nginx's", 1.8, "x", _added),
    Bar("memory of 2,000 idle streams", 20.0, " MB", lambda f: f[OURS].idle_mb),
    Bar("CPU of a request with a prompt of 400 KB", 1.0, " ms", lambda f: f[OURS].prompt_ms),
    Bar(
        "CPU of a small request among 100 tenants and 200 replicas, over one of each",
        1.3,
        "x",
        _over(MANY, OURS, "loaded_us"),
    ),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A bar, and whether it was kept."""

    bar: Bar
    values: list[float]

    @property
    def kept(self) -> bool:
        return statistics.median(self.values) <= self.bar.most


def judge(figures: All) -> list[Judged]:
    """Hold ours to the bars whose rows were measured."""
    found = []
    for bar in BARS:
        try:
            values = bar.values(figures)
        except KeyError:
            continue
        if values:
            found.append(Judged(bar, values))
    return found


def ahead(figures: All) -> list[Judged]:
    """Compare ours with each other gateway that was measured: it is to be cheaper."""
    found = []
    for name in (peer for peer in NAMES if peer in figures and OURS in figures):
        for what, words in (("request_us", "small request"), ("chunk_us", "streamed chunk")):
            if what == "request_us" or name in ROUTERS:
                bar = Bar(f"CPU of a {words}, over {name}'s", 1.0, "x", _over(OURS, name, what))
                found.append(Judged(bar, bar.values(figures)))
    return found


def unsteady(figures: All) -> str | None:
    """Say which of nginx's figures spreads too far for a verdict; None when all are steady."""
    if PEER not in figures:
        return None
    for what in ("request_us", "chunk_us"):
        values: list[float] = getattr(figures[PEER], what)
        if not values:
            continue
        spread = (max(values) - min(values)) / statistics.median(values)
        if spread > STEADY:
            name = what.removesuffix("_us")
            return (
                f"{PEER}'s own CPU per {name} spreads by {spread:.0%} over the rounds "
                f"({min(values):.1f}-{max(values):.1f} us), {STEADY:.0%} at most: the machine is "
                "busy or its clock changes, so no figure is told. Repeat on a quiet machine"
            )
    return None


_COLUMNS = (
    ("us/request", "request_us", 20),
    ("us/chunk", "chunk_us", 18),
    ("ms/400 KB", "prompt_ms", 16),
    ("p50 ms", "p50_ms", 16),
    ("MB/2000 idle", "idle_mb", 18),
    ("resting", "resting", 8),
)


def table(figures: All) -> str:
    """Set all figures in rows."""
    heads = " ".join(title.rjust(width) for title, _, width in _COLUMNS)
    lines = [f"{'':14} {heads} {'reads/chunk':>11} {'p99 ms':>7} {'client':>7} {'upstream':>8}"]
    for name, own in figures.items():
        cells = []
        for _, what, width in _COLUMNS:
            values = getattr(own, what)
            if what == "resting" and values:
                cells.append(f"{statistics.median(values):.1%}".rjust(width))
            else:
                no_cpu = name == NONE and what in {"request_us", "chunk_us", "prompt_ms"}
                cells.append(cell([] if no_cpu else values, width))
        reads = f"{statistics.median(own.reads_per_chunk):.3f}" if own.reads_per_chunk else "-"
        lines.append(
            f"{name:14} {' '.join(cells)} {reads:>11} {statistics.median(own.p99_ms):7.2f}"
            f" {max(own.client_share):7.0%} {max(own.upstream_share):8.0%}"
        )
    lines.append(
        "medians (min-max) over the rounds; p50 at 500 requests/s; client and upstream: most of "
        "one core they took; resting: of one core, without load"
    )
    joined = [
        name
        for name, own in figures.items()
        if own.reads_per_chunk and min(own.reads_per_chunk) < JOINED
    ]
    if joined:
        lines.append(
            f"chunks arrived joined in some round of {', '.join(joined)}: a busy machine, or a "
            "proxy that holds them back; both make a chunk look cheaper. Repeat on a quiet machine"
        )
    return "\n".join(lines)


def cell(values: list[float], width: int = 0) -> str:
    """Median, least and most."""
    if not values:
        return "-".rjust(width)
    low, middle, high = min(values), statistics.median(values), max(values)
    digits = 1 if middle >= 10 else 2
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})".rjust(width)


def words(judged: list[Judged]) -> str:
    """Say of each bar whether it was kept."""
    return "\n".join(
        f"{'kept  ' if one.kept else 'MISSED'} {one.bar.what}: {cell(one.values)}{one.bar.unit}, "
        f"at most {one.bar.most:g}{one.bar.unit}"
        for one in judged
    )
