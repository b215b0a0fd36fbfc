"""How bursty the last minutes were: the figures of `surgetank analyze`, of the gateway's arrivals.

Rule: each second is taken once, however often it is told; the work is done in a thread, since the
first figures load what compiles them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from surgetank.dashboard.observation import Observation

if TYPE_CHECKING:  # numpy and numba load slowly, and the page should be up before
    from surgetank.traffic.live import LiveWindow

SPAN: Final = 900  # seconds
EVERY: Final = 10.0  # seconds between figures
SHOWN: Final = ("1", "10", "60")  # windows of the index of dispersion, s


class Burstiness(msgspec.Struct, frozen=True):
    """Figures of the window. `idc`: (window s, IDC of requests, None: too few windows)."""

    requests: int
    seconds: float
    shape: str
    confident: bool
    text: str
    idc: list[tuple[int, float | None]]
    pulse: tuple[float, float, float, float] | None  # base and peak req/s, width and period s


class Live:
    """Gathers arrivals; `figures` may run in a thread, one at a time."""

    def __init__(self) -> None:
        self._gateway = ""
        self._taken = -1  # the last second taken
        self._waiting: list[tuple[int, int, int]] = []
        self._window: LiveWindow | None = None
        self._due = 0.0

    def take(self, seen: Observation) -> None:
        """Take the seconds that are new; a gateway that began anew goes on in the same window."""
        if seen.gateway != self._gateway:
            self._gateway, self._taken = seen.gateway, -1
        fresh = [row for row in seen.arrivals if row[0] > self._taken]
        if fresh:
            self._taken = max(row[0] for row in fresh)
            self._waiting += fresh

    def due(self, now: float) -> bool:
        """Whether it is time for new figures; then the next time is set."""
        if now < self._due or not (self._waiting or self._window):
            return False
        self._due = now + EVERY
        return True

    def figures(self) -> Burstiness:
        """Make the figures."""
        from surgetank.traffic.live import LiveWindow  # noqa: PLC0415 - see above

        if self._window is None:
            self._window = LiveWindow(SPAN, counts_only=True)
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            self._window.add_second(*row)
        found = self._window.analyse()
        pulse = found.pulse
        return Burstiness(
            requests=found.requests,
            seconds=found.span_s,
            shape=found.verdict.shape,
            confident=found.verdict.confident,
            text=found.verdict.text,
            idc=[(int(w), found.idc.requests[w]) for w in SHOWN],
            pulse=None
            if pulse is None
            else (
                float(pulse.base_rps),
                float(pulse.peak_rps),
                float(pulse.width_s),
                float(pulse.period_s),
            ),
        )
