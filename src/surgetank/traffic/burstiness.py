"""How bursty a stream of requests is: one pass, bounded memory, parts that merge.

An `Accumulator` takes batches in the log's order and gives an `Analysis`. The same one serves a
file, a live window, and the parts of a log that were read side by side.

Exact in any order of rows and merges: counts and token sums per second (coarser bins when the span
is long, see `seconds`), moments of tokens, totals per tenant (up to 10,000 names). Exact when rows
are nearly in order (see `gaps`): times between arrivals. Approximate: quantiles of tokens and gaps
(logarithmic bins), sessions beyond half a million calls (a sample of whole sessions).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import Analysis
from surgetank.traffic.gaps import Gaps
from surgetank.traffic.loghistogram import LogHistogram
from surgetank.traffic.resolution import StampSteps
from surgetank.traffic.seconds import Seconds
from surgetank.traffic.sessions import Sessions
from surgetank.traffic.tenants import Tenants
from surgetank.traffic.trace import Batch, Source, Trace

FARTHEST: Final = 1e12  # seconds from the origin (31,000 years): beyond it nothing is a time
CAPACITY_DELAY: Final = 60.0  # seconds from the decision to a replica that serves

Columns = NDArray[np.int64]


class Accumulator:
    """Sums of a stream of requests, from which `analyse` makes the figures."""

    def __init__(
        self, *, counts_only: bool = False, by_tenant: bool = True, by_session: bool = True
    ) -> None:
        """With `counts_only`, only requests and tokens per second are kept: no gaps, no quantiles.

        `by_tenant` and `by_session` can be turned off by themselves.
        """
        self.counts_only = counts_only
        self.requests = 0
        self.unusable = 0  # rows whose time is no time (NaN, infinite, absurd)
        self.first = np.inf  # earliest and latest stamp
        self.last = -np.inf
        self.seconds = Seconds()
        self.steps = StampSteps()
        self.gaps = None if counts_only else Gaps()
        self.prompt = None if counts_only else LogHistogram(low=0, high=31, fine=7)
        self.output = None if counts_only else LogHistogram(low=0, high=31, fine=7)
        self.tenants = Tenants() if by_tenant and not counts_only else None
        self.sessions = Sessions() if by_session and not counts_only else None

    def add(self, batch: Batch) -> None:
        """Take rows in the log's order."""
        if not len(batch):
            return
        low, high = float(batch.arrived.min()), float(batch.arrived.max())
        if not (low > -FARTHEST and high < FARTHEST):  # true for NaN as well
            usable = np.abs(batch.arrived) < FARTHEST
            self.unusable += int(len(batch) - usable.sum())
            if usable.any():
                self.add(batch.take(usable))
            return
        self.requests += len(batch)
        self.first, self.last = min(self.first, low), max(self.last, high)
        stamps = np.ascontiguousarray(batch.arrived)
        prompt, output = _column(batch.prompt_tokens), _column(batch.output_tokens)
        self.seconds.add(stamps, prompt, output)
        self.steps.add(stamps)
        if self.gaps is not None:
            self.gaps.add(stamps)
        for histogram, tokens in ((self.prompt, prompt), (self.output, output)):
            if histogram is not None and tokens is not None:
                histogram.add(tokens)
        if self.tenants is not None and batch.tenant is not None:
            self.tenants.add(stamps, batch.tenant, prompt, output)
        if self.sessions is not None:
            self.sessions.add(batch)

    def add_seconds(
        self,
        first_second: int,
        counts: Columns,
        prompt_sums: Columns | None = None,
        output_sums: Columns | None = None,
        *,
        first: float | None = None,
        last: float | None = None,
    ) -> None:
        """Take what was counted elsewhere: `counts[i]` requests arrived in second `first_second`+i.

        `first` and `last` are the exact stamps, when known; else the seconds are taken as full.
        """
        used = np.flatnonzero(counts)
        if not len(used):
            return
        seconds = first_second + used
        self.seconds.add_bins(
            seconds.astype(np.int64),
            counts[used],
            None if prompt_sums is None else prompt_sums[used],
            None if output_sums is None else output_sums[used],
        )
        self.requests += int(counts.sum())
        self.first = min(self.first, float(seconds[0]) if first is None else first)
        self.last = max(self.last, float(seconds[-1] + 1) if last is None else last)

    def merge(self, other: Accumulator) -> None:
        """Take another part of the same stream, as if its rows had come here."""
        if self.counts_only != other.counts_only:
            raise ValueError("parts with and without counts_only do not merge")
        self.requests += other.requests
        self.unusable += other.unusable
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.seconds.merge(other.seconds)
        self.steps.merge(other.steps)
        if self.gaps is not None and other.gaps is not None:
            self.gaps.merge(other.gaps)
        if self.prompt is not None and other.prompt is not None:
            self.prompt.merge(other.prompt)
        if self.output is not None and other.output is not None:
            self.output.merge(other.output)
        if self.tenants is not None and other.tenants is not None:
            self.tenants.merge(other.tenants)
        if self.sessions is not None and other.sessions is not None:
            self.sessions.merge(other.sessions)

    def analyse(
        self,
        source: Source | None = None,
        *,
        capacity_delay: float = CAPACITY_DELAY,
        force: bool = False,
    ) -> Analysis:
        """Make the figures of what was taken so far.

        `capacity_delay` is how long added capacity takes to serve (s). Figures that the stamps'
        resolution forbids are None, with the reason in `refused`; `force` gives them all the same.
        """
        from surgetank.traffic.figures import figures_of  # noqa: PLC0415 - figures take this class

        return figures_of(self, source, capacity_delay=capacity_delay, force=force)


def analyse(
    trace: Trace, *, capacity_delay: float = CAPACITY_DELAY, force: bool = False
) -> Analysis:
    """Make the figures of a whole trace."""
    accumulator = Accumulator()
    accumulator.add(trace.batch)
    return accumulator.analyse(trace.source, capacity_delay=capacity_delay, force=force)


def _column(tokens: Columns | None) -> Columns | None:
    """Give the column; None when no row states a number: a log without tokens has no rate of 0."""
    if tokens is None or tokens.max() < 0:
        return None
    return np.ascontiguousarray(tokens, np.int64)
