"""Shapes of load over time: how many requests a second are due, and when each one is.

Rule: a shape holds no state and no generator; the same generator gives the same times.
Rates are requests/s (or sessions/s, where requests come in sessions), times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Protocol

from numpy.random import Generator

from surgetank.errors import InputError
from surgetank.loadtest.phases import Phase, phases_between, phases_of
from surgetank.traffic import arrivals
from surgetank.traffic.trace import Seconds

_SETTLED: Final = 2.0  # decays after which a flash crowd counts as over: 14 % of it is left


class Shape(Protocol):
    """A load over time."""

    @property
    def duration(self) -> float:
        """Seconds from the first possible arrival to the last."""

    @property
    def mean(self) -> float:
        """Expected requests per second."""

    @property
    def top(self) -> float:
        """Highest expected requests per second; that of a typical busy second where it is drawn."""

    def times(self, rng: Generator) -> Seconds:
        """Draw arrival times, sorted, in [0, duration)."""

    def phases(self) -> tuple[Phase, ...]:
        """What is calm, pulse and recovery in it."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Poisson arrivals of one rate."""

    rate: float = 20.0
    duration: float = 600.0

    def __post_init__(self) -> None:
        _positive(self, "rate", "duration")

    @property
    def mean(self) -> float:
        return self.rate

    @property
    def top(self) -> float:
        return self.rate

    def times(self, rng: Generator) -> Seconds:
        return arrivals.poisson(rng, self.rate, self.duration)

    def phases(self) -> tuple[Phase, ...]:
        return phases_between([], self.duration)


@dataclass(frozen=True, slots=True)
class Pulses:
    """`base`, and `peak` for `width` in each `period`; Poisson spacing, or `even`."""

    base: float = 20.0
    peak: float = 80.0
    width: float = 30.0
    period: float = 90.0
    duration: float = 600.0
    start: float | None = None  # of the first pulse; None: in the middle of the first period
    even: bool = False

    def __post_init__(self) -> None:
        _positive(self, "peak", "width", "period", "duration")
        _not_negative(self, "base")
        if self.width >= self.period:
            raise InputError(f"width = {self.width:g}: must be below the period, {self.period:g}")
        if self.start is not None and not 0 <= self.start < self.period:
            raise InputError(f"start = {self.start:g}: must be in [0, {self.period:g})")

    @property
    def onset(self) -> float:
        return (self.period - self.width) / 2 if self.start is None else self.start

    @property
    def mean(self) -> float:
        high = sum(p.end - p.start for p in self.phases() if p.name == "pulse")
        return self.base + (self.peak - self.base) * high / self.duration

    @property
    def top(self) -> float:
        return max(self.base, self.peak)

    def times(self, rng: Generator) -> Seconds:
        return arrivals.pulse(
            rng,
            self.base,
            self.peak,
            self.width,
            self.period,
            self.duration,
            offset=self.onset,
            even=self.even,
        )

    def phases(self) -> tuple[Phase, ...]:
        return phases_of(self)


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that climbs (or falls) from `base` to `peak` in one line over `duration`."""

    base: float = 20.0
    peak: float = 80.0
    duration: float = 600.0

    def __post_init__(self) -> None:
        _positive(self, "peak", "duration")
        _not_negative(self, "base")

    @property
    def mean(self) -> float:
        return (self.base + self.peak) / 2

    @property
    def top(self) -> float:
        return max(self.base, self.peak)

    def times(self, rng: Generator) -> Seconds:
        def rate(t: Seconds) -> Seconds:
            return self.base + (self.peak - self.base) * t / self.duration

        return arrivals.varying(rng, rate, self.duration, step=min(1.0, self.duration / 100))

    def phases(self) -> tuple[Phase, ...]:
        return phases_between([], self.duration)


@dataclass(frozen=True, slots=True)
class Step:
    """`base` until `start`, then `peak` to the end: a pulse without a recovery."""

    base: float = 20.0
    peak: float = 80.0
    start: float = 60.0
    duration: float = 600.0

    def __post_init__(self) -> None:
        _positive(self, "peak", "start", "duration")
        _not_negative(self, "base")
        _inside(self)

    @property
    def mean(self) -> float:
        return self.peak + (self.base - self.peak) * self.start / self.duration

    @property
    def top(self) -> float:
        return max(self.base, self.peak)

    def times(self, rng: Generator) -> Seconds:
        return arrivals.stepped(rng, [0.0, self.start, self.duration], [self.base, self.peak])

    def phases(self) -> tuple[Phase, ...]:
        return phases_between([(self.start, self.duration)], self.duration)


@dataclass(frozen=True, slots=True)
class Flash:
    """A flash crowd: from `start` the rate climbs to `peak` in `ramp` s, stays for `width`, decays.

    It falls back to `base` by 1/e in every `decay` s; the pulse counts as over after two of them.
    """

    base: float = 20.0
    peak: float = 80.0
    start: float = 60.0
    ramp: float = 5.0
    width: float = 30.0
    decay: float = 30.0
    duration: float = 600.0

    def __post_init__(self) -> None:
        _positive(self, "peak", "start", "decay", "duration")
        _not_negative(self, "base", "ramp", "width")
        _inside(self)

    @property
    def _over(self) -> float:
        return self.start + self.ramp + self.width + _SETTLED * self.decay

    @property
    def mean(self) -> float:
        top = self.start + self.ramp + self.width
        climb = self.ramp / 2 + self.width
        fall = self.decay * (1 - math.exp(-max(0.0, self.duration - top) / self.decay))
        return self.base + (self.peak - self.base) * (climb + fall) / self.duration

    @property
    def top(self) -> float:
        return max(self.base, self.peak)

    def times(self, rng: Generator) -> Seconds:
        return arrivals.flash_crowd(
            rng,
            self.base,
            self.peak,
            start=self.start,
            ramp=self.ramp,
            hold=self.width,
            decay=self.decay,
            duration=self.duration,
        )

    def phases(self) -> tuple[Phase, ...]:
        return phases_between([(self.start, min(self._over, self.duration))], self.duration)


@dataclass(frozen=True, slots=True)
class Clumps:
    """Gamma gaps: `mean` requests/s, and `idc` over long windows, at every time scale alike."""

    mean: float = 40.0
    idc: float = 20.0
    duration: float = 600.0

    def __post_init__(self) -> None:
        _positive(self, "mean", "idc", "duration")

    @property
    def top(self) -> float:
        return self.mean + 2 * math.sqrt(self.mean * self.idc)

    def times(self, rng: Generator) -> Seconds:
        return arrivals.gamma_renewal(rng, self.mean, self.duration, cv=math.sqrt(self.idc))

    def phases(self) -> tuple[Phase, ...]:
        return phases_between([], self.duration)


@dataclass(frozen=True, slots=True)
class Switching:
    """Two-state MMPP: `mean` requests/s, `idc` over windows much longer than `time_scale` s.

    The busier state takes `busy` of the time. Which seconds are busy is drawn.
    """

    mean: float = 40.0
    idc: float = 200.0
    time_scale: float = 10.0
    busy: float = 0.25
    duration: float = 600.0

    def __post_init__(self) -> None:
        _positive(self, "mean", "idc", "time_scale", "busy", "duration")
        self._spec()

    def _spec(self) -> arrivals.Mmpp2Spec:
        try:
            return arrivals.Mmpp2Spec.of_dispersion(
                self.mean, self.idc, time_scale=self.time_scale, high_share=self.busy
            )
        except ValueError as error:
            raise InputError(f"mmpp: {error}") from None

    @property
    def top(self) -> float:
        return self._spec().high

    def times(self, rng: Generator) -> Seconds:
        return arrivals.mmpp2(rng, self._spec(), self.duration)

    def phases(self) -> tuple[Phase, ...]:
        return phases_between([], self.duration)


SHAPES: Final[Mapping[str, type[Shape]]] = MappingProxyType(
    {
        "pulse": Pulses,
        "steady": Steady,
        "ramp": Ramp,
        "step": Step,
        "flash": Flash,
        "gamma": Clumps,
        "mmpp": Switching,
    }
)
"""By the name that a user types."""


def make_shape(name: str, given: Mapping[str, Any]) -> Shape:
    """Build a shape from what was given (None: not given). Raises InputError.

    A parameter that the shape does not have is an error, and so is a value that cannot be.
    """
    kind = SHAPES.get(name)
    if kind is None:
        raise InputError(f"shape {name}: must be one of {', '.join(SHAPES)}")
    known = parameters(name)
    values = {key: value for key, value in given.items() if value is not None}
    for key in values:
        if key not in known:
            raise InputError(f"{key}: shape {name} has none; it takes {', '.join(known)}")
    return kind(**values)


def parameters(name: str) -> tuple[str, ...]:
    """Name what a shape takes."""
    return tuple(f.name for f in fields(SHAPES[name]))  # type: ignore[arg-type]  # dataclasses all


def describe(shape: Shape) -> dict[str, Any]:
    """Give its name and parameters."""
    name = next(name for name, kind in SHAPES.items() if type(shape) is kind)
    values = asdict(shape)  # type: ignore[call-overload]  # the shapes are dataclasses
    return {"shape": name} | {key: value for key, value in values.items() if value is not None}


def _positive(shape: object, *names: str) -> None:
    for name in names:
        value = getattr(shape, name)
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise InputError(f"{name} = {value}: must be above 0")


def _not_negative(shape: object, *names: str) -> None:
    for name in names:
        value = getattr(shape, name)
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise InputError(f"{name} = {value}: must be >= 0")


def _inside(shape: Step | Flash) -> None:
    if shape.start >= shape.duration:
        raise InputError(f"start = {shape.start:g}: must be before the end, {shape.duration:g} s")
