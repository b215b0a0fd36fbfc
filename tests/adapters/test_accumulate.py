"""Whichever way a log is added up, the figures are those of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surgetank.adapters.accumulate import accumulate
from surgetank.adapters.logs import open_log
from surgetank.adapters.parquet_logs import ParquetLog
from surgetank.adapters.parquet_seconds import _connected
from surgetank.traffic.burstiness import Accumulator

T = 1_796_006_832


def parquet(folder: Path, stamps: pa.Array, *, prompt: pa.Array | None = None) -> Path:
    folder = folder / "tenant=x"  # not to be taken for a partition
    folder.mkdir(exist_ok=True)
    path = folder / "it's [a] log*?.parquet"
    (folder / "it's a log.parquet").write_bytes(b"not for us: a glob would open it")
    columns = {"time": stamps}
    if prompt is not None:
        columns["prompt_tokens"] = prompt
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    return path


def stamps(unit: str = "us", zone: str | None = None) -> pa.Array:
    rng = np.random.default_rng(5)
    seconds = T + np.sort(rng.exponential(0.05, 3000).cumsum())
    seconds[2000:] += 86400 * 30  # a pause
    ticks = (seconds * {"ms": 1e3, "us": 1e6, "ns": 1e9}[unit]).astype(np.int64)
    return pa.array(ticks, pa.timestamp(unit, zone))


def both_ways(path: Path) -> tuple[bool, Accumulator, Accumulator]:
    added, read = Accumulator(counts_only=True), Accumulator(counts_only=True)
    with open_log(path) as log:
        assert isinstance(log, ParquetLog)
        source = accumulate(log, added)
        in_database = log.progress == 1.0 and not log.read_rows
    with open_log(path) as log:
        for batch in log:
            read.add(batch)
        assert source == log.source
    return in_database, added, read


def same(one: Accumulator, other: Accumulator) -> bool:
    assert (one.requests, one.first, one.last) == (other.requests, other.first, other.last)
    return all(
        (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))
        for a, b in zip(one.seconds.bins(), other.seconds.bins(), strict=True)
    )


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Asia/Shanghai"])
def test_seconds_added_up_in_the_database_are_those_of_the_rows(
    tmp_path: Path, unit: str, zone: str | None
) -> None:
    tokens = pa.array(np.arange(3000) % 700, pa.int32())
    in_database, added, read = both_ways(parquet(tmp_path, stamps(unit, zone), prompt=tokens))
    assert in_database
    assert same(added, read)
    assert added.seconds.bins()[2] is not None


@pytest.mark.parametrize(
    ("times", "prompt"),
    [
        (pa.array([None, T * 10**6], pa.timestamp("us")), None),
        (pa.array([-1, T * 10**6], pa.timestamp("us")), None),
        (pa.array([float(T), T + 0.5]), None),
        (pa.array([T * 10**6] * 2, pa.timestamp("us")), pa.array([None, 5])),
        (pa.array([T * 10**6] * 2, pa.timestamp("us")), pa.array([-7, 5])),
        (pa.array([T * 10**6] * 2, pa.timestamp("us")), pa.array([10**13, 5])),
        (pa.array([T * 10**6] * 2, pa.timestamp("us")), pa.array([1.5, 5])),
    ],
)
def test_what_only_rows_can_tell_is_read_by_rows(
    tmp_path: Path, times: pa.Array, prompt: pa.Array | None
) -> None:
    in_database, added, read = both_ways(parquet(tmp_path, times, prompt=prompt))
    assert not in_database
    assert same(added, read)


def test_the_database_reaches_no_other_file(tmp_path: Path) -> None:
    path = parquet(tmp_path, stamps())
    other = tmp_path / "other"
    other.write_text("secret")
    with _connected(str(path)) as connection:
        for query in (
            f"SELECT * FROM read_text('{other}')",  # noqa: S608 - a path of pytest's
            "SET enable_external_access = true",
            "INSTALL httpfs",
            f"COPY (SELECT 1) TO '{other}'",
        ):
            with pytest.raises(Exception, match=r"disabled|locked"):
                connection.execute(query)
