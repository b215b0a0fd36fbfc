"""Sweeps: every combination once, kept as it ends, gone on with after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from surgetank.errors import InputError
from surgetank.simulation.asked import Asked
from surgetank.simulation.sweep import Case, Progress, cases, parse_vary, run_case, sweep

ASKED = Asked(pulse="2:8:2:6:6", engine=("tiny",), prompt="60", output="10")


class Counting(Executor):
    """Runs at once, in order, and counts; it dies at a given case."""

    def __init__(self, *, dies_at: int | None = None) -> None:
        self.ran: list[str] = []
        self._dies_at = dies_at

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if len(self.ran) == self._dies_at:
            raise KeyboardInterrupt
        self.ran.append(args[1].key)
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except InputError as error:
            future.set_exception(error)
        return future


def grid() -> list[Case]:
    return cases(["passthrough", "surgetank"], [0, 1], parse_vary(["replicas=1,2"]))


def test_every_combination_is_a_case_once() -> None:
    keys = [case.key for case in grid()]
    assert len(keys) == len(set(keys)) == 8
    assert json.loads(keys[0]) == {"policy": "passthrough", "replicas": "1", "seed": "0"}


def test_results_have_a_row_for_each_case_with_its_parameters(tmp_path: Path) -> None:
    out = tmp_path / "results.parquet"
    told: list[Progress] = []
    with ThreadPoolExecutor(1) as executor:
        done = sweep(ASKED, grid(), executor, out, workers=1, progress=told.append)
    assert (done.done, done.cases, done.failed) == (8, 8, ())
    assert [p.done for p in told] == list(range(9))
    rows = parquet.read_table(out).to_pylist()
    assert [(r["p.policy"], r["p.replicas"], r["p.seed"]) for r in rows] == [
        tuple(dict(case.values)[name] for name in ("policy", "replicas", "seed")) for case in grid()
    ]
    alone = run_case(ASKED, grid()[0])
    assert rows[0] | {"wall_s": 0} == alone | {"wall_s": 0}
    assert all(r["requests"] == r["completed"] + r["refused"] + r["failed"] for r in rows)


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "results.parquet"
    first, second = Counting(dies_at=6), Counting()
    with pytest.raises(KeyboardInterrupt):
        sweep(ASKED, grid(), first, out, workers=1)
    kept = tmp_path / "results.parquet.rows.jsonl"
    rows = kept.read_bytes()
    kept.write_bytes(rows[:-40])  # killed in the middle of a line
    done = sweep(ASKED, grid(), second, out, workers=1)
    assert done.done == 8
    assert 0 < len(second.ran) < 8
    assert parquet.read_table(out).num_rows == 8
    again = Counting()
    sweep(ASKED, grid(), again, out, workers=1)
    assert again.ran == []


def test_results_of_another_question_are_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "results.parquet"
    sweep(ASKED, grid()[:1], Counting(), out, workers=1)
    other = Asked(pulse="2:9:2:6:6", engine=("tiny",))
    with pytest.raises(InputError, match="another sweep"):
        sweep(other, grid()[:1], Counting(), out, workers=1)


def test_a_case_that_cannot_be_is_told_and_does_not_end_the_others(tmp_path: Path) -> None:
    wrong = cases(["static"], [0], parse_vary(["max_replicas=1,4", "replicas=2"]))
    done = sweep(ASKED, wrong, Counting(), tmp_path / "r.parquet", workers=1)
    assert done.done == 1
    ((_, why),) = done.failed
    assert "max_replicas = 1" in why


@pytest.mark.parametrize("text", ["replicas", "replicas=", "replicas=1,,2", "=1"])
def test_what_is_no_list_of_values_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--vary"):
        parse_vary([text])


def test_values_with_commas_are_parted_by_semicolons() -> None:
    assert parse_vary(["prompt=uniform:1,9;512"]) == {"prompt": ["uniform:1,9", "512"]}
