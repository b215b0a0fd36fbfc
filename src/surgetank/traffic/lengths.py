"""From arrival times to a trace: token lengths with known moments, and tenants laid together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from surgetank.traffic.trace import Batch, Counts, Labels, Source, Trace, concatenate

LONGEST: Final = 1 << 20  # tokens: no context is longer


@dataclass(frozen=True, slots=True)
class LengthSpec:
    """Log-normal token lengths: exp(N(log median, sigma^2)), at least 1, at most `longest`."""

    median: float  # tokens
    sigma: float = 1.0  # of the logarithm; 0: every request has the median
    longest: int = LONGEST

    @property
    def mean(self) -> float:
        """Mean tokens, as long as `longest` cuts next to nothing."""
        return self.median * exp(self.sigma**2 / 2)


CHAT_PROMPT: Final = LengthSpec(median=1000.0, sigma=1.0)
CHAT_OUTPUT: Final = LengthSpec(median=150.0, sigma=0.8)


def draw_lengths(rng: Generator, spec: LengthSpec, number: int) -> Counts:
    """Draw token lengths."""
    if spec.median < 1 or spec.sigma < 0:
        raise ValueError(f"median = {spec.median}, sigma = {spec.sigma}: must be >= 1 and >= 0")
    drawn = spec.median * np.exp(spec.sigma * rng.standard_normal(number))
    return np.clip(np.round(drawn), 1, spec.longest).astype(np.int64)


def trace_of(
    rng: Generator,
    times: NDArray[np.float64],
    *,
    prompt: LengthSpec = CHAT_PROMPT,
    output: LengthSpec = CHAT_OUTPUT,
    tenant: str = "",
) -> Trace:
    """Give arrivals their token lengths, and a tenant if it is named."""
    return Trace.of(
        [_batch(rng, times, prompt, output, tenant)],
        Source(path="generated", format="generated", rows=len(times), arrival_from="start"),
    )


def trace_of_tenants(
    rng: Generator,
    arrivals: Mapping[str, NDArray[np.float64]],
    *,
    prompt: LengthSpec = CHAT_PROMPT,
    output: LengthSpec = CHAT_OUTPUT,
) -> Trace:
    """Lay the streams of several tenants together, by time."""
    parts = [_batch(rng, times, prompt, output, name) for name, times in arrivals.items()]
    rows = sum(len(part) for part in parts)
    return Trace.of(
        [concatenate(parts)],
        Source(path="generated", format="generated", rows=rows, arrival_from="start"),
    )


def _batch(
    rng: Generator,
    times: NDArray[np.float64],
    prompt: LengthSpec,
    output: LengthSpec,
    tenant: str,
) -> Batch:
    number = len(times)
    label = Labels(np.zeros(number, np.int32), (tenant,)) if tenant else None
    return Batch(
        times,
        prompt_tokens=draw_lengths(rng, prompt, number),
        output_tokens=draw_lengths(rng, output, number),
        tenant=label,
    )
