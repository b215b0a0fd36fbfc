"""Every autoscaler in one arena: what it costs each to keep an objective, beside the bound.

    python bench/scaling.py OUT.parquet [--subset | --full] [--html OUT.html] [--workers N]
    python bench/scaling.py OUT.parquet --cell pulses,60,0 [--policy hpa,surgetank]
    python bench/scaling.py OUT.parquet --fresh SEED
    python bench/scaling.py OUT.parquet --standbys 0,2,4,8 [--markdown docs/concepts/arena.md]

The standard grid: eight workloads x starts of 20, 60 and 155 s x three seeds; each choice at a
standby cost of 1 and of 0.25, for 95 and 99 % of the requests within a TTFT of 1 s and a TPOT of
100 ms. It goes on where it was. `--traces FOLDER` has the public traces. `--standbys` is a study of
its own: rules with and without a warm pool, on flash crowds. `--markdown` writes the tables into a
page between its marks, `--there` from the rows that are there, without running the rest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from surgetank.errors import InputError
from surgetank.report.files import write_whole
from surgetank.simulation.arena import findings, markdown, table
from surgetank.simulation.arena.cell import REFERENCES, Cell, cells
from surgetank.simulation.arena.contenders import CONTENDERS
from surgetank.simulation.arena.grid import Grid, kept, run
from surgetank.simulation.arena.workloads import SCENARIOS
from surgetank.simulation.executors import dask, processes

Row = findings.Row

STARTS = (20.0, 60.0, 155.0)
FULL_STARTS = (20.0, 60.0, 103.0, 155.0, 420.0)
SEEDS = (0, 1, 2)
FULL_SEEDS = (0, 1, 2, 3, 4)
SUBSET = ("pulses", "flash-crowds")
STUDY = ("flash-crowds",)
STUDY_POLICIES = tuple(n for n in CONTENDERS if n not in {"static", "surgetank"})
SUBSET_POLICIES = (*REFERENCES, "static", "hpa", "kpa", "ttft-gradient-down", "surgetank")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--subset", action="store_true", help="five minutes")
    size.add_argument("--full", action="store_true", help="five starts and seeds: a night")
    size.add_argument("--cell", help="WORKLOAD,START,SEED: one cell alone")
    size.add_argument("--fresh", type=int, metavar="SEED", help="one seed of your own")
    size.add_argument("--standbys", metavar="K,K", help="warm pools of these sizes, flash crowds")
    parser.add_argument("--policy", help="some of the contenders, by name")
    parser.add_argument("--workload", help="some of the workloads, by name")
    parser.add_argument("--start", help="some of the start times, seconds")
    parser.add_argument("--seed", help="some of the seeds")
    parser.add_argument("--traces", default="", help="folder of the public traces")
    parser.add_argument("--html", type=Path)
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the tables into it")
    parser.add_argument("--there", action="store_true", help="run nothing: what is there already")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dask", metavar="ADDRESS")
    asked = parser.parse_args(arguments)
    try:
        grid = _grid(asked)
    except InputError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    began, cpu = time.monotonic(), time.process_time()

    def told(done: int, of: int) -> None:
        if sys.stderr.isatty() or done == of:
            spent = time.monotonic() - began
            print(f"\r{done}/{of} in {spent:.0f} s", end="", file=sys.stderr, flush=True)

    try:
        rows = kept(grid, asked.out) if asked.there else _run(grid, asked, told)
        _tell(rows, grid, asked)
    except InputError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    used = time.process_time() - cpu + sum(os.times()[2:4])
    spent = "the cluster's CPU time is its own" if asked.dask else f"{used / 3600:.2f} CPU-hours"
    print(f"{len(rows)} choices of {findings.hours(rows):.2f} CPU-hours; now {spent}")
    return 1 if any(p.startswith("BELOW") for p in table.problems(rows)) else 0


def _run(grid: Grid, asked: argparse.Namespace, told: Callable[[int, int], None]) -> list[Row]:
    place = dask(asked.dask) if asked.dask else processes(asked.workers)
    with place as (executor, workers):
        rows = run(grid, executor, asked.out, workers=workers, progress=told)
    print(file=sys.stderr)
    return rows


def _tell(rows: list[Row], grid: Grid, asked: argparse.Namespace) -> None:
    if asked.standbys:
        text = markdown.study(rows)
        print(text)
    else:
        text = markdown.grid(rows, len(grid.cells))
        print(table.text(rows))
        print(f"\n{findings.short_bursts(rows)}")
        problems = table.problems(rows)
        if problems:
            print("\n".join(problems))
        elif any(row["policy"] == REFERENCES[0] for row in rows):
            print("bound <= feasible, and bound <= every policy: kept")
    if asked.markdown is not None:
        markdown.put(asked.markdown, "arena: pools" if asked.standbys else "arena: grid", text)
    if asked.html is not None:
        write_whole(asked.html, table.page(rows))


def _grid(asked: argparse.Namespace) -> Grid:
    policies = asked.policy.split(",") if asked.policy else [*REFERENCES, *CONTENDERS]
    workloads = asked.workload.split(",") if asked.workload else list(SCENARIOS)
    if asked.cell:
        parts = asked.cell.split(",")
        if len(parts) != 3:
            raise InputError(f"--cell {asked.cell}: must be WORKLOAD,START,SEED as pulses,60,0")
        return Grid(
            (Cell(parts[0], float(parts[1]), int(parts[2]), asked.traces),), tuple(policies)
        )
    if asked.standbys:
        chosen = policies if asked.policy else [*STUDY_POLICIES]
        starts = [float(s) for s in asked.start.split(",")] if asked.start else [60.0]
        seeds = [int(s) for s in asked.seed.split(",")] if asked.seed else [*SEEDS]
        pools = [int(k) for k in asked.standbys.split(",")]
        return Grid(tuple(cells(STUDY, starts, seeds, asked.traces, pools)), tuple(chosen))
    if asked.subset:
        chosen = policies if asked.policy else SUBSET_POLICIES
        return Grid(tuple(cells(SUBSET, (60.0,), (0,), asked.traces)), tuple(chosen))
    seeds = list(FULL_SEEDS if asked.full else SEEDS if asked.fresh is None else (asked.fresh,))
    if asked.seed:
        seeds = [int(seed) for seed in asked.seed.split(",")]
    starts = list(FULL_STARTS if asked.full else STARTS)
    if asked.start:
        starts = [float(start) for start in asked.start.split(",")]
    return Grid(tuple(cells(workloads, starts, seeds, asked.traces)), tuple(policies))


if __name__ == "__main__":
    raise SystemExit(main())
