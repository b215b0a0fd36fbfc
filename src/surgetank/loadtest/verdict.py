"""Did this change make bursts better or worse? Two runs of one schedule, compared cycle by cycle.

Three figures were declared before anybody looked, and decide: TTFT P95 in pulses, recovery time,
attainment. Beside attainment stands a guard, the share of requests that nobody served: a service
that refuses some may well keep its word to more of the others, and must not call that a gain. Their
p values are adjusted together (Holm). All other figures, resources among them, are told and decide
nothing.

A figure is called different when its p is at most 0.05 and it moved by the threshold or more: a
part of A's value, or points of a share. Small p alone is no reason: with enough cycles any two
services differ.

Rule: the same two runs give the same verdict.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Final, Literal

import numpy as np

from surgetank.errors import InputError
from surgetank.loadtest import resample
from surgetank.loadtest.cyclefigures import (
    ATTAINMENT,
    FIGURES,
    RECOVERY_TIME,
    TTFT,
    UNSERVED,
    CycleView,
    Figure,
    Statistic,
    view,
)
from surgetank.loadtest.phases import cycles
from surgetank.loadtest.runfile import Objective, Run
from surgetank.loadtest.sameschedule import difference
from surgetank.loadtest.verdictwords import sentence

Says = Literal["better", "worse", "no difference", "changed", "unknown"]
Outcome = Literal["better", "worse", "no difference", "not enough"]

DECIDING: Final = (TTFT.key, RECOVERY_TIME.key, ATTAINMENT.key, UNSERVED.key)
FEWEST: Final = 5  # cycles
_LEVEL: Final = 0.05
_SEED: Final = 20_260_101  # of the resamples: any will do, and it must stay
_LEAST: Final = {"seconds": 0.001, "request-seconds": 1.0, "count": 1.0}
_LEAST_RECOVERY: Final = 0.5  # seconds: what the windows can tell apart


@dataclass(frozen=True, slots=True)
class Threshold:
    """How much is a difference: part of A's value, and points (0.005 is half a point)."""

    relative: float = 0.05
    points: float = 0.005
    unserved: float = 0.005


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure of both runs. `a`, `b`: None where infinite or unknown.

    `difference`, `low`, `high` (95 %): b - a in the figure's unit; `relative`: difference over A's
    value, None where that is 0 or unknown. `adjusted`: p among the deciding ones, None for others.
    """

    key: str
    title: str
    unit: str
    decides: bool
    resource: bool
    points: bool
    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None
    relative: float | None
    p: float | None
    adjusted: float | None
    says: Says
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict, what it stands on, and all figures."""

    verdict: Outcome
    line: str
    cycles: int
    requests: int
    figures: tuple[Judged, ...]
    threshold: Threshold
    objective_ttft: float
    limit: float | None
    window: float
    notes: tuple[str, ...] = ()
    names: tuple[str, str] = ("A", "B")
    targets: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))

    def to_json(self) -> dict[str, Any]:
        """JSON-able: names as here."""
        return asdict(self)

    @property
    def deciding(self) -> tuple[Judged, ...]:
        """Those that decide."""
        return tuple(f for f in self.figures if f.decides)


def compare(
    a: Run,
    b: Run,
    threshold: Threshold | None = None,
    *,
    ttft: float | None = None,
    names: tuple[str, str] = ("A", "B"),
    keys: Collection[str] | None = None,
) -> Comparison:
    """Compare B with A, the one from before.

    `ttft`: an objective for both, in seconds, in place of A's; `keys`: figures to work out, all of
    them when None. Raises InputError when the schedules differ.
    """
    differs = difference(a, b)
    if differs is not None:
        raise InputError(
            f"{names[0]} (A) and {names[1]} (B) were sent different schedules: {differs}:"
            " run both with the same profile and seed"
        )
    bounds = threshold or Threshold()
    objective = a.objective if ttft is None else Objective(ttft, a.objective.tpot)
    common = _whole(a) & _whole(b)
    one = view(a, objective=objective, keep=sorted(common))
    other = view(b, objective=objective, keep=sorted(common), limit=one.limit)
    judged = _judge(one, other, bounds, keys)
    enough = len(common) >= FEWEST
    return Comparison(
        verdict=_outcome(judged) if enough else "not enough",
        line=_line(judged, len(common)) if enough else _too_few(len(common)),
        cycles=len(common),
        requests=len(one.seen),
        figures=judged,
        threshold=bounds,
        objective_ttft=objective.ttft,
        limit=one.limit,
        window=one.window,
        notes=tuple(_notes(a, b, one, other, ttft)),
        names=names,
        targets=(dict(a.target), dict(b.target)),
    )


def _whole(run: Run) -> set[int]:
    return {c.number for c in cycles(run.phases, run.done) if c.whole}


@dataclass(slots=True)
class _Pair:
    """One figure of both runs before it is judged."""

    figure: Figure
    a: float | None
    b: float | None
    estimate: resample.Estimate | None


def _judge(
    one: CycleView, other: CycleView, bounds: Threshold, keys: Collection[str] | None
) -> tuple[Judged, ...]:
    count = len(one.whole)
    drawn = resample.weights(count, _SEED) if count >= 2 else np.empty((0, count))
    cap = _cap(one, other)
    pairs = []
    for figure, make in FIGURES:
        if keys is not None and figure.key not in keys:
            continue
        first, second = make(one, cap), make(other, cap)
        if first is None and second is None and figure.key not in DECIDING:
            continue
        pairs.append(_pair(figure, (first, second), drawn, cap))
    deciding = [p for p in pairs if p.figure.key in DECIDING and p.estimate is not None]
    adjusted = resample.holm([p.estimate.p for p in deciding if p.estimate is not None])
    by_key = {p.figure.key: value for p, value in zip(deciding, adjusted, strict=True)}
    return tuple(
        _judged(p, by_key.get(p.figure.key), bounds, enough=count >= FEWEST) for p in pairs
    )


def _cap(one: CycleView, other: CycleView) -> float:
    """Stand for infinite seconds: beyond all that was seen, yet near enough to reckon with."""
    most = 1.0
    for cut in (one, other):
        for column in (cut.seen.ttft, cut.seen.e2e, cut.seen.ttft_sent, cut.seen.waited):
            finite = column[np.isfinite(column)]
            most = max(most, float(finite.max(initial=0.0)))
    return 2.0 * most


def _pair(
    figure: Figure,
    makers: tuple[Statistic | None, Statistic | None],
    drawn: resample.Values,
    cap: float,
) -> _Pair:
    first, second = makers
    count = drawn.shape[1]
    if first is None or second is None or not count:
        return _Pair(figure, None, None, None)
    all_once = np.ones((1, count))
    a, b = float(first(all_once)[0]), float(second(all_once)[0])
    moved = second(drawn) - first(drawn)
    leave = resample.left_out(count)
    found = resample.estimate(b - a, moved, second(leave) - first(leave))
    bounded = figure.unit == "seconds" and figure.key != RECOVERY_TIME.key
    return _Pair(
        figure,
        None if bounded and a >= cap else a,
        None if bounded and b >= cap else b,
        found,
    )


def _judged(pair: _Pair, adjusted: float | None, bounds: Threshold, *, enough: bool) -> Judged:
    figure, found = pair.figure, pair.estimate
    decides = figure.key in DECIDING
    both = pair.a is not None and pair.b is not None
    difference_ = found.value if found is not None and both else None
    relative = None
    if pair.a and difference_ is not None:
        relative = difference_ / pair.a
    says: Says = "unknown"
    if found is not None and enough:
        p = found.p if adjusted is None else adjusted
        says = _says(figure, pair, p, bounds)
    return Judged(
        key=figure.key,
        title=figure.title,
        unit=figure.unit,
        decides=decides,
        resource=figure.resource,
        points=figure.points,
        a=pair.a,
        b=pair.b,
        difference=difference_,
        low=_finite(found.low) if found is not None and both else None,
        high=_finite(found.high) if found is not None and both else None,
        relative=relative,
        p=None if found is None else found.p,
        adjusted=adjusted,
        says=says,
        note=_missing(pair),
    )


def _says(figure: Figure, pair: _Pair, p: float, bounds: Threshold) -> Says:
    assert pair.estimate is not None  # noqa: S101 - the caller looked
    moved = pair.estimate.value
    if p > _LEVEL or abs(moved) < _least(figure, pair, bounds) or moved == 0:
        return "no difference"
    if figure.better == "neither":
        return "changed"
    return "better" if (moved < 0) == (figure.better == "lower") else "worse"


def _least(figure: Figure, pair: _Pair, bounds: Threshold) -> float:
    """Smallest difference that counts, in the figure's unit (1e-9: for rounding)."""
    if figure.key in {UNSERVED.key, "refused"}:
        return bounds.unserved - 1e-9
    if figure.points:
        return bounds.points - 1e-9
    floor = _LEAST_RECOVERY if figure.key == RECOVERY_TIME.key else _LEAST.get(figure.unit, 0.0)
    known = pair.a if pair.a is not None else pair.b
    return max(bounds.relative * abs(known or 0.0) - 1e-9, floor)


def _missing(pair: _Pair) -> str:
    if pair.estimate is None:
        return "not known of both runs"
    if pair.a is None and pair.b is None:
        return "infinite in both: more were refused or failed than the percentile leaves out"
    if pair.a is None or pair.b is None:
        return f"infinite in {'A' if pair.a is None else 'B'}"
    return ""


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _outcome(figures: tuple[Judged, ...]) -> Outcome:
    said = {f.says for f in figures if f.decides}
    if "worse" in said:
        return "worse"
    return "better" if "better" in said else "no difference"


def _line(figures: tuple[Judged, ...], count: int) -> str:
    return sentence(_outcome(figures), [f for f in figures if f.decides], count)


def _too_few(count: int) -> str:
    return (
        f"Not enough: {count} whole cycle{'' if count == 1 else 's'} in both runs, and a verdict"
        f" needs {FEWEST} or more (20 find a change of 10 %)"
    )


def _notes(a: Run, b: Run, one: CycleView, other: CycleView, ttft: float | None) -> list[str]:
    notes = []
    for name, run in (("A", a), ("B", b)):
        if run.sender.get("valid") is False:
            notes.append(
                f"The sender of {name} was late beyond its limit: its figures measure the sender"
            )
        if run.done is not None:
            notes.append(f"{name} was cut off after {run.done:g} s: later cycles are left out")
    if ttft is None and a.objective != b.objective:
        notes.append("The runs state different objectives: both are judged by A's")
    if one.limit is None:
        notes.append("No recovery time: most requests of A's calm phases have no first token")
    for name, cut in (("A", one), ("B", other)):
        if cut.recovery is not None and cut.recovery.censored:
            notes.append(
                f"{name} was not back before the next pulse in {cut.recovery.censored} of"
                f" {len(cut.whole)} cycles: its recovery time is at least what is told"
            )
    return notes
