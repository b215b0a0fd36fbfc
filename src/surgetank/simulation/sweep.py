"""Many simulations: every combination of policies, seeds and parameters, over any Executor.

Rule: each finished case is one row, kept at once; a sweep that was killed goes on where it was, and
refuses to go on when something else was asked for.

The rows are kept beside the results as JSON lines (`OUT.rows.jsonl`), each written in one piece and
keyed by its case; the Parquet file is made of them at the end, and as often as told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from surgetank.adapters.wholefile import whole_file
from surgetank.errors import InputError
from surgetank.simulation.asked import Asked, scenario, vary
from surgetank.simulation.bulk import simulate_fast
from surgetank.simulation.summary import summarise

_AHEAD: Final = 4  # cases given to the Executor beyond those that run
_PERCENTILES: Final = ("ttft", "tpot")
_LISTS: Final = ("notes", "per_tenant", "per_phase", "per_tenant_phase")


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation of a sweep: what differs from what was asked for."""

    values: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """Its name among the rows."""
        return json.dumps(dict(self.values), sort_keys=True, ensure_ascii=False)


def parse_vary(texts: Sequence[str]) -> dict[str, list[str]]:
    """Read `key=a,b,c` several times. Raises InputError.

    A value with commas of its own is written with `;` between values: `prompt=uniform:1,9;512`.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        values = [v.strip() for v in rest.split(";" if ";" in rest else ",")]
        if not equals or not key.strip() or not all(values):
            raise InputError(f"--vary {text}: must be KEY=VALUE,VALUE,... (or ; between values)")
        if key in found:
            raise InputError(f"--vary {key}: given twice")
        found[key.strip()] = values
    return found


def cases(
    policies: Sequence[str], seeds: Sequence[int], varied: Mapping[str, Sequence[str]]
) -> list[Case]:
    """Every combination; seeds change fastest, so that first results are seen early."""
    grid: dict[str, Sequence[str]] = {**varied}
    grid.setdefault("policy", policies)
    grid.setdefault("seed", [str(seed) for seed in seeds])
    names = [name for name in grid if name != "seed"] + ["seed"]
    return [
        Case(tuple(zip(names, values, strict=True)))
        for values in product(*(grid[name] for name in names))
    ]


def run_case(asked: Asked, case: Case) -> dict[str, Any]:
    """Run one case; its row: the parameters (`p.NAME`) and the summary's figures."""
    summary = asdict(summarise(simulate_fast(scenario(vary(asked, dict(case.values))))))
    row: dict[str, Any] = {f"p.{name}": value for name, value in case.values}
    for name in _PERCENTILES:
        for part, value in summary.pop(name).items():
            row[f"{name}_{part}"] = value
    lists = {name: json.dumps(summary.pop(name)) for name in _LISTS}
    return {**row, **summary, **lists}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is. `failed`: cases that raised InputError, with what it said."""

    done: int
    cases: int
    failed: tuple[tuple[str, str], ...]


class Rows:
    """The rows kept so far, in a file that can be cut off anywhere.

    Its first line says what was asked for: rows of another question are never mixed in.
    """

    def __init__(self, path: Path, question: str) -> None:
        """Open, or go on with, the rows beside `path`. Raises InputError."""
        self.path = path.with_name(path.name + ".rows.jsonl")
        self.found: dict[str, dict[str, Any]] = {}
        try:
            self._read(question)
            mended = self.path.exists() and not self._ends_well()
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            if mended:
                os.write(self._file, b"\n")
            if os.fstat(self._file).st_size == 0:
                self._line({"question": question})
        except OSError as error:
            raise InputError(f"{self.path}: cannot be used: {error.strerror}") from None

    def _ends_well(self) -> bool:
        data = self.path.read_bytes()
        return not data or data.endswith(b"\n")

    def _read(self, question: str) -> None:
        if not self.path.exists():
            return
        for number, line in enumerate(self.path.read_bytes().splitlines()):
            try:
                row = json.loads(line)
            except ValueError:  # the line that was being written when it was killed
                continue
            if number == 0 and row.get("question") != question:
                raise InputError(
                    f"{self.path}: holds results of another sweep: remove it, or use another --out"
                )
            if "case" in row:
                self.found[row["case"]] = row["row"]

    def _line(self, row: Mapping[str, Any]) -> None:
        os.write(self._file, (json.dumps(row, ensure_ascii=False) + "\n").encode())

    def add(self, case: Case, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.found[case.key] = row
        self._line({"case": case.key, "row": row})

    def close(self) -> None:
        os.close(self._file)


def sweep(
    asked: Asked,
    todo: Sequence[Case],
    executor: Executor,
    out: Path,
    *,
    workers: int,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Run what is not there yet, keep each row, and write `out` (Parquet) from all of them.

    A case that cannot be (InputError) is told in the result and has no row. Raises InputError for
    files that cannot be written.
    """
    rows = Rows(out, repr(asked))
    failed: list[tuple[str, str]] = []

    def told() -> Progress:
        done = sum(case.key in rows.found for case in todo)
        return Progress(done, len(todo), tuple(failed))

    try:
        missing = (case for case in todo if case.key not in rows.found)
        progress(told())
        for case, future in _in_turn(executor, asked, missing, workers + _AHEAD):
            try:
                rows.add(case, future.result())
            except InputError as error:
                failed.append((case.key, str(error)))
            progress(told())
        write_parquet([rows.found[case.key] for case in todo if case.key in rows.found], out)
    finally:
        rows.close()
    return told()


def _in_turn(
    executor: Executor, asked: Asked, missing: Iterator[Case], most: int
) -> Iterator[tuple[Case, Future[dict[str, Any]]]]:
    """Give cases as they end; only a few are in the Executor at once."""
    running: dict[Future[dict[str, Any]], Case] = {}
    try:
        while True:
            while len(running) < most and (case := next(missing, None)) is not None:
                running[executor.submit(run_case, asked, case)] = case
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield running.pop(future), future
    finally:
        for future in running:
            future.cancel()


def write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as one Parquet file, whole or not at all; nothing without rows."""
    if not rows:
        return
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only here
    from pyarrow import parquet  # noqa: PLC0415

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    with whole_file(path) as file:
        parquet.write_table(table, file)
