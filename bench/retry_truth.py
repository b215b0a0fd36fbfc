"""How true the gateway's Retry-After is, under clients that obey it, in simulation.

    python bench/retry_truth.py [--first 100] [--seeds 1] [--only NAME]

Asked: of the retries at the time told at least 95 % are not refused again; and of sampled refusals
the median time told is at most 1.5 x the earliest at which a retry would have got in. Beside them
by what was refused for, and how many were answered in all: truth must not be bought with idleness.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Final

from surgetank.simulation.clients import KINDS
from surgetank.studies.attainment import H100, SHAPES, TINY, Case
from surgetank.studies.retry_truth import measure

_LOADS: Final = (SHAPES[3], SHAPES[5], SHAPES[4])  # the last far beyond what is asked
_EACH: Final = {TINY: 2, H100: 5}  # refusals to one that is followed


def _row(name: str, told: list[float], earliest: list[float], ratios: list[float]) -> str:
    if not ratios:
        return f"| {name} | 0 | | | |"
    ends = f"{median(told):.1f} s | {median(earliest):.1f} s | {median(ratios):.2f}"
    return f"| {name} | {len(ratios)} | {ends} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    print(
        "| replicas, load, seed | refused | came back | let in | answered"
        " | refused for | sampled | told P50 | earliest P50 | told / earliest P50 |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for replicas in (TINY, H100):
        for shape in _LOADS:
            name = f"{replicas.profile}, {shape.name}"
            if asked.only not in name or (not asked.only and shape is _LOADS[-1]):
                continue
            for seed in range(asked.first, asked.first + asked.seeds):
                case = Case(replicas, shape, clients=KINDS["sdk"])
                found = measure(case.scenario("static", seed), each=_EACH[replicas])
                begin = (
                    f"| {name}, {seed} | {found.refused} | {found.came_back}"
                    f" | {100 * found.share:.1f} % | {found.completed} "
                )
                for outcome in sorted({t.outcome for t in found.sample}):
                    mine = [t for t in found.sample if t.outcome is outcome]
                    known = [t.earliest for t in mine if t.earliest is not None]
                    row = _row(outcome.value, [t.told for t in mine], known, found.ratios(outcome))
                    print(begin + row, flush=True)


if __name__ == "__main__":
    main()
