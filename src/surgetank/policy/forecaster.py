"""What the arrival rate will be: the protocol of forecasters, and the one to beat.

Rule: a forecaster is fed what happened and asked about a horizon; it says None while it knows
nothing, and a better one is used only while its back-test beats the last value.
"""

from __future__ import annotations

from typing import Protocol


class Forecaster(Protocol):
    """Predicts a rate. One instance per series (model, role, or tenant)."""

    def observe(self, rate: float, now: float) -> None:
        """Take the rate of the last window."""

    def predict(self, horizon: float, now: float) -> float | None:
        """Give the rate expected in `horizon` seconds, in the unit observed; None is unknown."""


class LastValue:
    """Tomorrow is like now. Hard to beat on minutes; blind to the hour's turn."""

    def __init__(self) -> None:
        self._rate: float | None = None

    def observe(self, rate: float, now: float) -> None:  # noqa: ARG002  the protocol's form
        """Remember the rate."""
        self._rate = rate

    def predict(self, horizon: float, now: float) -> float | None:  # noqa: ARG002  same
        """Give the last rate, whatever the horizon."""
        return self._rate
