"""A base load that rises to a peak again and again, as a user writes it.

Rule: one meaning everywhere. A simulation and a rehearsal of the same pulse have the same calm,
pulse and calm in each period, so that their figures can stand side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from surgetank.errors import InputError

_PERIODS: Final = 3  # where no duration is given
_MOST: Final = 50_000_000  # requests: beyond that a typing error is likelier than a wish
_FORM: Final = "base:peak:width:period[:duration], requests/s and seconds, such as 2:20:15:60"


@dataclass(frozen=True, slots=True)
class Pulse:
    """Requests/s and seconds. The pulse stands in the middle of its period."""

    base: float
    peak: float
    width: float
    period: float
    duration: float

    @property
    def onset(self) -> float:
        """Seconds from a period's start to its pulse."""
        return (self.period - self.width) / 2


def parse_pulse(text: str, *, duration: float | None = None) -> Pulse:
    """Read `base:peak:width:period[:duration]`. Raises InputError.

    `duration` holds where the text has none; without either it is three periods.
    """
    try:
        values = [float(part) for part in text.split(":")]
    except ValueError:
        values = []
    if len(values) not in {4, 5} or not all(math.isfinite(v) and v >= 0 for v in values):
        raise InputError(f"--pulse {text}: must be {_FORM}")
    base, peak, width, period = values[:4]
    span = values[4] if len(values) == 5 else duration or _PERIODS * period
    if not (0 < width < period and span > 0 and peak > 0):
        raise InputError(f"--pulse {text}: width must be in (0, period), and peak > 0: {_FORM}")
    if max(base, peak) * span > _MOST:
        raise InputError(f"--pulse {text}: more than {_MOST:,} requests: shorten it")
    return Pulse(base, peak, width, period, span)
