"""A run's report in words and cells, the same on a terminal and in a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from surgetank.loadtest.report import DEFINITIONS, Interval, Percentiles, Report, Share
from surgetank.report import numbers

LATENCY_HEAD: Final = (
    "TTFT P50",
    "TTFT P95",
    "TTFT P99",
    "from send",
    "TPOT P50",
    "TPOT P95",
    "E2E P50",
    "E2E P95",
)
"""All from when a request was due, but for "from send": the TTFT's P95 from its send."""

OUTCOME_HEAD: Final = (
    "requests",
    "req/s",
    "attained",
    "refused",
    "failed",
    "left",
    "retries",
    "queue",
    "KV",
)
TOKEN_HEAD: Final = ("ITL P50", "ITL P95", "ITL P99", "gaps between tokens")
NEVER: Final = "never"  # a percentile that falls on a request without an answer


def latency_cells(share: Share) -> tuple[str, ...]:
    """Give a row under LATENCY_HEAD."""
    return (
        *_all(share, share.ttft),
        _seconds(share, share.ttft_sent.p95),
        numbers.seconds(share.tpot.p50),
        numbers.seconds(share.tpot.p95),
        _seconds(share, share.e2e.p50),
        _seconds(share, share.e2e.p95),
    )


def token_cells(share: Share) -> tuple[str, ...]:
    """Give a row under TOKEN_HEAD."""
    found = share.itl
    times = (numbers.seconds(value) for value in (found.p50, found.p95, found.p99))
    return (*times, numbers.count(share.gaps))


def _all(share: Share, found: Percentiles) -> tuple[str, str, str]:
    return (_seconds(share, found.p50), _seconds(share, found.p95), _seconds(share, found.p99))


def _seconds(share: Share, value: float | None) -> str:
    if value is None:
        return NEVER if share.requests else numbers.NONE
    return numbers.seconds(value)


def outcome_cells(share: Share) -> tuple[str, ...]:
    """Give a row under OUTCOME_HEAD."""
    left = share.abandoned / share.requests if share.requests else None
    return (
        numbers.count(share.requests),
        numbers.number(share.rate),
        numbers.percent(share.attainment),
        numbers.percent(share.refused_rate),
        numbers.percent(share.error_rate),
        numbers.percent(left),
        numbers.percent(share.retry_rate),
        numbers.number(share.peaks.get("queue")),
        numbers.percent(share.peaks.get("kv")),
    )


def asked(report: Report) -> str:
    """Say what was sent, and where."""
    told = ", ".join(
        f"{name} {' + '.join(value) if isinstance(value, Mapping) else value}"
        for name, value in report.description.items()
    )
    target = report.target.get("url") or report.target.get("simulated") or ""
    return f"{told or 'a run'}{f', at {target}' if target else ''}"


def outcome(report: Report) -> str:
    """Say what came of the requests, in one line."""
    parts = [f"{numbers.plural(report.requests, 'request')}: {report.completed:,} completed"]
    for name in ("refused", "failed", "abandoned"):
        count = getattr(report, name)
        if count:
            parts.append(f"{count:,} {name}")
    line = ", ".join(parts)
    if report.retried:
        line += (
            f"; {report.retried:,} retried, {numbers.number(report.amplification)} attempts a "
            "request"
        )
    promised = numbers.seconds(report.objective.ttft)
    return f"{line}; {numbers.percent(report.attainment)} within {promised}"


def recovery(report: Report) -> str:
    """Say how long it took to be itself again."""
    found = report.recovery
    if not found.cycles:
        return "Recovery time: unknown: there is no whole cycle of calm and pulse in this run"
    if found.censored == found.cycles:
        return (
            "Recovery time: never back to normal before the next pulse "
            f"({numbers.plural(found.cycles, 'cycle')})"
        )
    low, high = numbers.seconds(found.low), numbers.seconds(found.high)
    between = "" if found.low is None else f" ({low} to {high}, 95 %)"
    least = "at least " if found.censored else ""
    line = (
        f"Recovery time: {least}{numbers.seconds(found.seconds)}{between} over "
        f"{numbers.plural(found.cycles, 'cycle')}"
    )
    if found.censored:
        line += f"; not back before the next pulse in {found.censored}"
    return line + f"; normal is a median TTFT within {numbers.seconds(found.limit)}"


def after(report: Report) -> Iterator[str]:
    """Say what the pulses left behind, and what was really sent."""
    area = _interval(report.backlog, lambda v: f"{numbers.compact(v)} req·s")
    yield f"Backlog: {area} a cycle, {numbers.count(report.backlog_peak)} requests at most"
    yield f"Overshoot: {_interval(report.overshoot, numbers.seconds)} above the limit"
    yield f"Sent: {_achieved(report.achieved)}"
    lag = report.sender.get("lag")
    if isinstance(lag, Mapping):
        late = numbers.seconds(lag.get("p99"))
        valid = "" if report.sender.get("valid", True) else ": INVALID, the sender was too late"
        yield f"Send lag: P99 {late}{valid}"
    if report.done is not None:
        yield (
            f"Cut off after {numbers.seconds(report.done)} of {numbers.seconds(report.duration)}: "
            "only what was done until then is told"
        )


def _interval(found: Interval, write: Any) -> str:
    if found.value is None:
        return "infinite" if found.cycles else numbers.NONE
    if found.low is None or found.high is None:
        return str(write(found.value))
    return f"{write(found.value)} ({write(max(0.0, found.low))} to {write(found.high)})"


def _achieved(achieved: Mapping[str, Any]) -> str:
    rate = numbers.number(achieved["rate"])
    asked_for = numbers.number(achieved["scheduled_rate"])
    dispersion = ", ".join(
        f"{numbers.number(value)} at {window} s ({numbers.number(due)})"
        for (window, value), due in zip(
            achieved["idc"].items(), achieved["scheduled_idc"].values(), strict=True
        )
        if value is not None
    )
    told = f"; IDC {dispersion}" if dispersion else ""
    return f"{rate} req/s (schedule {asked_for}){told}"


def definitions() -> list[tuple[str, str]]:
    """Give each term with its meaning."""
    return list(DEFINITIONS.items())
