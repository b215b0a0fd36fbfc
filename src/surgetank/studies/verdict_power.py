"""How often is a verdict right? Seeded pairs of simulated runs with a fault planted in the second.

Each pair has a schedule of its own and two services that differ in their noise; the second has the
fault as well. A fault counts as found when the verdict is "worse"; two equal services are called
different when it is "worse" or "better".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Final

import numpy as np

from surgetank.loadtest.cyclefigures import RECOVERY_TIME, view
from surgetank.loadtest.runfile import Objective
from surgetank.loadtest.verdict import DECIDING, Comparison, compare
from surgetank.studies.rehearsal import Planted, Pulses, Service, rehearse

FRESH: Final = 20_300_000
"""Base of seeds that nothing was ever chosen by: a test that the method has not seen."""

_FIRST: Final = 1_000  # seeds of the services, beyond the base: those of A, then those of B
_SECOND: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is rehearsed, by whom, and what is wrong with the second."""

    name: str
    pulses: Pulses
    service: Service
    planted: Planted
    objective: Objective = field(default_factory=Objective)


@dataclass(frozen=True, slots=True)
class Score:
    """Verdicts of one case, how often each deciding figure said so, and its mean in A and in B."""

    case: Case
    pairs: int
    verdicts: Counter[str]
    worse: Counter[str]  # by the figure's key
    means: dict[str, tuple[float, float]]

    @property
    def different(self) -> int:
        """Pairs that were called better or worse."""
        return self.verdicts["better"] + self.verdicts["worse"]


def score(
    case: Case, pairs: int, progress: Callable[[int], None] | None = None, *, base: int = 0
) -> Score:
    """Run the pairs. The same case, number and base of the seeds give the same."""

    def found() -> Iterator[Comparison]:
        for i in range(pairs):
            pulses = replace(case.pulses, seed=case.pulses.seed + base + i)
            services = (replace(case.service, seed=base + n + i) for n in (_FIRST, _SECOND))
            before = rehearse(pulses, next(services), None, case.objective)
            after = rehearse(pulses, next(services), case.planted, case.objective)
            yield compare(before, after, keys=DECIDING)
            if progress is not None:
                progress(i + 1)

    return scored(case, found())


def scored(case: Case, comparisons: Iterable[Comparison]) -> Score:
    """Count what the comparisons of one case said."""
    verdicts: Counter[str] = Counter()
    worse: Counter[str] = Counter()
    seen: dict[str, list[tuple[float, float]]] = {}
    for found in comparisons:
        verdicts[found.verdict] += 1
        for figure in found.deciding:
            worse[figure.key] += figure.says == "worse"
            if figure.a is not None and figure.b is not None:
                seen.setdefault(figure.key, []).append((figure.a, figure.b))
    means = {
        key: (mean(a for a, _ in values), mean(b for _, b in values))
        for key, values in seen.items()
    }
    return Score(case, verdicts.total(), verdicts, worse, means)


def doubling(
    pulses: Pulses, service: Service, capacity: float, seeds: Sequence[int] = range(4)
) -> Planted:
    """Find the slower recovery that doubles the recovery time, by bisection on its size."""

    def recovery(planted: Planted) -> float:
        times = []
        for seed in seeds:
            run = rehearse(
                replace(pulses, seed=seed), replace(service, seed=_FIRST + seed), planted
            )
            cut = view(run)
            assert cut.recovery is not None  # noqa: S101 - its calm is calm
            times.append(float(np.nanmean(cut.recovery.seconds)))
        return mean(times)

    wanted = 2 * recovery(Planted())
    low, high = 0.0, 4.0
    for _ in range(12):
        size = (low + high) / 2
        planted = Planted(fault="slower recovery", size=size, capacity=capacity)
        low, high = (size, high) if recovery(planted) < wanted else (low, size)
    return Planted(fault="slower recovery", size=high, capacity=capacity)


def ratio(score_: Score) -> float:
    """Recovery time of B over that of A."""
    before, after = score_.means[RECOVERY_TIME.key]
    return after / before if before else float("nan")
