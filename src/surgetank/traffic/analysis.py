"""What `analyze` says of a stream of requests: values with units and windows, ready for a report.

Rule: a figure that cannot be had is None, never 0; `refused` says why. `to_json` is the stable
schema: keys may be added, none goes away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.trace import Source

WINDOWS: Final = (1, 2, 5, 10, 30, 60, 300, 600)
"""Seconds of the windows of the index of dispersion."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RateFigures:
    """Requests per second over full windows of one width."""

    mean: float | None = None
    std: float | None = None  # sample standard deviation between windows
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Dispersion:
    """IDC(w) = variance / mean of the counts in full windows of w seconds; keys are w ("1" ...).

    For prompt tokens the variance and the mean are those of token sums, in tokens. `band` is the
    99 % range of a Poisson stream of this length (for tokens: compound Poisson with these prompts),
    `reference` the value it scatters about: 1, or E[X^2] / E[X] for tokens X.
    """

    requests: dict[str, float | None]
    prompt_tokens: dict[str, float | None] | None
    requests_band: dict[str, tuple[float, float] | None]
    prompt_tokens_band: dict[str, tuple[float, float] | None] | None
    prompt_tokens_reference: float | None  # tokens
    windows: dict[str, int]  # number of full windows of each width


@dataclass(frozen=True, slots=True)
class Interarrival:
    """Times between successive arrivals (s), each beside its value in a Poisson stream."""

    mean: float
    p50: float
    p99: float
    cv: float
    poisson: dict[str, float]  # mean, p50, p99, cv of an exponential with this mean
    p50_to_mean: float  # 0.69 in a Poisson stream, smaller in clustered ones
    p99_to_mean: float  # 4.61 in a Poisson stream, larger in clustered ones
    zero_share: float  # share of gaps that are exactly 0


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Tokens per request (exact mean and maximum, quantiles within 0.4 %)."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    total: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens per request, and tokens per second over full windows of 1 s (10 s when refused)."""

    prompt: TokenFigures | None
    output: TokenFigures | None
    prompt_rate: RateFigures | None  # tokens/s
    output_rate: RateFigures | None  # tokens/s
    rate_window_s: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The stream in one word and in plain words."""

    shape: str  # poisson | clumps | pulses | quantised
    beneath: str  # the shape from the finest window on that the stamps allow; no `quantised`
    text: str
    confident: bool  # false: too few requests, or too short a log, to be sure


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """One tenant's part; variance over windows of `window_s` seconds, IDC at 10 s and above."""

    name: str  # "" for rows that name none
    requests: int
    share: float  # of all requests
    token_share: float | None  # of all prompt and output tokens
    variance_share: float | None  # covariance with the total / variance of the total
    rate: float  # requests/s over the whole span
    peak_rate: float | None  # requests/s in its busiest window; None: in no full window
    idc: dict[str, float | None]
    prompt_tokens: int | None  # None: no row of the log states them
    output_tokens: int | None
    window_s: int


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Agent sessions: calls, concurrency and tokens of the sampled ones."""

    sessions: int  # in the sample
    sampled_share: float  # of all sessions
    calls_mean: float
    calls_p50: float
    calls_p99: float
    calls_max: int
    fan_out_p50: float | None  # peak calls of a session under way at once
    fan_out_p99: float | None
    fan_out_max: int | None
    fan_out_from: str  # "durations", or "calls within 1 s" when the log has no durations
    duration_p50: float  # s, first call to the last one's end (or arrival)
    duration_p99: float
    tokens_p50: float | None  # tokens per session
    tokens_p99: float | None
    tokens_per_second_p50: float | None  # burn rate, sessions of 1 s and longer
    tokens_per_second_p99: float | None
    share_of_requests: float  # calls with a session / all requests
    verdict: str  # flat | fan-out | chains, with why


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch in which the rate stood clearly above its surroundings."""

    start: float  # in the log's own time (s)
    duration: float  # s
    base: float  # requests/s around it
    peak: float  # requests/s in its busiest window of `window_s`
    requests: float  # above the base
    tokens: float | None  # prompt and output tokens above the base
    window_s: float  # s, width of the windows it was found with
    tenant: str | None  # who sent most of what was above the base; None when nobody or unknown
    tenant_share: float | None  # of the requests above the base


@dataclass(frozen=True, slots=True)
class Pulse:
    """A periodic square pulse fitted to the rate; `load --pulse` plays it back."""

    base_rps: float
    peak_rps: float
    width_s: float
    period_s: float
    start_s: float  # of the first pulse, in the log's own time
    cycles: float  # periods in the log
    explained: float  # share of the rate's variance over the period that the pulse explains


@dataclass(frozen=True, slots=True)
class Spike:
    """A phase of the minute, hour or day that is busier than the rest."""

    at: float  # s from the full minute, hour or day (UTC, or the log's origin)
    ratio: float  # rate there / mean rate
    share: float  # of all requests


@dataclass(frozen=True, slots=True)
class Periodicity:
    """Repetition in the counts."""

    minute: Spike | None
    hour: Spike | None
    day: Spike | None
    autocorrelation: tuple[tuple[float, float], ...]  # (lag s, r) of its first high peaks
    clock: str  # "UTC" for Unix stamps, "origin" for relative ones


@dataclass(frozen=True, slots=True)
class Hole:
    """A pause that looks like missing data; windows that touch it are left out."""

    start: float
    duration: float


@dataclass(frozen=True, slots=True)
class Mmpp2:
    """Two-state Markov-modulated Poisson process: rates (requests/s) and mean stays (s)."""

    low_rps: float
    high_rps: float
    low_stay_s: float
    high_stay_s: float


@dataclass(frozen=True, slots=True)
class Details:
    """Parameters that the generators take."""

    gamma_shape: float | None = None  # of the gaps, maximum likelihood; 1 in a Poisson stream
    weibull_shape: float | None = None  # of the gaps, maximum likelihood; 1 in a Poisson stream
    mmpp2: Mmpp2 | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A curve: x in seconds (log's own time), y per second; at most about 2,000 points."""

    window_s: float
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class GapBars:
    """Share of gaps in each bin, beside that of an exponential of the same mean."""

    edges: Floats  # s, one more than the shares
    share: Floats
    exponential: Floats


@dataclass(frozen=True, slots=True)
class Stack:
    """Requests/s per tenant on one grid; the last name may be "others"."""

    window_s: float
    x: Floats
    names: tuple[str, ...]
    y: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class IdcCurve:
    """IDC over the windows that have one, with the 99 % range and the value of a Poisson stream."""

    window_s: Floats
    idc: Floats
    low: Floats  # NaN where there is no range
    high: Floats
    reference: float


@dataclass(frozen=True, slots=True)
class Series:
    """What the charts draw."""

    rates: tuple[Line, ...] = ()  # requests/s, at 1, 10 and 60 s; maxima survive the thinning
    prompt_rate: Line | None = None  # tokens/s
    output_rate: Line | None = None
    gaps: GapBars | None = None
    tenants: Stack | None = None
    idc_requests: IdcCurve | None = None
    idc_prompt_tokens: IdcCurve | None = None  # in tokens
    episodes: tuple[tuple[float, float], ...] = ()  # (start, end) of each, by start


@dataclass(frozen=True, slots=True)
class Analysis:
    """All figures of one stream."""

    source: Source
    resolution_s: float | None  # step of the stamps (s); 0: finer than 0.1 ms; None: cannot be told
    span_s: float  # first arrival to the last, holes included
    requests: int
    rate: RateFigures  # over windows of 1 s; mean = requests / covered span
    rate_per_minute: RateFigures | None  # requests/s over windows of 60 s
    rate_per_10min: RateFigures | None  # requests/s over windows of 600 s
    cv_1s: float | None  # std / mean of counts per second
    poisson_cv_1s: float | None  # the same of a Poisson stream: 1 / sqrt(mean count)
    excess_cv_1s: float | None  # sqrt(max(0, variance - mean)) / mean of counts per second
    peak_to_mean: dict[str, float | None]  # highest / mean count at 1, 10, 60 s
    capacity_delay_s: float
    peak_to_mean_at_delay: float | None  # the same over windows of the capacity delay
    idc: Dispersion
    interarrival: Interarrival | None
    interarrival_refused: str | None
    tokens: Tokens
    verdict: Verdict
    tenants: tuple[TenantFigures, ...]  # largest first, at most 50
    others: TenantFigures | None  # all further tenants together
    sessions: SessionFigures | None
    episodes: tuple[Episode, ...]  # by start; the 50 largest
    pulse: Pulse | None
    burst_seconds: float | None  # how long a burst lasts
    advice: tuple[str, ...]
    periodicity: Periodicity | None
    holes: tuple[Hole, ...]
    details: Details
    refused: dict[str, str]  # figure -> why it is None
    notes: tuple[str, ...]  # what a reader of the figures must know
    series: Series = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Give the stable schema: plain numbers, strings, lists and None; without the series."""
        whole = {
            f.name: plain(getattr(self, f.name))
            for f in fields(self)
            if f.name not in {"series", "source", "resolution_s", "idc"}
        }
        source = {
            "path": self.source.path,
            "format": self.source.format,
            "rows": self.source.rows,
            "skipped": self.source.skipped,
            "resolution_s": plain(self.resolution_s),
            "arrival_from": self.source.arrival_from,
            "ignored": dict(self.source.ignored),
            "bad": plain(self.source.bad),
            "notes": list(self.source.notes),
        }
        idc = plain(self.idc)
        band = {
            "requests": idc.pop("requests_band"),
            "prompt_tokens": idc.pop("prompt_tokens_band"),
            "prompt_tokens_reference": idc.pop("prompt_tokens_reference"),
            "windows": idc.pop("windows"),
        }
        return {"source": source, **whole, "idc": idc, "idc_band": band}


def plain(value: Any) -> Any:
    """Turn a value into what JSON knows; what is not finite becomes None."""
    if value is None or isinstance(value, bool | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if isfinite(value) else None
    return [plain(item) for item in value]
