"""The phases of a rehearsal: calm, pulse, and the time after a pulse, cycle by cycle.

Rule: a request belongs to the phase in which it was due, whenever it was sent or served. Phases
follow each other without gaps; a cycle is one calm, one pulse and one recovery, and cycles are the
repeats of the experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

BASE: Final = "base"
PULSE: Final = "pulse"
RECOVERY: Final = "recovery"
ORDER: Final = (BASE, PULSE, RECOVERY)

_NEAR: Final = 1e-9  # seconds: stretches shorter than rounding are none


class Pulsed(Protocol):
    """A profile whose rate rises again and again. Seconds."""

    @property
    def width(self) -> float:
        """Length of a pulse."""

    @property
    def period(self) -> float:
        """From one pulse's start to the next one's."""

    @property
    def onset(self) -> float:
        """From the run's start to the first pulse."""

    @property
    def duration(self) -> float:
        """Length of the run."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of a run: seconds from its start, `start` included, `end` not."""

    name: str
    cycle: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Cycle:
    """One pulse and what belongs to it. Seconds from the run's start.

    `start`: of the calm before it; `until`: the next pulse, or the run's end: how long its recovery
    can be watched; `end`: of the nominal recovery; `whole`: the run lasted to `end`.
    """

    number: int
    start: float
    pulse: float
    pulse_end: float
    end: float
    until: float
    whole: bool


def phases_of(profile: Pulsed) -> tuple[Phase, ...]:
    """Phases of a profile of equal pulses. Raises ValueError for one that cannot be."""
    width, period, onset = profile.width, profile.period, profile.onset
    if not (0 < width < period and onset >= 0 and profile.duration > 0):
        raise ValueError(
            f"width = {width}, period = {period}, onset = {onset}, duration = {profile.duration}:"
            " must have 0 < width < period, onset >= 0, duration > 0"
        )
    count = int(max(0.0, (profile.duration - onset) // period)) + 1
    starts = [onset + i * period for i in range(count)]
    return phases_between([(at, at + width) for at in starts], profile.duration)


def phases_between(pulses: Sequence[tuple[float, float]], duration: float) -> tuple[Phase, ...]:
    """Phases of a run with pulses at these (start, end), in order and apart.

    A recovery nominally lasts as long as its pulse, at most until the next one; the rest of the
    time is the next cycle's calm. What lies beyond `duration` is cut. Without a pulse in it, the
    whole run is one calm. Raises ValueError.
    """
    if not (isfinite(duration) and duration > 0):
        raise ValueError(f"duration = {duration}: must be > 0")
    last = 0.0
    for start, end in pulses:
        if not last <= start < end < float("inf"):
            raise ValueError(f"pulse from {start} to {end} s: must come after {last} s, in order")
        last = end
    return tuple(
        Phase(name, cycle, start, min(end, duration))
        for name, cycle, start, end in _stretches(pulses, duration)
        if start < duration - _NEAR and end - start > _NEAR
    )


def _stretches(
    pulses: Sequence[tuple[float, float]], duration: float
) -> Iterator[tuple[str, int, float, float]]:
    at = 0.0
    for i, (start, end) in enumerate(pulses):
        yield BASE, i, at, start
        yield PULSE, i, start, end
        following = pulses[i + 1][0] if i + 1 < len(pulses) else float("inf")
        at = min(end + (end - start), following)
        yield RECOVERY, i, end, at
    yield BASE, len(pulses), at, duration


def cycles(phases: Sequence[Phase], done: float | None = None) -> tuple[Cycle, ...]:
    """Every pulse with its surroundings; `done`: seconds after which the run was cut off, if so."""
    if not phases:
        return ()
    last = phases[-1].end if done is None else min(done, phases[-1].end)
    pulses = [phase for phase in phases if phase.name == PULSE]
    calms = {phase.cycle: phase.start for phase in phases if phase.name == BASE}
    found = []
    gap = float("inf")
    for i, pulse in enumerate(pulses):
        following = pulses[i + 1].start if i + 1 < len(pulses) else None
        if following is not None:  # the last pulse's recovery is as long as that of the one before
            gap = following - pulse.end
        end = pulse.end + min(pulse.end - pulse.start, gap)
        found.append(
            Cycle(
                number=pulse.cycle,
                start=min(calms.get(pulse.cycle, pulse.start), pulse.start),
                pulse=pulse.start,
                pulse_end=pulse.end,
                end=end,
                until=min(last if following is None else following, last),
                whole=end <= last + _NEAR,
            )
        )
    return tuple(found)


def locate(
    phases: Sequence[Phase], at: NDArray[np.float64]
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Tell the phase (index into ORDER) and the cycle of each moment; -1 where there is none."""
    if not phases:
        return np.full(len(at), -1, np.int8), np.full(len(at), -1, np.int32)
    starts = np.array([phase.start for phase in phases])
    ends = np.array([phase.end for phase in phases])
    names = np.array([ORDER.index(p.name) if p.name in ORDER else -1 for p in phases], np.int8)
    numbers = np.array([phase.cycle for phase in phases], np.int32)
    row = np.clip(np.searchsorted(starts, at, side="right") - 1, 0, None)
    # The last moment of a run belongs to it: a request may be due exactly there.
    inside = (at > starts[0] - _NEAR) & (at < ends[row] + _NEAR)
    return (
        np.where(inside, names[row], -1).astype(np.int8),
        np.where(inside, numbers[row], -1).astype(np.int32),
    )
