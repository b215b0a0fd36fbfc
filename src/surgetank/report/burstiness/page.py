"""An analysis as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from surgetank.report import numbers
from surgetank.report.burstiness import charts, words
from surgetank.report.charts import Chart
from surgetank.report.page import Block, KeyFigure, Page, Section, Table, Text, Tone
from surgetank.traffic.analysis import Analysis

_TONES: Final[dict[str, Tone]] = {"poisson": "good", "quantised": "warn"}
_MOST: Final = 50  # rows of a table

_DEFINITIONS: Final = (
    (
        "index of dispersion (IDC) of w seconds",
        "variance / mean of the counts in windows of w seconds; 1 in a Poisson stream",
    ),
    ("excess CV", "sqrt(max(0, variance - mean)) / mean: what chance does not explain"),
    ("peak / mean", "the busiest window over the average one; the window is part of the figure"),
    ("episode", "a stretch in which the rate stood clearly above its surroundings"),
    ("above", "requests or tokens of an episode beyond what the base would have brought"),
    ("of variance", "a tenant's covariance with the total, over the variance of the total"),
    ("capacity delay", "the time from wanting a replica to its serving"),
)


def page(analysis: Analysis, *, top: int = _MOST, made_by: str = "") -> Page:
    """Compose it; tables show `top` rows at most."""
    return Page(
        title="How bursty is this traffic?",
        about=f"{words.what(analysis.source)}: {words.when(analysis)}",
        figures=tuple(_figures(analysis)),
        sections=tuple(_sections(analysis, min(top, _MOST))),
        foot=made_by,
    )


def _figures(analysis: Analysis) -> Iterator[KeyFigure]:
    number = numbers.number
    tone = _tone(analysis)
    yield KeyFigure("Shape", words.shape(analysis), tone=tone)
    rate = analysis.rate
    peak = f"{numbers.compact(rate.max)} in the busiest second" if rate.max is not None else ""
    yield KeyFigure("Mean rate", numbers.rate(rate.mean, "req"), peak)
    for window in ("10", "60"):
        title = f"Dispersion at {window} s"
        poisson = f"chance: {words.band(analysis, window)}"
        yield KeyFigure(title, number(analysis.idc.requests.get(window)), poisson)
    yield KeyFigure(
        "Peak/mean, 10 s",
        number(analysis.peak_to_mean.get("10")),
        f"{number(analysis.peak_to_mean_at_delay)} at the capacity delay",
    )
    delay = numbers.seconds(analysis.capacity_delay_s)
    yield KeyFigure("A burst lasts", numbers.seconds(analysis.burst_seconds), f"capacity: {delay}")
    if analysis.tokens.prompt_rate is not None:
        tokens = analysis.tokens.prompt_rate
        most = f"{numbers.compact(tokens.max)} at most"
        yield KeyFigure("Prompt tokens", f"{numbers.compact(tokens.mean)}/s", most)


def _sections(analysis: Analysis, top: int) -> Iterator[Section]:
    yield Section("In words", tuple(_words(analysis)))
    by_tenant = charts.tenants(analysis)
    arrivals: list[Chart] = [charts.rate(analysis)]
    if by_tenant is not None:
        arrivals.append(by_tenant)
    yield Section("Arrivals", (*arrivals, _rates(analysis)))
    yield Section(
        "Burstiness",
        (
            charts.dispersion(analysis),
            charts.gaps(analysis),
            _dispersion(analysis),
            _classic(analysis),
            *_refused(analysis),
        ),
    )
    if analysis.episodes:
        shown = words.largest(analysis, top)
        caption = (
            f"{words.episodes_found(analysis)}, those with the most requests above their base first"
        )
        rows = [words.episode_cells(e) for e in shown]
        yield Section("Episodes", (Table(words.EPISODE_HEAD, rows, caption, words=(6,)),))
    yield from _tokens(analysis)
    if analysis.tenants:
        rows = [words.tenant_cells(t) for t in words.tenants(analysis, top)]
        yield Section("Tenants", (Table(words.TENANT_HEAD, rows),))
    yield from _sessions(analysis)
    yield from _log(analysis)
    yield Section("What the words mean", (Table(("word", "meaning"), _DEFINITIONS, words=(1,)),))


def _tone(analysis: Analysis) -> Tone:
    return _TONES.get(analysis.verdict.shape, "warn") if analysis.verdict.confident else "warn"


def _words(analysis: Analysis) -> Iterator[Block]:
    tone = _tone(analysis)
    pulse = words.pulse(analysis)
    yield Text((words.sentence(analysis.verdict.text), *([pulse] if pulse else ())), tone)
    if analysis.advice:
        yield Text(tuple(words.advice(analysis)), "warn")


def _rates(analysis: Analysis) -> Table:
    rows = [(f"over {title}", *words.rate_cells(r)) for title, r in words.rates(analysis)]
    return Table(("requests/s", *words.RATE_HEAD), rows)


def _dispersion(analysis: Analysis) -> Table:
    idc = analysis.idc
    windows = list(idc.requests)
    rows = [("requests", *(numbers.number(idc.requests[w]) for w in windows))]
    rows.append(("a Poisson stream, 99 %", *(words.band(analysis, w) for w in windows)))
    if idc.prompt_tokens is not None:
        found = idc.prompt_tokens
        rows.append(("prompt tokens", *(numbers.compact(found.get(w)) for w in windows)))
        same = numbers.compact(idc.prompt_tokens_reference)
        rows.append(("compound Poisson", *(same for _ in windows)))
    head = ("variance / mean", *(numbers.seconds(float(w)) for w in windows))
    return Table(head, rows)


def _classic(analysis: Analysis) -> Table:
    return Table(("figure", "here", "Poisson"), list(words.classic(analysis)))


def _refused(analysis: Analysis) -> Iterator[Block]:
    refused = dict(analysis.refused)
    if analysis.interarrival_refused:
        refused.setdefault("interarrival", analysis.interarrival_refused)
    if refused:
        rows = list(refused.items())
        yield Table(("not given", "because"), rows, words=(1,))


def _tokens(analysis: Analysis) -> Iterator[Section]:
    tokens = analysis.tokens
    if tokens.prompt is None and tokens.output is None:
        return
    compact = numbers.compact
    rows = [
        (name, *(compact(v) for v in (t.mean, t.p50, t.p90, t.p99, t.max, t.total)))
        for name, t in (("prompt", tokens.prompt), ("output", tokens.output))
        if t is not None
    ]
    per_request = Table(("tokens a request", "mean", "P50", "P90", "P99", "max", "total"), rows)
    rates = [
        (name, *words.rate_cells(r))
        for name, r in (("prompt", tokens.prompt_rate), ("output", tokens.output_rate))
        if r is not None
    ]
    title = f"tokens/s over {numbers.seconds(tokens.rate_window_s)}"
    per_second = Table((title, *words.RATE_HEAD), rates)
    yield Section("Tokens", (charts.tokens(analysis), per_request, per_second))


def _sessions(analysis: Analysis) -> Iterator[Section]:
    s = analysis.sessions
    if s is None:
        return
    number, seconds = numbers.number, numbers.seconds
    rows = [
        ("calls a session", number(s.calls_p50), number(s.calls_p99), number(s.calls_max)),
        ("calls at once", number(s.fan_out_p50), number(s.fan_out_p99), number(s.fan_out_max)),
        ("duration", seconds(s.duration_p50), seconds(s.duration_p99), ""),
        ("tokens a session", numbers.compact(s.tokens_p50), numbers.compact(s.tokens_p99), ""),
        (
            "tokens/s while it lasts",
            numbers.compact(s.tokens_per_second_p50),
            numbers.compact(s.tokens_per_second_p99),
            "",
        ),
    ]
    sample = numbers.plural(s.sessions, "session")
    if s.sampled_share < 1:
        sample += f", a sample of {numbers.percent(s.sampled_share)}"
    share = f"{numbers.percent(s.share_of_requests)} of all requests name one"
    about = f"{sample}; {share}. Calls at once: by {s.fan_out_from}."
    table = Table(("sessions", "P50", "P99", "max"), rows)
    yield Section("Agent sessions", (Text((s.verdict,)), table), about)


def _log(analysis: Analysis) -> Iterator[Section]:
    blocks: list[Block] = []
    told = [*words.origin(analysis.source), *map(words.sentence, analysis.notes)]
    if told:
        blocks.append(Text(tuple(told)))
    bad = words.bad_rows(analysis.source)
    if bad:
        lines = words.bad_lines(analysis.source)
        blocks.append(Text((f"{bad}; the first:" if lines else f"{bad}.", *lines), "warn"))
    blocks.append(Table(("of the log", ""), list(_facts(analysis))))
    yield Section("The log, and details for generators", tuple(blocks))


def _facts(analysis: Analysis) -> Iterator[tuple[str, str]]:
    number, seconds = numbers.number, numbers.seconds
    step = analysis.resolution_s
    yield "step of the stamps", "finer than 0.1 ms" if step == 0 else seconds(step)
    if analysis.holes:
        lost = sum(hole.duration for hole in analysis.holes)
        yield "stretches that look like missing data", f"{len(analysis.holes)}, {seconds(lost)}"
    details = analysis.details
    if details.gamma_shape is not None:
        yield "Gamma shape of the gaps (1: Poisson)", number(details.gamma_shape)
    if details.weibull_shape is not None:
        yield "Weibull shape of the gaps (1: Poisson)", number(details.weibull_shape)
    if details.mmpp2 is not None:
        m = details.mmpp2
        low = f"{numbers.rate(m.low_rps, 'req')} for {seconds(m.low_stay_s)}"
        high = f"{numbers.rate(m.high_rps, 'req')} for {seconds(m.high_stay_s)}"
        yield "two-state Poisson process (MMPP-2)", f"{low}, {high} on average"
    period = analysis.periodicity
    if period is None:
        return
    for name, spike in (("minute", period.minute), ("hour", period.hour), ("day", period.day)):
        if spike is not None:
            share = f"{numbers.percent(spike.share)} of all requests"
            busy = f"{seconds(spike.at)} in: {number(spike.ratio)} x the mean rate, {share}"
            yield f"busiest moment of the {name} ({period.clock})", busy
    for lag, r in period.autocorrelation[:3]:
        yield f"autocorrelation at {seconds(lag)}", number(r)
