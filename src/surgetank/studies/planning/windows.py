"""Which parts of a log are simulated: all of a short one, else the busiest and sampled ones.

Rule: every part is preceded by what came before it, which fills the fleet and is not scored; what a
sampled part stands for is its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.simulation.workload import Workload
from surgetank.traffic.arrivals import superposed

_LONGEST: Final = 7200.0  # s of a log that is simulated whole: each second is a tick of the scaler
_WARM_UP: Final = 300.0  # s before what is scored: a start, and the waits that it leaves
_WARM_PART: Final = 0.05  # of a log that is simulated whole
_WINDOW: Final = 1800.0  # s of one part: a few starts and lulls
_BUSIEST: Final = 2
_SAMPLED: Final = 3


@dataclass(frozen=True, slots=True)
class Window:
    """A part to simulate: requests that arrive in [since, until) of its own clock are scored.

    `weight`: parts of the log that it stands for, itself included.
    """

    load: Workload
    since: float
    until: float
    weight: float
    kind: str  # "all", "busiest" or "sampled"


def windows(load: Workload, most: int) -> tuple[Window, ...]:
    """Choose parts of at most `most` requests in all."""
    first = float(load.arrived[0])
    span = float(load.arrived[-1]) - first
    if len(load) <= most and span <= _LONGEST:
        whole = part(load, first, first + span + 1.0)
        return (Window(whole, min(_WARM_UP, _WARM_PART * span), span + 1.0, 1.0, "all"),)
    return _chosen(load, first, span, most)


def _chosen(load: Workload, first: float, span: float, most: int) -> tuple[Window, ...]:
    parts = _BUSIEST + _SAMPLED
    rate = len(load) / span
    length = min(_WINDOW, span / parts, max(60.0, most / parts / rate))
    number = max(parts, int(span // length))
    index = np.minimum(((load.arrived - first) // length).astype(np.int64), number - 1)
    work = np.bincount(index, weights=_weights(load), minlength=number)
    order = np.argsort(work, kind="stable")
    busiest, rest = order[-_BUSIEST:], order[:-_BUSIEST]
    rest = rest[work[rest] > 0]
    # One from the middle of each third of the others by load: quiet, usual and busy ones.
    thirds = [third for third in np.array_split(rest, _SAMPLED) if len(third)]
    chosen = [(int(i), 1.0, "busiest") for i in busiest]
    chosen += [(int(third[len(third) // 2]), float(len(third)), "sampled") for third in thirds]
    made = []
    for number, weight, kind in sorted(chosen):
        begin = first + number * length
        before = min(_WARM_UP, begin - first)
        taken = part(load, begin - before, begin + length)
        made.append(Window(taken, before, before + length, weight, kind))
    return tuple(made)


def _weights(load: Workload) -> NDArray[np.float64]:
    return load.prompt + 4.0 * load.output  # FlowSpec's weights of a prompt and an output token


def grown(found: tuple[Window, ...], factor: float, rng: np.random.Generator) -> tuple[Window, ...]:
    """The windows with `factor` times their traffic; as they are for 1."""
    return busier(found, factor - 1, rng) if factor > 1 else found


def busier(found: Sequence[Window], by: float, rng: np.random.Generator) -> tuple[Window, ...]:
    """The same windows with so much more traffic: requests of theirs again, seconds apart."""
    made = []
    for window in found:
        load = window.load
        end = float(load.arrived[-1]) if len(load) else 0.0
        times, rows = superposed(rng, load.arrived, 1 + by, jitter=_JITTER, duration=end + 1e-6)
        made.append(replace(window, load=replace(load.only(rows), arrived=times)))
    return tuple(made)


_JITTER: Final = 2.0  # s: as the arena's copies


def part(load: Workload, begin: float, end: float) -> Workload:
    """Cut out what arrives in [begin, end) of the load's clock, which begins anew there."""
    low, high = np.searchsorted(load.arrived, (begin, end)).tolist()
    cut = load.only(slice(low, high))
    return replace(cut, arrived=cut.arrived - begin, span=end - begin, origin=load.origin + begin)
