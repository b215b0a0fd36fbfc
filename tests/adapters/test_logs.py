"""Logs as a user has them: files, pipes, packed, torn, long-lined, Parquet, or no log at all."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import surgetank
from surgetank.adapters import parquet_logs
from surgetank.adapters.logs import LogFile, open_log
from surgetank.errors import InputError
from surgetank.traffic.formats.reading import ReadOptions
from surgetank.traffic.trace import Source, Trace, concatenate

T = 1_796_006_832.0
ROWS = "".join(f"{T + n * 0.25},{n % 7},{n % 3}\n" for n in range(2000))
CSV = ("arrival_time,prompt_tokens,output_tokens\n" + ROWS).encode()


def read(path: str | Path, options: ReadOptions | None = None, **more: str) -> Trace:
    with open_log(path, options, **more) as log:
        batches = list(log)
        return Trace.of(batches, log.source)


def written(folder: Path, data: bytes, name: str = "requests.csv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_log_is_the_same_however_it_is_packed(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    trace = read(written(tmp_path, pack(CSV), "a.log"))
    assert len(trace) == 2000
    assert trace.span == 1999 * 0.25
    assert trace.batch.prompt_tokens is not None
    assert trace.batch.prompt_tokens[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert (trace.source.rows, trace.source.skipped) == (2000, 0)
    assert trace.source.path.endswith("a.log")


def test_standard_input_is_read_by_its_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(CSV))))
    with open_log("-") as log:
        assert log.progress is None
        assert sum(map(len, log)) == 2000
        assert log.source.path == "-"


def test_progress_goes_to_one(tmp_path: Path) -> None:
    with open_log(written(tmp_path, CSV)) as log:
        for _ in log:
            pass
        assert log.progress == 1.0


def test_a_torn_gzip_is_read_as_far_as_it_goes_with_a_note(tmp_path: Path) -> None:
    trace = read(written(tmp_path, gzip.compress(CSV)[:-200]))
    assert 100 < len(trace) < 2000
    assert trace.batch.arrived.tolist() == [T + n * 0.25 for n in range(len(trace))]
    assert trace.source.skipped == 1
    assert trace.source.bad[0].line == len(trace) + 2
    assert trace.source.bad[0].reason == "the gzip stream ends early"
    assert trace.source.notes[-1].startswith("the gzip stream ends early")


def test_a_long_line_is_a_bad_row_and_its_number_is_right(tmp_path: Path) -> None:
    long = b"9" * (3 << 20) + b"\n"
    head, _, rest = CSV.partition(b"\n")
    lines = rest.split(b"\n")
    data = b"\n".join([head, *lines[:10]]) + b"\n" + long + b"\n".join(lines[10:]) + b"x,1,1\n"
    trace = read(written(tmp_path, data))
    assert len(trace) == 2000
    assert trace.source.bad[0].reason == "longer than 1 MB"
    assert [bad.line for bad in trace.source.bad] == [12, 2003]


def test_a_log_that_begins_with_a_long_line_is_still_told(tmp_path: Path) -> None:
    trace = read(written(tmp_path, b"#" * (2 << 20) + b"\n" + CSV))
    assert len(trace) == 2000


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_line_of_100_mb_costs_a_few_mb(tmp_path: Path) -> None:
    """Peak memory of a process of its own, beside that of reading the same log without the line."""
    code = (
        "import sys\n"
        "from surgetank.adapters.logs import open_log\n"
        "with open_log(sys.argv[1]) as log:\n"
        "    rows = sum(map(len, log))\n"
        # Not ru_maxrss: that begins with the peak of the process that started this one.
        "peak = next(x for x in open('/proc/self/status') if x.startswith('VmHWM'))\n"
        "print(rows, int(peak.split()[1]) >> 10)\n"
    )

    def peak(content: bytes) -> int:
        done = subprocess.run(
            [sys.executable, "-c", code, str(written(tmp_path, content))],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        rows, megabytes = map(int, done.stdout.split())
        assert rows == 4000
        return megabytes

    short = CSV + ROWS.encode()
    long = CSV + b'{"prompt":"' + b"a" * (100 << 20) + b'"}\n' + ROWS.encode()
    for pack in (bytes, gzip.compress, zstandard.compress):
        assert peak(pack(long)) - peak(pack(short)) < 40


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty once unpacked"),
        (b"\n\n", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PAR1 but no more", "is not whole as Parquet"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_the_file(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=said) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_format_is_told_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be one of"):
        read(written(tmp_path, CSV), format="cvs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, CSV)
    path.chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        read(path)


def test_the_format_is_told_from_many_lines_not_from_the_first_bytes(tmp_path: Path) -> None:
    fields = b"#Version: 1.0\n#Fields: date time cs-method cs-uri-stem sc-status time-taken\n"
    row = b"2026-11-30\t02:47:12\tPOST\t/v1/chat/completions\t200\t1.5\n"
    trace = read(written(tmp_path, fields + row))
    assert (trace.source.format, len(trace)) == ("cloudfront", 1)


# Parquet.


def parquet(folder: Path, name: str = "log.parquet", **columns: object) -> Path:
    path = folder / name
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


MICROS = [1_796_006_832_000_000 + n * 250_000 for n in range(5)]


@pytest.mark.parametrize(
    "stamps",
    [
        pa.array(MICROS, pa.timestamp("us")),
        pa.array(MICROS, pa.timestamp("us", "Europe/Paris")),
        pa.array([m // 1000 for m in MICROS], pa.timestamp("ms")),
        pa.array([m * 1000 for m in MICROS], pa.timestamp("ns")),
        pa.array([m / 1e6 for m in MICROS]),
        pa.array([m // 1000 for m in MICROS]),
        pa.array(
            [f"2026-11-30T02:47:12.{n * 25:02d}Z" for n in range(4)] + ["2026-11-30T02:47:13Z"]
        ),
    ],
)
def test_parquet_times_of_every_type_are_unix_seconds(tmp_path: Path, stamps: pa.Array) -> None:
    trace = read(parquet(tmp_path, timestamp=stamps, prompt=pa.array(range(5))))
    assert trace.batch.arrived.tolist() == pytest.approx([m / 1e6 for m in MICROS], abs=1e-9)
    assert trace.source.format == "parquet"


def test_parquet_columns_are_guessed_and_gaps_stay_gaps(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        created_at=pa.array(MICROS, pa.timestamp("us")),
        input_tokens=pa.array([1, None, 3, 4, 5], pa.int32()),
        completion_tokens=pa.array([1, 2, 3, 4, 5], pa.uint16()),
        latency_ms=pa.array([500.0, None, 1.0, 2.0, float("nan")]),
        tenant=pa.array(["a", "b", None, "", "a"]),
        status=pa.array([200, 429, 499, 500, None]),
        secret_prompt=pa.array(["do not read"] * 5),
    )
    batch = read(path).batch
    assert batch.prompt_tokens is not None
    assert batch.prompt_tokens.tolist() == [1, -1, 3, 4, 5]
    assert batch.output_tokens is not None
    assert batch.output_tokens.tolist() == [1, 2, 3, 4, 5]
    assert batch.duration is not None
    assert np.array_equal(batch.duration, [0.5, np.nan, 0.001, 0.002, np.nan], equal_nan=True)
    assert batch.tenant is not None
    assert [batch.tenant.names[c] if c >= 0 else None for c in batch.tenant.codes] == [
        "a",
        "b",
        None,
        None,
        "a",
    ]
    assert batch.ended is not None
    assert batch.ended.tolist() == [0, 1, 3, 2, -1]
    assert batch.model is None


def test_parquet_tells_counts_from_texts_of_the_same_name(tmp_path: Path) -> None:
    texts = pa.array(["do not read"] * 2)
    path = parquet(tmp_path, t=pa.array([1.0, 2.0]), prompt=pa.array([7, 8]), output=texts)
    batch = read(path).batch
    assert batch.prompt_tokens is not None
    assert batch.prompt_tokens.tolist() == [7, 8]
    assert batch.output_tokens is None


def test_parquet_rows_without_a_time_or_with_an_absurd_count_are_bad_rows(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        time=pa.array([None, *MICROS[1:]], pa.timestamp("us")),
        prompt_tokens=pa.array([1, 2, -5, 4, 5]),
    )
    trace = read(path)
    assert trace.batch.arrived.tolist() == [MICROS[i] / 1e6 for i in (1, 3, 4)]
    assert (trace.source.rows, trace.source.skipped) == (3, 2)
    assert [(bad.line, bad.reason) for bad in trace.source.bad] == [
        (1, "has no time"),
        (3, "has a count or a time that is none"),
    ]


def test_parquet_ends_become_arrivals(tmp_path: Path) -> None:
    path = parquet(tmp_path, finished_at=pa.array([10.0, 12.0]), duration=pa.array([1.0, 4.0]))
    trace = read(path)
    assert trace.batch.arrived.tolist() == [8.0, 9.0]
    assert trace.source.arrival_from == "end - duration"


def test_parquet_takes_a_column_a_zone_and_an_origin(tmp_path: Path) -> None:
    path = parquet(tmp_path, when=pa.array(MICROS, pa.timestamp("us")), n=pa.array(range(5)))
    zone = timezone(timedelta(hours=8))
    options = ReadOptions(columns={"arrived": "when", "output_tokens": "n"}, timezone=zone)
    batch = read(path, options).batch
    assert batch.arrived[0] == MICROS[0] / 1e6 - 8 * 3600
    assert batch.output_tokens is not None
    relative = parquet(tmp_path, "r.parquet", t=pa.array([0.5, 1.5]))
    assert read(relative, ReadOptions(start=T)).batch.arrived.tolist() == [T + 0.5, T + 1.5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (None, "no column of times among when, n"),
        (ReadOptions(columns={"arrived": "then"}), "has no column 'then': it has when, n"),
        (ReadOptions(columns={"arrival": "when"}), "must be one of arrived"),
    ],
)
def test_parquet_without_usable_columns_says_what_would_do(
    tmp_path: Path, options: ReadOptions | None, said: str
) -> None:
    path = parquet(tmp_path, when=pa.array(MICROS, pa.timestamp("us")), n=pa.array(range(5)))
    with pytest.raises(InputError, match=said):
        read(path, options)


def test_names_that_never_repeat_are_not_held_beyond_their_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_logs, "ROWS", 1000)
    monkeypatch.setattr(parquet_logs, "_FEW", 100)
    path = tmp_path / "log.parquet"
    columns = {
        "time": pa.array(T + np.arange(5000.0)),
        "session_id": pa.array([f"s{n}" for n in range(5000)]),
        "tenant": pa.array([f"t{n % 7}" for n in range(5000)]),
    }
    pq.write_table(pa.table(columns), path, row_group_size=5000)
    with open_log(path) as log:
        batches = list(log)
    assert [len(b) for b in batches] == [1000] * 5
    assert [len(b.session.names) for b in batches if b.session] == [1000] * 5
    joined = concatenate(batches)
    assert joined.session is not None
    assert joined.session.names == tuple(f"s{n}" for n in range(5000))
    assert joined.tenant is not None
    assert [joined.tenant.names[c] for c in joined.tenant.codes[-3:]] == ["t6", "t0", "t1"]


def test_categories_of_a_data_frame_are_names_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_logs, "ROWS", 100)
    monkeypatch.setattr(parquet_logs, "_FEW", 100)
    sessions = [f"s{n}" for n in range(1000)]
    path = tmp_path / "log.parquet"
    columns = {
        "time": pa.array(T + np.arange(1000.0)),
        "session_id": pa.array(sessions).dictionary_encode(),
        "tenant": pa.array(["a", None] * 500).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), path)
    with open_log(path) as log:
        batches = list(log)
    joined = concatenate(batches)
    assert joined.session is not None
    assert joined.session.names == tuple(sessions)
    assert joined.tenant is not None
    assert joined.tenant.names == ("a",)
    assert joined.tenant.codes.tolist() == [0, -1] * 500
    assert all(len(b.session.names) <= 200 for b in batches if b.session)


def test_a_column_of_lists_is_no_column_of_names(tmp_path: Path) -> None:
    path = parquet(tmp_path, t=pa.array([1.0, 2.0]), tenant=pa.array([["a"], ["b"]]))
    batch = read(path).batch
    assert batch.arrived.tolist() == [1.0, 2.0]
    assert batch.tenant is None


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a"], ["b"]]),
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([b"2026-11-30T02:47:12Z", b"7"]),
        pa.array([True, False]),
        pa.array([None, None], pa.null()),
        pa.array([1, 2], pa.time64("us")),
        pa.array([1, 2], pa.duration("us")),
        pa.array([1, 2], pa.date32()),
        pa.array(["1.50", "2"], pa.string()),
        pa.array([1, 2], pa.decimal128(9, 2)),
    ],
)
@pytest.mark.parametrize(
    "name", ["arrived", "prompt_tokens", "duration", "ttft", "tenant", "session_id", "status"]
)
def test_a_column_of_any_type_gives_rows_bad_rows_or_one_line(
    tmp_path: Path, name: str, column: pa.Array
) -> None:
    others = {} if name == "arrived" else {"time": pa.array([1.0, 2.0])}
    path = parquet(tmp_path, **others, **{name: column})
    try:
        source = read(path).source
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert source.rows + source.skipped == 2


def test_parquet_is_told_by_content_and_a_wrong_format_is_said(tmp_path: Path) -> None:
    path = parquet(tmp_path, "named.csv", t=pa.array([1.0, 2.0]))
    assert read(path).source.format == "parquet"
    with pytest.raises(InputError, match="is Parquet: leave out"):
        read(path, format="csv")
    with pytest.raises(InputError, match="is not Parquet"):
        read(written(tmp_path, CSV, "x.parquet"), format="parquet")


def test_a_log_is_closed_after_its_block(tmp_path: Path) -> None:
    log: LogFile
    with open_log(written(tmp_path, CSV)) as log:
        next(iter(log))
    assert isinstance(log.source, Source)


# From a notebook.


def test_a_notebook_reads_a_log_sorted_with_the_options_by_name(tmp_path: Path) -> None:
    rows = ROWS.splitlines(keepends=True)
    shuffled = "when,in,out\n" + "".join(rows[1000:] + rows[:1000])
    trace = surgetank.read_log(written(tmp_path, shuffled.encode()), columns={"arrived": "when"})
    assert trace.batch.arrived.tolist() == [T + n * 0.25 for n in range(2000)]
    with pytest.raises(TypeError, match="colums"):
        surgetank.read_log(tmp_path, colums={})
    assert "read_log" in dir(surgetank)
    with pytest.raises(AttributeError, match="no attribute 'read_logs'"):
        surgetank.read_logs  # noqa: B018 - the lookup is what fails


def test_options_of_a_notebook_are_words_and_mistakes_are_told(tmp_path: Path) -> None:
    log = written(tmp_path, b"when\n2026-11-30 10:47:12\n2026-11-30 10:47:13\n")
    trace = surgetank.read_log(log, columns={"arrived": "when"}, timezone="+08:00")
    assert trace.batch.arrived[0] == 1796006832.0
    with pytest.raises(InputError, match="timezone = 'Mars': must be UTC"):
        surgetank.read_log(log, timezone="Mars")
    with pytest.raises(InputError, match="time_unit = 'msec': must be one of s, ms"):
        surgetank.read_log(log, time_unit="msec")


def test_a_date_without_a_year_is_of_this_year(tmp_path: Path) -> None:
    line = b"INFO 06-30 10:47:12 [logger.py:63] Received request chatcmpl-5: prompt: 'x y', params:"
    log = written(tmp_path, line + b" SamplingParams(n=1, max_tokens=512), x: None.\n")
    found = datetime.fromtimestamp(surgetank.read_log(log).batch.arrived[0], UTC)
    assert found.year == datetime.now(UTC).year


def test_importing_surgetank_loads_nothing_heavy() -> None:
    code = (
        "import sys, surgetank\nprint({'numpy', 'numba', 'duckdb', 'pyarrow'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
