"""What a server asks of who wants to try again: Retry-After, retry-after-ms and x-should-retry.

Rule: read as openai-python reads them: milliseconds first, then seconds (fractions too), then a
date; what cannot be read was not said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from email.utils import mktime_tz, parsedate_tz
from typing import Final

from surgetank.policy.retry import Refusal

_TOO_LONG: Final = 1e9  # a number too large for a float means a long time, not nonsense
_SAID: Final = {"true": True, "false": False}


def refusal(status: int, header: Callable[[str], str | None], now: float) -> Refusal:
    """Read them from `header(name)`, names in lower case; `now` in Unix seconds (for dates)."""
    return Refusal(
        status, _seconds(header, now), _SAID.get((header("x-should-retry") or "").strip())
    )


def _seconds(header: Callable[[str], str | None], now: float) -> float | None:
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = header(name)
        if value is None:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isinf(number) and number > 0 and "inf" not in value.lower():
            return _TOO_LONG
        return number / divisor
    try:
        date = parsedate_tz(header("retry-after") or "")
        return None if date is None else float(mktime_tz(date) - now)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
