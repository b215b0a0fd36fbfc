"""Runs made by hand: regular arrivals, and a TTFT that the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from surgetank.loadtest.phases import phases_of
from surgetank.loadtest.runfile import OUTCOMES, Labels, Objective, Run, Samples


@dataclass(frozen=True)
class Pulse:
    """10 s of every 40 s, in the middle."""

    width: float = 10.0
    period: float = 40.0
    onset: float = 15.0
    duration: float = 400.0


def run(
    ttft: Callable[[float, int], float | None] = lambda _at, _cycle: 0.1,
    *,
    pulse: Pulse = Pulse(),
    base: float = 2.0,
    peak: float = 8.0,
    objective: float = 1.0,
    tenants: Sequence[str] = ("default",),
    lag: float = 0.0,
    jitter: float = 0.0,
    seed: int = 0,
    metrics: Sequence[dict[str, float]] = (),
    description: dict[str, object] | None = None,
) -> Run:
    """Make a run; `ttft(seconds since the pulse's start, cycle)`, None: refused at once.

    The time since the pulse's start is negative in the calm before it. `jitter`: standard deviation
    of noise on each TTFT, relative, by `seed`.
    """
    due = []
    cycles = int(pulse.duration // pulse.period)
    for cycle in range(cycles):
        start = cycle * pulse.period
        for first, last, rate in (
            (0.0, pulse.onset, base),
            (pulse.onset, pulse.onset + pulse.width, peak),
            (pulse.onset + pulse.width, pulse.period, base),
        ):
            due += [start + first + i / rate for i in range(round((last - first) * rate))]
    at = np.array(due)
    rows = len(at)
    told = [
        ttft(float(t % pulse.period) - pulse.onset, int(t // pulse.period)) for t in at.tolist()
    ]
    noise = 1 + jitter * np.random.default_rng(seed).standard_normal(rows)
    first_token = np.array([np.nan if v is None else v for v in told]) * noise + at
    refused = np.isnan(first_token)
    return Run(
        description=description or {"shape": "pulse"},
        fingerprint="by hand",
        duration=pulse.duration,
        phases=phases_of(pulse),
        samples=Samples(
            scheduled=at,
            sent=at + lag,
            first_byte=first_token,
            first_token=first_token,
            ended=np.where(refused, at, first_token + 0.9),
            status=np.where(refused, 429, 200).astype(np.int32),
            outcome=np.where(
                refused, OUTCOMES.index("queue_full"), OUTCOMES.index("completed")
            ).astype(np.int16),
            tenant=Labels(
                (np.arange(rows) % len(tenants)).astype(np.int32), tuple(sorted(tenants))
            ),
            prompt_tokens=np.full(rows, 100, np.int64),
            output_tokens=np.where(refused, -1, 10).astype(np.int64),
            attempts=np.ones(rows, np.int32),
        ),
        objective=Objective(objective),
        target={"url": "http://127.0.0.1:8000"},
        sender={"lag": {"p50": 0.0, "p99": 0.001, "max": 0.002}, "valid": True},
        metrics=metrics,
    )
