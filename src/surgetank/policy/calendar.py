"""Calendar: what an operator expects, and when.

An event begins at a local time, lasts, and may recur. From one start time before it until its end
the fleet is asked for the largest of what the events under way say: so many replicas, so many
times the usual demand, so many standbys. Usual is the mean of the demand while no event is near
(exponential, time constant `_USUAL`), so that an event under way is not multiplied by itself.

Rule: it only ever asks for more; without data it still asks for what it says in replicas. Times of
day need a zone's offset, which is handed in: nothing here knows the date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from surgetank.errors import ConfigError
from surgetank.policy.plan import Reason, Signal

Repeat = Literal["once", "hourly", "daily", "weekdays", "weekly"]
Local = Callable[[str, float], float]
"""Seconds since 1970 on the clocks of a time zone, of a zone's name and Unix seconds."""

_HOUR: Final = 3600.0
_DAY: Final = 86_400.0
_WEEK: Final = 7 * _DAY
_PERIODS: Final[dict[str, float]] = {
    "hourly": _HOUR,
    "daily": _DAY,
    "weekdays": _DAY,
    "weekly": _WEEK,
}
_EPOCH_WEEKDAY: Final = 3  # 1 January 1970 was a Thursday
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FRIDAY: Final = 4
_CLOCK: Final = r"(?P<h>[01]?\d|2[0-3]):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d))?"
_FORMS: Final[dict[str, tuple[str, str]]] = {
    "once": (rf"(?P<y>\d{{4}})-(?P<mo>\d\d)-(?P<d>\d\d)[T ]{_CLOCK}", "2026-12-01T10:00"),
    "hourly": (r":(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d))?", '":00", the minute of each hour'),
    "daily": (_CLOCK, "09:00"),
    "weekdays": (_CLOCK, "09:00"),
    "weekly": (rf"(?P<wd>{'|'.join(_WEEKDAYS)}) {_CLOCK}", "mon 09:00"),
}
_USUAL: Final = 600.0  # s: longer than most pulses, shorter than the turn of the day


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """Something expected: a launch, a batch on the hour, core hours."""

    name: str  # as decisions name it
    # local time: 2026-12-01T10:00 once, ":15" hourly, 09:00 daily or on weekdays, mon 09:00 weekly
    start: str
    length: float  # seconds it lasts
    repeat: Repeat = "once"  # how it recurs
    timezone: str = "UTC"  # whose clocks `start` is read on, as Europe/Berlin
    model: str | None = None  # whose pools it concerns; null: all
    factor: float = 1.0  # demand, times the usual
    replicas: int = 0  # serve at least while it lasts, whatever the demand
    standbys: int = 0  # are warm beside them at least

    def __post_init__(self) -> None:
        """Raise ConfigError for what cannot be."""
        pattern, right = _FORMS[self.repeat]
        if re.fullmatch(pattern, self.start) is None or not _is_date(self.start):
            raise ConfigError(f"start = {self.start}: for {self.repeat} must be like {right}")
        if not 0 < self.length < math.inf:
            raise ConfigError(f"length = {self.length:g}: must be > 0 seconds")
        if self.length > _PERIODS.get(self.repeat, math.inf):
            raise ConfigError(
                f"length = {self.length:g}: must be <= {_PERIODS[self.repeat]:g}, or it never ends"
            )
        if not 1 <= self.factor < math.inf:
            raise ConfigError(f"factor = {self.factor:g}: must be >= 1 times the usual demand")
        if self.replicas < 0 or self.standbys < 0:
            raise ConfigError(
                f"replicas = {self.replicas}, standbys = {self.standbys}: must be >= 0"
            )
        if self.factor == 1 and not self.replicas and not self.standbys:
            raise ConfigError("factor = 1: says nothing: give a factor, replicas or standbys")


@dataclass(frozen=True, slots=True)
class Expected:
    """The largest of what is expected within a horizon. `begins_in`: seconds, 0 while it lasts."""

    factor: float = 1.0
    replicas: int = 0
    standbys: int = 0
    events: tuple[str, ...] = ()
    begins_in: float = 0.0
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.events)


NOTHING: Final = Expected()


def _as_utc(_zone: str, now: float) -> float:
    return now


class Calendar:
    """Events, and what they say of a moment. `local` is needed for zones other than UTC."""

    def __init__(self, events: Sequence[CalendarEvent], *, local: Local = _as_utc) -> None:
        self._events = [(event, _first(event)) for event in events]
        self._local = local

    def of(self, model: str) -> Calendar:
        """Give the part that concerns a model's pools."""
        return Calendar(
            [event for event, _ in self._events if event.model in {None, model}], local=self._local
        )

    def __bool__(self) -> bool:
        return bool(self._events)

    def expects(self, now: float, horizon: float) -> Expected:
        """What is expected at any time from `now` (Unix seconds) to `horizon` seconds later."""
        near: list[tuple[CalendarEvent, float]] = []
        for event, first in self._events:
            begins = self._begins(event, first, now, horizon)
            if begins is not None:
                near.append((event, begins))
        if not near:
            return NOTHING
        events = [event for event, _ in near]
        return Expected(
            factor=max(event.factor for event in events),
            replicas=max(event.replicas for event in events),
            standbys=max(event.standbys for event in events),
            events=tuple(event.name for event in events),
            begins_in=min(begins for _, begins in near),
            reason="; ".join(_words(event, begins) for event, begins in near),
        )

    def _begins(
        self, event: CalendarEvent, first: float, now: float, horizon: float
    ) -> float | None:
        """Seconds until its occurrence that is on within the horizon; 0: under way; None: none."""
        here = self._local(event.timezone, now)
        until = self._local(event.timezone, now + horizon)
        for start in _latest(event, first, until):
            if start <= until and start + event.length > here:
                return max(0.0, start - here)
        return None


class Expecting:
    """A calendar beside one pool's demand: what it asks for now. One instance per pool.

    `wall_offset`: Unix seconds less those that `now` counts.
    """

    def __init__(self, calendar: Calendar, *, wall_offset: float = 0.0) -> None:
        self._calendar = calendar
        self._offset = wall_offset
        self._usual: float | None = None
        self._at = -math.inf
        self.standbys = 0  # as the last `asks` found

    def asks(self, demand: float | None, horizon: float, now: float) -> tuple[float, Reason] | None:
        """Give the need in replicas with its reason, or None; `standbys` is set as well.

        `demand`: replicas needed now, as measured; None: not known. `horizon`: the start time.
        """
        expected = self._calendar.expects(now + self._offset, horizon)
        self.standbys = expected.standbys
        if not expected:
            self._learn(demand, now)
            return None
        usual = demand if self._usual is None else self._usual
        by_factor = expected.factor * usual if usual is not None and expected.factor > 1 else 0.0
        need = max(float(expected.replicas), by_factor)
        if need <= 0:
            return None  # it speaks of standbys alone
        wants = math.ceil(need - 0.02)  # as evidence.whole: a fiftieth is noise
        text = f"calendar: {expected.reason}: {wants}"
        if by_factor > expected.replicas:
            text += f" ({expected.factor:g} x {usual:.2f} replicas usually needed)"
        return need, Reason(Signal.CALENDAR, expected.begins_in, horizon, wants, text)

    def _learn(self, demand: float | None, now: float) -> None:
        if demand is None:
            return
        if self._usual is None:
            self._usual = demand
        else:
            part = -math.expm1(-max(0.0, now - self._at) / _USUAL)
            self._usual += part * (demand - self._usual)
        self._at = now


def _words(event: CalendarEvent, begins: float) -> str:
    what = [f"{event.factor:g} times the usual"] if event.factor > 1 else []
    what += [f"{event.replicas} replicas"] if event.replicas else []
    what += [f"{event.standbys} standbys"] if event.standbys else []
    when = f"begins in {begins:.0f} s" if begins else "is on"
    return f"{event.name} {when} ({', '.join(what)})"


def _latest(event: CalendarEvent, first: float, until: float) -> tuple[float, ...]:
    """Local starts, latest first, that may be on at `until` or just before."""
    period = _PERIODS.get(event.repeat)
    if period is None:
        return (first,)
    start = first + math.floor((until - first) / period) * period
    starts = (start, start - period)  # a horizon may hold the end of one and the start of the next
    if event.repeat == "weekdays":
        return tuple(s for s in starts if _weekday(s) <= _FRIDAY)
    return starts


def _weekday(local: float) -> int:
    return (math.floor(local / _DAY) + _EPOCH_WEEKDAY) % 7


def _first(event: CalendarEvent) -> float:
    """Local seconds of an occurrence: any one of those that recur."""
    found = re.fullmatch(_FORMS[event.repeat][0], event.start)
    if found is None:
        raise ValueError(event.start)  # the Spec has checked it
    parts = found.groupdict()
    clock = 3600 * int(parts.get("h") or 0) + 60 * int(parts["m"]) + int(parts.get("s") or 0)
    if event.repeat == "once":
        return _DAY * _days(int(parts["y"]), int(parts["mo"]), int(parts["d"])) + clock
    if event.repeat == "weekly":
        return _DAY * ((_WEEKDAYS.index(parts["wd"]) - _EPOCH_WEEKDAY) % 7) + clock
    return float(clock)


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date (Hinnant, days_from_civil)."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _is_date(text: str) -> bool:
    """Whether the date in a text exists; True without one."""
    found = re.match(r"(\d{4})-(\d\d)-(\d\d)", text)
    if found is None:
        return True
    year, month, day = map(int, found.groups())
    if not 1 <= month <= 12 or day < 1:
        return False
    following = (year, month + 1) if month < 12 else (year + 1, 1)
    return day <= _days(*following, 1) - _days(year, month, 1)
