"""How often `surgetank compare` is right, on runs with planted faults: simulated, and live.

    python bench/verdict.py [--pairs 100] [--quick] [--only TEXT] [--fresh]
    python bench/verdict.py --live [--pairs 10] [--quick] [--keep FOLDER]

Simulated: prints the table of docs/concepts/verdicts.md. One replica (Llama 3.1 8B on an H100, as
the engine model has it, able to sustain some 67 requests/s) meets pulses of 20 to 80 requests/s,
30 s of every 90. `--fresh` takes seeds that nothing was chosen by. Exits 1 when a planted fault is
found in fewer than 95 of 100 runs of 20 cycles, or two equal services are called different in more
than 10.

Live: `surgetank engine` processes on loopback, 20 cycles of 4 s. The reference, an equal one and
three with a fault run side by side, pair by pair: ten pairs take some 15 minutes (`--quick`: two,
three minutes). Exits 1 when the verdict of most pairs is wrong, or a sender was too late.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from surgetank.loadtest.runfile import Run, write_run
from surgetank.loadtest.verdict import DECIDING, Comparison, compare
from surgetank.studies.live_verdicts import REFERENCE, Bed, run_side_by_side
from surgetank.studies.rehearsal import Planted, Pulses, Service
from surgetank.studies.verdict_power import FRESH, Case, Score, doubling, ratio, score, scored

CAPACITY = 67.0
SLOWER = Planted(fault="slower pulses", size=0.10)
REFUSALS = Planted(fault="refusals", size=0.02)
LIVE_SEED = 7_000  # of the schedules and services of live pairs: those after it
FIGURES = {
    "ttft_p95_pulse": "TTFT",
    "recovery": "recovery",
    "attainment": "attainment",
    "unserved": "not served",
}


def faults(doubled: Planted) -> dict[str, Planted]:
    """Give what is planted, by name."""
    return {
        "equal": Planted(),
        "10 % slower in pulses": SLOWER,
        "recovery doubled": doubled,
        "2 % refused": REFUSALS,
    }


def right(fault: str) -> str:
    """Say which verdict is right."""
    return "no difference" if fault == "equal" else "worse"


def cases(*, quick: bool) -> Iterator[Case]:
    over, kept = Pulses(), Pulses(peak=55)
    usual = Service()
    planted = faults(doubling(over, usual, CAPACITY))

    def of(name: str, pulses: Pulses, service: Service, *, skip: str = "") -> Iterator[Case]:
        for fault, one in planted.items():
            if fault != skip:
                yield Case(name=f"{name}|{fault}", pulses=pulses, service=service, planted=one)

    yield from of("overloaded, 20 cycles", over, usual)
    if quick:
        return
    nothing = "recovery doubled"  # there is none where pulses are kept up with
    yield from of("kept up (peak 55), 20 cycles", kept, usual, skip=nothing)
    for count in (5, 10):
        yield from of(f"overloaded, {count} cycles", replace(over, cycles=count), usual)
    noisy = replace(usual, speed_cv=0.10)
    yield from of("speed CV 10 %, 20 cycles", over, noisy)
    drifting = replace(usual, speed_cv=0.05, speed_scale=600.0)
    yield from of("speed CV 5 % over 10 min", over, drifting)
    yield from live_cases("as the live ones, 20 cycles", Bed())


def live_cases(name: str, bed: Bed) -> Iterator[Case]:
    planted = faults(doubling(bed.pulses, bed.service, bed.capacity))
    for fault, one in planted.items():
        yield Case(
            name=f"{name}|{fault}",
            pulses=bed.pulses,
            service=bed.service,
            planted=one,
            objective=bed.objective,
        )


def row(found: Score) -> list[str]:
    name, fault = found.case.name.split("|")
    times = found.means.get("ttft_p95_pulse")
    return [
        name,
        fault,
        str(found.verdicts["worse"]),
        str(found.verdicts["better"]),
        ", ".join(str(found.worse[key]) for key in FIGURES),
        "-" if times is None else f"{times[0]:.3g}, {times[1]:.3g}",
        f"{ratio(found):.2f}",
    ]


def table(title: str) -> Table:
    made = Table("service", "B is", "called worse", "better", title=title)
    made.add_column("worse by " + ", ".join(FIGURES.values()))
    for name in ("TTFT P95 A, B (s)", "recovery B / A"):
        made.add_column(name)
    return made


def simulated(*, pairs: int, quick: bool, only: str, base: int) -> list[str]:
    """Print the table; return the lines that miss their bar."""
    made = table(f"verdicts, simulated, {pairs} pairs a line, seeds from {base:,}")
    missed = []
    for case in cases(quick=quick):
        if only not in case.name:
            continue
        began = time.process_time()
        found = score(case, pairs, base=base)
        cells = row(found)
        print(" | ".join(cells), f"| {time.process_time() - began:.0f} s of CPU", flush=True)
        made.add_row(*cells)
        if case.name.startswith("overloaded, 20"):
            equal = case.name.endswith("|equal")
            count = found.different if equal else found.verdicts["worse"]
            kept = count <= 0.10 * pairs if equal else count >= 0.95 * pairs
            if not kept:
                missed.append(case.name)
    Console(width=200).print(made)
    return missed


async def live(*, pairs: int, keep: Path | None) -> list[str]:
    """Print the verdicts pair by pair, then the table; return the faults that were misjudged."""
    bed = Bed()
    wanted = {case.name.split("|")[1]: case for case in live_cases("live, 20 cycles", bed)}
    found: dict[str, list[Comparison]] = {fault: [] for fault in wanted}
    missed = []
    for number in range(pairs):
        seed = LIVE_SEED + 100 * number
        pair = replace(
            bed,
            pulses=replace(bed.pulses, seed=seed),
            service=replace(bed.service, seed=seed),
        )
        runs = await run_side_by_side(pair, {name: case.planted for name, case in wanted.items()})
        if keep is not None:
            write_all(keep, number, runs)
        late = max(float(run.sender["lag"]["p99"]) for run in runs.values())
        print(f"pair {number + 1}: send lag P99 {late * 1e3:.2f} ms at most", flush=True)
        if not all(run.sender["valid"] for run in runs.values()):
            missed.append(f"the sender of pair {number + 1} was too late")
        for fault, comparisons in found.items():
            one = compare(runs[REFERENCE], runs[fault], keys=DECIDING)
            comparisons.append(one)
            print(f"  {fault}: {one.line}", flush=True)
    made = table(f"verdicts, live, {pairs} pairs")
    for fault, comparisons in found.items():
        result = scored(wanted[fault], comparisons)
        made.add_row(*row(result))
        verdict, times = most(result.verdicts)
        print(f"{fault}: {verdict} in {times} of {pairs}: {dict(result.verdicts)}")
        if verdict != right(fault) or 2 * times <= pairs:
            missed.append(fault)
    Console(width=200).print(made)
    return missed


def most(verdicts: Counter[str]) -> tuple[str, int]:
    """Give the verdict of most pairs, and of how many."""
    return verdicts.most_common(1)[0]


def write_all(folder: Path, number: int, runs: Mapping[str, Run]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, run in runs.items():
        plain = "".join(c if c.isalnum() else "-" for c in name)
        write_run(folder / f"pair-{number + 1:02d}-{plain}.json", run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--live", action="store_true", help="with real processes, in real time")
    parser.add_argument("--pairs", type=int, help="pairs of runs for each line (100; live: 10)")
    parser.add_argument("--quick", action="store_true", help="judged lines only; live: two pairs")
    parser.add_argument("--only", default="", help="only lines whose name has this text")
    parser.add_argument("--fresh", action="store_true", help="on seeds nothing was chosen by")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the live runs' files")
    asked = parser.parse_args()
    if asked.live:
        pairs = asked.pairs or (2 if asked.quick else 10)
        missed = uvloop.run(live(pairs=pairs, keep=asked.keep))
        kept = "kept: most pairs of each fault are judged right"
    else:
        base = FRESH if asked.fresh else 0
        missed = simulated(pairs=asked.pairs or 100, quick=asked.quick, only=asked.only, base=base)
        kept = "kept: >= 95 % found, <= 10 % false"
    print(f"MISSED: {', '.join(missed)}" if missed else kept)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
