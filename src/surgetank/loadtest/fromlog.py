"""The load of a log as shapes: for each tenant the pulse that `analyze` fits, else its clumps.

Rule: what is played back is the fit, not the log: it can go on for as long as one likes, at another
rate, and its pulses come at known times. `replay` sends the log itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from surgetank.errors import InputError
from surgetank.loadtest.replay import UNNAMED
from surgetank.loadtest.shapes import Clumps, Pulses, Shape, Steady
from surgetank.loadtest.tenants import TenantLoad
from surgetank.traffic.analysis import Analysis, Pulse
from surgetank.traffic.burstiness import analyse
from surgetank.traffic.tokencounts import Observed, TokenCounts
from surgetank.traffic.trace import Batch, Counts, Labels, Trace

MOST_TENANTS: Final = 8  # with a name of their own; all further ones together are OTHERS
OTHERS: Final = "others"
LEAST_PERIODS: Final = 3
_LEAST_RISE: Final = 1.3  # peak / base, as of a pulse that is fitted
_POISSON: Final = 1.2  # an IDC up to which clumps are not worth their name


def tenants_of(
    trace: Trace,
    *,
    name: str,
    duration: float,
    scale: float,
    prompt: TokenCounts,
    output: TokenCounts,
) -> list[TenantLoad]:
    """Fit what each tenant sends; `scale` multiplies all rates. Raises InputError.

    A tenant without a pulse of its own that rises with that of all together gets its part of it.
    `prompt` and `output` hold where the log has no tokens.
    """
    batch = trace.batch.take(np.isfinite(trace.batch.arrived))
    if len(batch) < 2 or batch.arrived[-1] <= batch.arrived[0]:
        raise InputError(f"{name}: too few requests to fit a load to; see `surgetank replay`")
    whole = analyse(Trace(batch))
    parts = list(_parts(batch))
    analyses = [analyse(Trace(part)) for _, part in parts]
    if whole.pulse is None and all(analysis.pulse is None for analysis in analyses):
        raise InputError(
            f"{name}: no pulse can be fitted ({whole.verdict.shape}: {_short(whole)}); send the log"
            " itself with `surgetank replay`, or its mean and dispersion with --shape mmpp"
        )
    origin = float(batch.arrived[0])
    made = []
    for (tenant, part), analysis in zip(parts, analyses, strict=True):
        pulse = analysis.pulse or _part_of(whole.pulse, part, batch)
        made.append(
            TenantLoad(
                tenant,
                _loose(analysis, duration, scale)
                if pulse is None
                else _pulses(pulse, origin, duration, scale),
                _observed(part.prompt_tokens) or prompt,
                _observed(part.output_tokens) or output,
                said={"from_log": name},
            )
        )
    _long_enough(made, name, duration)
    return made


def _parts(batch: Batch) -> Iterator[tuple[str, Batch]]:
    """Give the rows of each of the largest tenants, then those of all others."""
    labels = batch.tenant or Labels(np.full(len(batch), -1, np.int32), ())
    codes, counts = np.unique(labels.codes, return_counts=True)
    largest = codes[np.argsort(-counts, kind="stable")][:MOST_TENANTS]
    for code in largest.tolist():
        yield (labels.names[code] if code >= 0 else UNNAMED), batch.take(labels.codes == code)
    rest = ~np.isin(labels.codes, largest)
    if rest.any():
        yield OTHERS, batch.take(rest)


def _part_of(pulse: Pulse | None, part: Batch, whole: Batch) -> Pulse | None:
    """Fit a tenant's two levels to the pulse of all; None when it does not rise with it."""
    if pulse is None:
        return None
    first, last = float(whole.arrived[0]), float(whole.arrived[-1])
    high = (part.arrived - pulse.start_s) % pulse.period_s < pulse.width_s
    inside = (last - first) * pulse.width_s / pulse.period_s
    outside = last - first - inside
    up, down = int(high.sum()), int((~high).sum())
    peak, base = up / inside, down / outside
    # As many by chance: of all its requests, the pulses' part of the time, and three deviations.
    share = inside / (inside + outside)
    surprising = up > share * (up + down) + 3 * np.sqrt(share * (1 - share) * (up + down))
    if not surprising or peak < _LEAST_RISE * base:
        return None
    return replace(pulse, base_rps=base, peak_rps=peak)


def _loose(analysis: Analysis, duration: float, scale: float) -> Shape:
    """Give the tenant's rate, and its clumps where it has some."""
    rate = (analysis.rate.mean or analysis.requests / max(analysis.span_s, 1.0)) * scale
    known = [idc for idc in analysis.idc.requests.values() if idc is not None]
    idc = known[min(3, len(known) - 1)] if known else 1.0  # at 10 s, or what there is below
    return Steady(rate, duration) if idc <= _POISSON else Clumps(rate, idc, duration)


def _pulses(pulse: Pulse, origin: float, duration: float, scale: float) -> Pulses:
    return Pulses(
        base=pulse.base_rps * scale,
        peak=pulse.peak_rps * scale,
        width=pulse.width_s,
        period=pulse.period_s,
        duration=duration,
        start=(pulse.start_s - origin) % pulse.period_s,
    )


def _observed(counts: Counts | None) -> Observed | None:
    if counts is None:
        return None
    known = counts[counts >= 1]
    return Observed(known) if len(known) else None


def _long_enough(tenants: list[TenantLoad], name: str, duration: float) -> None:
    longest = max((t.shape.period for t in tenants if isinstance(t.shape, Pulses)), default=0.0)
    if duration < LEAST_PERIODS * longest:
        raise InputError(
            f"{name}: its pulses come every {longest:,.0f} s: give --duration, at least"
            f" {LEAST_PERIODS * longest:,.0f} for {LEAST_PERIODS} of them (it is {duration:,.0f})"
        )


def _short(analysis: Analysis) -> str:
    return " ".join(analysis.verdict.text.split())[:160]
