"""From an accumulator's sums to an `Analysis`: which figure comes from where, and what is refused.

Rule: a figure that the stamps cannot carry is refused with a reason, not given with a warning.
"""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.advice import advise, burst_seconds
from surgetank.traffic.analysis import (
    WINDOWS,
    Analysis,
    Details,
    Dispersion,
    Interarrival,
    RateFigures,
    TokenFigures,
    Tokens,
)
from surgetank.traffic.binned import Binned, bin_stream
from surgetank.traffic.dispersion import compound_band, index_of_dispersion, poisson_band
from surgetank.traffic.episodes import find_episodes
from surgetank.traffic.gapfit import gamma_shape, weibull_shape
from surgetank.traffic.loghistogram import LogHistogram
from surgetank.traffic.mmppfit import fit_mmpp2
from surgetank.traffic.periodicity import find_periodicity
from surgetank.traffic.pulsefit import fit_pulse
from surgetank.traffic.resolution import resolution, step_of_bins
from surgetank.traffic.series import draw_series
from surgetank.traffic.sessionfigures import session_figures
from surgetank.traffic.tenantfigures import tenant_figures
from surgetank.traffic.trace import Source
from surgetank.traffic.verdict import judge, with_rhythm

if TYPE_CHECKING:
    from surgetank.traffic.burstiness import Accumulator

EXPONENTIAL_P50: Final = log(2.0)  # of the mean
EXPONENTIAL_P99: Final = log(100.0)
STEPS_IN_A_WINDOW: Final = 3  # a window of fewer steps counts the steps, not the traffic
EVEN_STEPS: Final = 20  # in a window: one more or less is 5 % of it
LATE_SHARE: Final = 0.01  # of the rows, from which gaps are refused


def figures_of(
    taken: Accumulator, source: Source | None, *, capacity_delay: float, force: bool
) -> Analysis:
    """Make all figures; see `Accumulator.analyse`."""
    binned = bin_stream(taken.seconds, taken.first, taken.last)
    gaps, dropped = _all_gaps(taken, binned)
    step = _step(taken, gaps, binned)
    refusals = Refusals(binned, step, force=force)
    idc = _dispersion(taken, binned, refusals)
    interarrival, gaps_refused = _interarrival(taken, gaps, step, force=force)
    rate = _rates(binned, binned.counts, 1, refusals, "rate")
    cv, poisson_cv, excess = _variation(binned, refusals)
    verdict = judge(binned, idc, step, refusals.finest())
    episodes = find_episodes(binned, taken.tenants, refusals.even())
    pulse = fit_pulse(binned, refusals.finest()) if verdict.beneath != "poisson" else None
    if pulse is not None:
        verdict = with_rhythm(verdict, pulse.period_s)
    length = burst_seconds(verdict, episodes, pulse)
    tenants, others = tenant_figures(taken.tenants, binned)
    delay = max(ceil(capacity_delay), 1)
    return Analysis(
        source=source or Source(rows=taken.requests + taken.unusable),
        resolution_s=step,
        span_s=binned.span,
        requests=taken.requests,
        rate=rate,
        rate_per_minute=_rates(binned, binned.counts, 60, refusals, "rate_per_minute"),
        rate_per_10min=_rates(binned, binned.counts, 600, refusals, "rate_per_10min"),
        cv_1s=cv,
        poisson_cv_1s=poisson_cv,
        excess_cv_1s=excess,
        peak_to_mean={
            str(w): _peak_to_mean(binned, w, refusals, f"peak_to_mean.{w}") for w in (1, 10, 60)
        },
        capacity_delay_s=capacity_delay,
        peak_to_mean_at_delay=_peak_to_mean(binned, delay, refusals, "peak_to_mean_at_delay"),
        idc=idc,
        interarrival=interarrival,
        interarrival_refused=gaps_refused,
        tokens=_tokens(taken, binned, refusals),
        verdict=verdict,
        tenants=tenants,
        others=others,
        sessions=session_figures(taken.sessions, taken.requests),
        episodes=episodes,
        pulse=pulse,
        burst_seconds=length,
        advice=advise(
            binned,
            verdict,
            episodes,
            pulse,
            length=length,
            capacity_delay=capacity_delay,
            finest=refusals.even(),
        ),
        periodicity=find_periodicity(binned, refusals.finest()),
        holes=binned.holes,
        details=_details(binned, gaps if interarrival is not None else None, refusals),
        refused=refusals.reasons,
        notes=_notes(taken, binned, dropped),
        series=draw_series(
            taken,
            binned,
            gaps if interarrival is not None else None,
            refusals,
            idc=idc,
            episodes=episodes,
        ),
    )


def _step(taken: Accumulator, gaps: LogHistogram | None, binned: Binned) -> float | None:
    """Step of the stamps; from the bins alone when gaps were not taken."""
    if gaps is not None:
        return resolution(taken.steps, gaps)
    exact = taken.steps.round_step()
    coarse = step_of_bins(binned.counts, binned.width)
    return max(exact or 0.0, coarse) if exact is not None or coarse else None


class Refusals:
    """Which window widths the stamps allow, and the reasons given so far."""

    def __init__(self, binned: Binned, step: float | None, *, force: bool) -> None:
        self.reasons: dict[str, str] = {}
        self._binned = binned
        self._step = step or 0.0
        self._force = force

    def why(self, window: float) -> str | None:
        """Say why windows of so many seconds are no good; None when they are, or are forced."""
        return None if self._force and self._binned.fits(window) else self._forbids(window)

    def _forbids(self, window: float) -> str | None:
        if not self._binned.fits(window):
            return (
                f"the span is so long that requests are counted per {self._binned.width} s:"
                f" windows of {window:g} s cannot be made of these"
            )
        multiple = self._step and abs(window / self._step - round(window / self._step)) < 1e-9
        if multiple or window >= STEPS_IN_A_WINDOW * self._step:
            return None
        return (
            f"stamps come in steps of {self._step:.3g} s: windows of {window:g} s count the steps,"
            " not the traffic"
        )

    def allows(self, window: float, figure: str) -> bool:
        """Tell whether a figure over such windows may be given; if not, remember why."""
        reason = self.why(window)
        if reason is not None:
            self.reasons[figure] = reason
        return reason is None

    def finest(self) -> int:
        """Give the narrowest window (s) that the stamps carry, whatever is forced."""
        for window in (*WINDOWS, 3600, 6 * 3600, 86400):
            if self._forbids(window) is None:
                return window
        return self._binned.width

    def even(self) -> int:
        """Give the narrowest window (s) in which a step more or less is no burst.

        A window of 10 s holds three or four steps of 3 s: every third looks a third busier.
        """
        for window in (*WINDOWS, 3600, 6 * 3600, 86400):
            multiple = self._step and abs(window / self._step - round(window / self._step)) < 0.01
            if self._forbids(window) is None and (multiple or window >= EVEN_STEPS * self._step):
                return window
        return max(self._binned.width, 86400)


def _dispersion(taken: Accumulator, binned: Binned, refusals: Refusals) -> Dispersion:
    requests: dict[str, float | None] = {}
    bands: dict[str, tuple[float, float] | None] = {}
    tokens: dict[str, float | None] = {}
    token_bands: dict[str, tuple[float, float] | None] = {}
    windows: dict[str, int] = {}
    prompts = taken.prompt if binned.prompt is not None else None
    reference = None
    if prompts is not None and prompts.number and prompts.mean:
        reference = prompts.mean_square / prompts.mean
    for w in WINDOWS:
        key = str(w)
        requests[key] = tokens[key] = bands[key] = token_bands[key] = None
        windows[key] = 0
        if not refusals.allows(w, f"idc.{w}"):
            continue
        sums = binned.windows(binned.counts, w)
        windows[key] = len(sums)
        if len(sums) < 2:
            refusals.reasons[f"idc.{w}"] = f"fewer than two full windows of {w} s in the log"
            continue
        requests[key], bands[key] = index_of_dispersion(sums), poisson_band(len(sums))
        if binned.prompt is None:
            continue
        tokens[key] = index_of_dispersion(binned.windows(binned.prompt, w))
        if reference is not None and prompts is not None:
            token_bands[key] = compound_band(
                len(sums), reference, prompts.number, prompts.mean_square, prompts.fourth_moment()
            )
    has_tokens = binned.prompt is not None
    return Dispersion(
        requests=requests,
        prompt_tokens=tokens if has_tokens else None,
        requests_band=bands,
        prompt_tokens_band=token_bands if has_tokens else None,
        prompt_tokens_reference=reference,
        windows=windows,
    )


def _rates(
    binned: Binned, column: NDArray[np.int64], window: int, refusals: Refusals, figure: str
) -> RateFigures:
    """Give amounts per second over full windows; the mean holds whatever the windows."""
    mean = float(column.sum()) / binned.covered if binned.covered > 0 else None
    if not refusals.allows(window, figure):
        return RateFigures(mean=mean)
    sums = binned.windows(column, window) / window
    if not len(sums) or (column.any() and not sums.any()):
        what = "with a request " if len(sums) else ""
        refusals.reasons[figure] = f"no full window of {window} s {what}in the log"
        return RateFigures(mean=mean)
    p50, p95, p99 = np.quantile(sums, (0.5, 0.95, 0.99)).tolist()
    std = float(sums.std(ddof=1)) if len(sums) > 1 else None
    return RateFigures(mean, std, p50, p95, p99, float(sums.max()))


def _variation(
    binned: Binned, refusals: Refusals
) -> tuple[float | None, float | None, float | None]:
    """CV per second, that of a Poisson stream of this rate, and what exceeds it."""
    if not refusals.allows(1, "cv_1s"):
        return None, None, None
    sums = binned.windows(binned.counts, 1)
    if len(sums) < 2 or not sums.any():
        refusals.reasons["cv_1s"] = "fewer than two full seconds with a request in the log"
        return None, None, None
    mean, variance = float(sums.mean()), float(sums.var(ddof=1))
    return sqrt(variance) / mean, 1 / sqrt(mean), sqrt(max(variance - mean, 0.0)) / mean


def _peak_to_mean(binned: Binned, window: float, refusals: Refusals, figure: str) -> float | None:
    if not refusals.allows(window, figure):
        return None
    sums = binned.windows(binned.counts, window)
    if not len(sums) or not sums.any():
        refusals.reasons[figure] = f"no full window of {window:g} s in the log"
        return None
    return float(sums.max() / sums.mean())


def _all_gaps(taken: Accumulator, binned: Binned) -> tuple[LogHistogram | None, int]:
    """Give the histogram of the gaps without those across holes and to stray stamps."""
    if taken.gaps is None or not taken.gaps.rows:
        return None, 0
    histogram, largest = taken.gaps.finished()
    out = len(binned.holes)
    if binned.strays:
        # Whatever is longer than the log itself leads to a stray stamp.
        out += sum(g > binned.span for g in largest)
    kept = largest[: len(largest) - out]
    histogram.add(np.array(kept))
    return histogram, out


def _interarrival(
    taken: Accumulator,
    gaps: LogHistogram | None,
    step: float | None,
    *,
    force: bool,
) -> tuple[Interarrival | None, str | None]:
    if gaps is None or taken.gaps is None:
        return None, "only counts per second were taken"
    if taken.gaps.rows < taken.requests:
        return None, "part of the log was counted per second before it came here"
    if gaps.number < 2 or not gaps.mean:
        return None, "fewer than three requests at different times"
    if step and step > gaps.mean and not force:
        return None, (
            f"stamps come in steps of {step:.3g} s, coarser than the mean gap of {gaps.mean:.3g} s:"
            " gaps would show the steps, not the traffic"
        )
    if taken.gaps.overlap and not force:
        return None, "parts that overlap in time were counted apart: sort the log by time"
    if taken.gaps.late > LATE_SHARE * taken.gaps.rows and not force:
        return None, (
            f"{taken.gaps.late} rows fall among rows already counted (far out of order): sort the"
            " log by time"
        )
    mean = gaps.mean
    variance = max(gaps.mean_square - mean * mean, 0.0) * gaps.number / (gaps.number - 1)
    p50, p99 = gaps.quantile(0.5), gaps.quantile(0.99)
    return (
        Interarrival(
            mean=mean,
            p50=p50,
            p99=p99,
            cv=sqrt(variance) / mean,
            poisson={
                "mean": mean,
                "p50": EXPONENTIAL_P50 * mean,
                "p99": EXPONENTIAL_P99 * mean,
                "cv": 1.0,
            },
            p50_to_mean=p50 / mean,
            p99_to_mean=p99 / mean,
            zero_share=float(gaps.counts[0] / gaps.number),
        ),
        None,
    )


def _tokens(taken: Accumulator, binned: Binned, refusals: Refusals) -> Tokens:
    window = max(refusals.finest(), 1)
    rates = [
        None if column is None else _rates(binned, column, window, refusals, name)
        for name, column in (
            ("tokens.prompt_rate", binned.prompt),
            ("tokens.output_rate", binned.output),
        )
    ]
    return Tokens(
        prompt=_token_figures(taken.prompt),
        output=_token_figures(taken.output),
        prompt_rate=rates[0],
        output_rate=rates[1],
        rate_window_s=window,
    )


def _token_figures(tokens: LogHistogram | None) -> TokenFigures | None:
    if tokens is None or not tokens.number:
        return None
    return TokenFigures(
        mean=tokens.mean,
        p50=tokens.quantile(0.5),
        p90=tokens.quantile(0.9),
        p99=tokens.quantile(0.99),
        max=tokens.largest,
        total=int(tokens.moments[1]),
    )


def _details(binned: Binned, gaps: LogHistogram | None, refusals: Refusals) -> Details:
    return Details(
        gamma_shape=None if gaps is None else gamma_shape(gaps),
        weibull_shape=None if gaps is None else weibull_shape(gaps),
        mmpp2=fit_mmpp2(binned, refusals.finest()),
    )


def _notes(taken: Accumulator, binned: Binned, dropped: int) -> tuple[str, ...]:
    notes = []
    if taken.unusable:
        notes.append(f"{taken.unusable} rows have no usable time (NaN, infinite): left out")
    if binned.strays:
        notes.append(
            f"{binned.strays} rows lie absurdly far from all others in time: left out of every"
            " figure over time (tokens and tenants' totals still have them)"
        )
    notes.extend(
        f"no request for {hole.duration:.0f} s from {hole.start:.0f} on, far longer than every"
        " other pause: taken as missing data, and left out"
        for hole in binned.holes
    )
    if taken.gaps is not None and taken.gaps.late:
        notes.append(
            f"{taken.gaps.late} rows came too late to be put in order: left out of the gaps"
        )
    if binned.width > 1:
        notes.append(f"the span is so long that requests are counted per {binned.width} s")
    if taken.sessions is not None and taken.sessions.level:
        notes.append(f"sessions: a sample, one in {2**taken.sessions.level}, by name")
    if dropped and not (binned.strays or binned.holes):
        notes.append(f"{dropped} gaps left out")
    return tuple(notes)
