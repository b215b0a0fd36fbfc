"""The arena's cells over any Executor: each contender of a cell is one task, kept when it ends.

Rule: a run that was killed goes on where it was; a cell never changes what another finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from surgetank.simulation.arena.cell import FEASIBLE, HINDSIGHT, Cell, burst_share, compete
from surgetank.simulation.sweep import Case, Rows, write_parquet

Row = dict[str, Any]

_AHEAD: Final = 2  # tasks given to the Executor beyond those that run
_QUESTION: Final = "arena 3"  # to be raised when figures of older runs are not comparable


@dataclass(frozen=True, slots=True)
class Grid:
    """What to run: every policy in every cell."""

    cells: tuple[Cell, ...]
    policies: tuple[str, ...]

    def tasks(self) -> Iterator[tuple[Cell, str]]:
        """Give the tasks, cell by cell: a process keeps the cell that it made."""
        for cell in self.cells:
            for name in self.policies:
                yield cell, name


def task(cell: Cell, name: str) -> list[Row]:
    """Run one contender in one cell, in whatever process; `cpu_s`: each row's part of what it took.

    What a process has run for another task of the same cell costs nothing again.
    """
    began = time.process_time()
    unavoidable, choices = burst_share(cell), compete(cell, name)
    each = (time.process_time() - began) / len(choices)
    return [{**choice.row(), "unavoidable": unavoidable, "cpu_s": each} for choice in choices]


def run(
    grid: Grid,
    executor: Executor,
    out: Path,
    *,
    workers: int,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[Row]:
    """Run what is not there yet, keep each task's rows, and write `out` (Parquet) from all.

    Raises InputError for files that cannot be written, or hold another grid's results.
    """
    rows = Rows(out, _QUESTION)
    todo = [(_case(cell, name), cell, name) for cell, name in grid.tasks()]
    try:
        missing = iter([entry for entry in todo if entry[0].key not in rows.found])

        def done() -> int:
            return sum(case.key in rows.found for case, _, _ in todo)

        progress(done(), len(todo))
        for case, future in _in_turn(executor, missing, workers + _AHEAD):
            rows.add(case, {"choices": future.result()})
            progress(done(), len(todo))
        found = _of(grid, rows)
    finally:
        rows.close()
    found = settled(found)
    write_parquet(found, out)
    return found


def kept(grid: Grid, out: Path) -> list[Row]:
    """Give what is there already, of a run that has not ended or was killed. Raises InputError."""
    rows = Rows(out, _QUESTION)
    rows.close()
    return settled(_of(grid, rows))


def _of(grid: Grid, rows: Rows) -> list[Row]:
    keys = [_case(cell, name).key for cell, name in grid.tasks()]
    return [row for key in keys if key in rows.found for row in rows.found[key]["choices"]]


def settled(rows: Sequence[Row]) -> list[Row]:
    """Where the best fixed number is the better schedule, it is the feasible one: it knew, too."""
    fixed = {_key(row): row for row in rows if row["policy"] == HINDSIGHT and _kept(row)}
    found = []
    for row in rows:
        best = fixed.get(_key(row)) if row["policy"] == FEASIBLE else None
        if best is not None and (not _kept(row) or best["cost"] < row["cost"]):
            row = {**best, "policy": FEASIBLE}  # noqa: PLW2901 - it takes its place
        found.append(row)
    return found


def _kept(row: Row) -> bool:
    return bool(row["attainment"] >= row["target"])


def _key(row: Row) -> tuple[Any, ...]:
    names = ("workload", "start", "seed", "standbys", "standby_cost", "target")
    return tuple(row[n] for n in names)


def _case(cell: Cell, name: str) -> Case:
    return Case(
        (
            ("workload", cell.workload),
            ("start", f"{cell.start:g}"),
            ("seed", str(cell.seed)),
            ("standbys", str(cell.standbys)),
            ("policy", name),
        )
    )


def _in_turn(
    executor: Executor, missing: Iterator[tuple[Case, Cell, str]], most: int
) -> Iterator[tuple[Case, Future[list[Row]]]]:
    running: dict[Future[list[Row]], Case] = {}
    try:
        while True:
            while len(running) < most and (entry := next(missing, None)) is not None:
                case, cell, name = entry
                running[executor.submit(task, cell, name)] = case
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield running.pop(future), future
    finally:
        for future in running:
            future.cancel()
