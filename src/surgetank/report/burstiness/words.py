"""The sentences and rows that terminal and page share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from surgetank.report import numbers
from surgetank.traffic.analysis import Analysis, Episode, RateFigures, TenantFigures
from surgetank.traffic.trace import Source

_ARRIVAL: Final = {
    "end - duration": "The log stamps the end of a request: arrivals are stamp - duration.",
    "end": "The log stamps the end of a request and has no duration: ends are taken for arrivals, "
    "so bursts look flatter than they were.",
    "window": "The log has rates per window, no arrivals: they were drawn from those rates.",
}

_BRIEFLY: Final = {
    "end - duration": "arrival = stamp - duration",
    "end": "stamps are ends",
    "window": "drawn from rates",
}

SHAPES: Final = {
    "poisson": "Poisson",
    "clumps": "clumps",
    "pulses": "pulses",
    "quantised": "quantised stamps",
}

_SHORT: Final = {"ttft", "tpot", "itl", "idc", "cv"}

KEPT: Final = 50  # episodes that an analysis keeps

Row = tuple[str, str, str]
"""A figure, its value, and its value in a Poisson stream."""


def shape(analysis: Analysis) -> str:
    """Name the verdict; too short a log has none that could be trusted."""
    found = analysis.verdict
    if found.confident:
        return SHAPES[found.shape]
    return "undecided" if found.shape == "poisson" else f"perhaps {SHAPES[found.shape]}"


def what(source: Source) -> str:
    """Name the log, its format, and where its arrivals come from when that is not its stamps."""
    name = source.path or "requests"
    name = "standard input" if name == "-" else name
    kind = "; ".join(filter(None, (source.format, _BRIEFLY.get(source.arrival_from, ""))))
    return f"{name} ({kind})" if kind else name


def when(analysis: Analysis) -> str:
    """Tell how many requests in what time."""
    requests = numbers.plural(analysis.requests, "request")
    line = next((line for line in analysis.series.rates if len(line.x)), None)
    if line is None:
        return requests
    first, last = float(line.x[0]), float(line.x[0]) + analysis.span_s
    zone = " UTC" if numbers.is_calendar(first) else ""
    begin, end = numbers.moment(first), numbers.moment(last)
    if zone and begin[:10] == end[:10]:
        end = end[11:]
    return f"{requests} in {numbers.seconds(analysis.span_s)}, {begin} to {end}{zone}"


def origin(source: Source) -> Iterator[str]:
    """Tell what a reader of the figures must know of the log."""
    if source.arrival_from in _ARRIVAL:
        yield _ARRIVAL[source.arrival_from]
    yield from map(sentence, source.notes)
    if source.ignored:
        kinds = ", ".join(f"{numbers.count(n)} {why}" for why, n in sorted(source.ignored.items()))
        yield f"Rows that are no requests: {kinds}."


def bad_rows(source: Source) -> str:
    """Count the rows that could not be read; "" when there are none."""
    if not source.skipped:
        return ""
    rows = source.rows + source.skipped
    share = numbers.percent(source.skipped / rows)
    return f"Bad rows: {numbers.count(source.skipped)} of {numbers.count(rows)} ({share})"


def bad_lines(source: Source) -> list[str]:
    """Tell the first bad rows."""
    return [f"line {numbers.count(bad.line)}: {bad.reason}" for bad in source.bad]


def classic(analysis: Analysis) -> Iterator[Row]:
    """The figures users look for, each beside its value in a Poisson stream."""
    number, delay = numbers.number, numbers.seconds(analysis.capacity_delay_s)
    yield "CV of counts at 1 s", number(analysis.cv_1s), number(analysis.poisson_cv_1s)
    yield "excess CV at 1 s", number(analysis.excess_cv_1s), "0"
    for window, value in analysis.peak_to_mean.items():
        yield f"peak / mean at {window} s", number(value), ""
    at_delay = number(analysis.peak_to_mean_at_delay)
    yield f"peak / mean at the capacity delay ({delay})", at_delay, ""
    gaps = analysis.interarrival
    if gaps is None:
        return
    for name, title in (("mean", "mean gap"), ("p50", "P50 gap"), ("p99", "P99 gap")):
        value, poisson = getattr(gaps, name), gaps.poisson.get(name)
        yield title, numbers.seconds(value), numbers.seconds(poisson)
    yield "CV of gaps", number(gaps.cv), number(gaps.poisson.get("cv"))
    yield "P50 gap / mean", number(gaps.p50_to_mean), "0.693"
    yield "P99 gap / mean", number(gaps.p99_to_mean), "4.61"
    yield "gaps of exactly 0", numbers.percent(gaps.zero_share), "0 %"


def rates(analysis: Analysis) -> Iterator[tuple[str, RateFigures]]:
    """Requests per second over windows of three widths."""
    yield "1 s", analysis.rate
    for title, found in (("1 min", analysis.rate_per_minute), ("10 min", analysis.rate_per_10min)):
        if found is not None:
            yield title, found


def rate_cells(found: RateFigures) -> tuple[str, ...]:
    """Mean, standard deviation, P50, P95, P99, maximum."""
    values = (found.mean, found.std, found.p50, found.p95, found.p99, found.max)
    return tuple(numbers.compact(value) for value in values)


RATE_HEAD: Final = ("mean", "std", "P50", "P95", "P99", "max")


def band(analysis: Analysis, window: str, *, most: int = 3) -> str:
    """Write the range of a Poisson stream's IDC, with at most so many decimals."""
    found = analysis.idc.requests_band.get(window)
    return numbers.NONE if found is None else numbers.between(*found, most=most)


def sentence(text: str) -> str:
    """Begin with a capital and end with a full stop."""
    text = text.strip()
    first, space, rest = text.partition(" ")
    first = first.upper() if first.lower() in _SHORT else first[:1].upper() + first[1:]
    text = first + space + rest
    return text + ("" if text.endswith((".", "!", "?", ":")) else ".")


def advice(analysis: Analysis) -> list[str]:
    """Tell what follows for capacity, one sentence each."""
    return [sentence(text) for text in analysis.advice]


def episodes_found(analysis: Analysis) -> str:
    """Count the episodes; the analysis keeps the 50 largest."""
    found = len(analysis.episodes)
    return f"{found} largest episodes" if found >= KEPT else numbers.plural(found, "episode")


TENANT_HEAD: Final = (
    "tenant", "requests", "share", "of variance", "of tokens", "mean/s", "peak/s",
    "IDC 10 s", "60 s",
)  # fmt: skip


def tenant_cells(tenant: TenantFigures) -> tuple[str, ...]:
    """One row of the tenants' table."""
    return (
        tenant.name or "(none)",
        numbers.count(tenant.requests),
        numbers.percent(tenant.share),
        numbers.percent(tenant.variance_share),
        numbers.percent(tenant.token_share),
        numbers.compact(tenant.rate),
        numbers.compact(tenant.peak_rate),
        numbers.number(tenant.idc.get("10")),
        numbers.number(tenant.idc.get("60")),
    )


def tenants(analysis: Analysis, top: int) -> list[TenantFigures]:
    """Give the largest tenants, and the others as one."""
    shown = list(analysis.tenants[:top])
    if analysis.others is not None and len(shown) == len(analysis.tenants):
        shown.append(analysis.others)
    return shown


EPISODE_HEAD: Final = (
    "start", "lasted", "base/s", "peak/s", "requests above", "tokens above", "mostly from",
)  # fmt: skip


def episode_cells(episode: Episode) -> tuple[str, ...]:
    """One row of the episodes' table."""
    who = episode.tenant or ""
    if who and episode.tenant_share is not None:
        who += f" ({100 * episode.tenant_share:.0f} %)"
    return (
        numbers.moment(episode.start),
        numbers.seconds(episode.duration),
        numbers.compact(episode.base),
        numbers.compact(episode.peak),
        numbers.compact(episode.requests),
        numbers.compact(episode.tokens),
        who,
    )


def largest(analysis: Analysis, top: int) -> list[Episode]:
    """Give the episodes with the most requests above their base."""
    return sorted(analysis.episodes, key=lambda e: -e.requests)[:top]


def pulse(analysis: Analysis) -> str:
    """Tell the fitted pulse; "" when there is none."""
    found = analysis.pulse
    if found is None:
        return ""
    base, peak = numbers.number(found.base_rps), numbers.rate(found.peak_rps, "req")
    width, period = numbers.seconds(found.width_s), numbers.seconds(found.period_s)
    return (
        f"Fitted pulse: from {base} to {peak} for {width} of every {period} "
        f"({numbers.number(found.cycles)} cycles; explains "
        f"{numbers.percent(found.explained)} of the rate's variance)."
    )
