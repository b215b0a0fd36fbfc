"""How much capacity the traffic asks for, counted where it enters.

Rule: demand is measured at ingress and in work; what an overloaded fleet completes only says what
it can do, and hides what was asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from surgetank.policy.window import RateWindow

HORIZONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds over which the envelope looks back: bursts have no one time scale."""

_FINEST: Final = 0.25  # seconds a bucket: a quarter of the shortest horizon


@dataclass(frozen=True, slots=True)
class Peak:
    """The rate that would have met every deadline, and the horizon that asked for it."""

    rate: float  # work per second
    horizon: float  # seconds


class DemandEnvelope:
    """r(t) = max over T of W(t - T, t) / (T + d): the least service rate that keeps every deadline.

    W is the work that arrived; d is the slack of the objective, the seconds a request may wait and
    still be in time. Work that came within T must be served within T + d. A long T finds the
    sustained load, a short one the burst, and d forgives what the queue may absorb.
    """

    def __init__(self, slack: float, horizons: tuple[float, ...] = HORIZONS) -> None:
        self._slack = slack
        self._horizons = horizons
        self._work = RateWindow(max(horizons), round(max(horizons) / _FINEST))
        self._known = False

    def add(self, work: float, now: float, *, since: float | None = None) -> None:
        """Count work that arrived in (since, now]."""
        self._work.add(work, now, since=since)
        self._known = True

    def peak(self, now: float) -> Peak | None:
        """Give the largest demand over all horizons; None before anything was counted."""
        if not self._known:
            return None
        rates = (Peak(self._work.total(t, now) / (t + self._slack), t) for t in self._horizons)
        return max(rates, key=lambda peak: peak.rate)


class TokenGap:
    """Output tokens per second that are expected, minus those generated, over one window.

    A stream needs 1/TPOT tokens/s from its arrival on; a waiting one needs them as well, and gets
    none. Both sides are averaged over the same window, so that a burst's first second, in which
    nothing can have been generated, does not count alone.
    """

    def __init__(self, window: float, tpot_objective: float) -> None:
        self._tpot = tpot_objective
        self._needed = RateWindow(window)
        self._generated = RateWindow(window)

    def add(
        self, streams: float, outstanding: float, generated: float, now: float, *, since: float
    ) -> None:
        """Count (since, now]: streams running or waiting, output tokens to come, and generated."""
        rate = min(streams / self._tpot, outstanding)  # what is left may be less than a second's
        self._needed.add(rate * max(0.0, now - since), now, since=since)
        self._generated.add(generated, now, since=since)

    def rates(self, now: float) -> tuple[float, float] | None:
        """(needed, generated) tokens per second; None before anything was counted."""
        needed, generated = self._needed.rate(now), self._generated.rate(now)
        return None if needed is None or generated is None else (needed, generated)


@dataclass(frozen=True, slots=True)
class KvBalance:
    """KV blocks at the end of the horizon, and what they are made of."""

    held: float
    to_be_held: float
    influx: float
    releases: float
    capacity: float

    @property
    def shortfall(self) -> float:
        """Blocks missing; negative when some are to spare."""
        return self.held + self.to_be_held + self.influx - self.releases - self.capacity


def kv_balance(
    *,
    held: float,
    to_be_held: float,
    influx_rate: float,
    hold: float,
    capacity: float,
    horizon: float,
) -> KvBalance:
    """KV blocks needed in `horizon` seconds against those there are.

    `to_be_held`: blocks that admitted requests will still take and waiting ones will need;
    `influx_rate`: blocks per second of arrivals to come; `hold`: seconds a request keeps them.
    influx = rate x min(horizon, hold), since what comes also goes; releases = the share
    horizon/hold of what is there, and never more than the capacity can pass through in that time
    (a long queue is not released before it was held). Steady traffic (rate x hold = held) stays as
    it is.
    """
    there = held + to_be_held
    turns = horizon / max(hold, 1e-3)
    return KvBalance(
        held=held,
        to_be_held=to_be_held,
        influx=influx_rate * min(horizon, hold),
        releases=min(there * min(1.0, turns), capacity * turns),
        capacity=capacity,
    )
