"""`analyze` on large logs beside bare DuckDB and msgspec, in one session on one machine.

Logs are made from a seed in a temporary folder: Parquet (time stamp, tenant, prompt and output
tokens; a pulse every 90 s), nginx JSON lines, and such columns as CSV and as JSON lines. Every
figure is the CPU time (user + system) of a process of its own, its start included, and its peak
memory; rounds are interleaved, and what is held to a bound is the ratio to the peer within a round.
Exits 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

SEED: Final = 20261130
T0: Final = 1_796_006_832.0
CHUNK: Final = 1_000_000  # rows made at once
TENANTS: Final = 50
BASE, PEAK, WIDTH, PERIOD = 500.0, 2000.0, 30.0, 90.0  # requests/s, s
MB: Final = 1 << 20

COUNTS_RATIO: Final = 2.0  # `--counts` / DuckDB, CPU time
FULL_RATIO: Final = 6.0  # the whole JSON / DuckDB
PLAIN_RATIO: Final = 6.0  # the same of CSV and JSON lines
FULL_MB: Final = 1000.0  # peak memory of it
FLOOR_RATIO: Final = 3.0  # nginx JSON to figures / decoding its lines and no more
LINES_PER_SECOND: Final = 300_000.0  # of nginx JSON, by one process, per second of its CPU time

# Figures that may be null for the Parquet log, and why; a log of lines states no tokens at all.
EXPLAINED: Final = {
    "sessions": "the log has no session ids",
    "others": "all tenants are listed",
    "interarrival_refused": "nothing was refused",
    "pulse": "none was found",
    "burst_seconds": "no burst was found",
    "episodes": "no one tenant caused it",
    "periodicity": "no such period in a log this short",
    "details.mmpp2": "the fit found no second state",
}


@dataclass(slots=True)
class Cost:
    """What one process took."""

    cpu: float  # s, user + system
    wall: float  # s
    peak_mb: float


# The logs.


def arrivals(rng: np.random.Generator, start: float, number: int) -> np.ndarray[Any, Any]:
    """Draw arrivals of a pulsed Poisson stream: gaps at a base of PEAK, thinned between pulses."""
    stamps = np.empty(0)
    while len(stamps) < number:
        made = start + np.cumsum(rng.exponential(1 / PEAK, 2 * number))
        kept = ((made - T0) % PERIOD < WIDTH) | (rng.random(len(made)) < BASE / PEAK)
        stamps = np.concatenate([stamps, made[kept]])
        start = float(made[-1])
    return stamps[:number]


def make_parquet(path: Path, rows: int) -> None:
    import pyarrow as pa  # noqa: PLC0415 - a step's process loads only what it measures
    import pyarrow.parquet as pq  # noqa: PLC0415

    rng = np.random.default_rng(SEED)
    names = pa.array([f"tenant-{i:02d}" for i in range(TENANTS)])
    share = 1 / np.arange(1, TENANTS + 1)
    schema = pa.schema(
        [
            ("timestamp", pa.timestamp("us")),
            ("tenant", pa.dictionary(pa.int32(), pa.string())),
            ("prompt", pa.int32()),
            ("output", pa.int32()),
        ]
    )
    last = T0
    with pq.ParquetWriter(path, schema) as file:
        for start in range(0, rows, CHUNK):
            number = min(CHUNK, rows - start)
            stamps = arrivals(rng, last, number)
            last = float(stamps[-1])
            tenants = rng.choice(TENANTS, number, p=share / share.sum()).astype(np.int32)
            columns = [
                pa.array((stamps * 1e6).astype(np.int64), pa.timestamp("us")),
                pa.DictionaryArray.from_arrays(tenants, names),
                pa.array(rng.lognormal(6, 1, number).astype(np.int32)),
                pa.array(rng.lognormal(5, 0.8, number).astype(np.int32)),
            ]
            file.write_table(pa.table(columns, schema=schema))


LINE: Final = (
    '{"time_iso8601":"2026-11-30T10:47:12+08:00","msec":"%.3f","remote_addr":"203.0.113.%d",'
    '"request_method":"POST","request_uri":"/v1/chat/completions","status":"%d",'
    '"request_length":"%d","bytes_sent":"%d","request_time":"%.3f",'
    '"upstream_connect_time":"0.001","upstream_header_time":"%.3f",'
    '"upstream_response_time":"%.3f","upstream_addr":"10.0.4.12:8000",'
    '"http_x_tenant_id":"team-%d","request_id":"%032x"}\n'
)


def make_lines(path: Path, lines: int) -> None:
    rng = np.random.default_rng(SEED)
    last = T0
    number = 0
    with path.open("w", encoding="ascii") as file:
        for start in range(0, lines, CHUNK // 10):
            here = min(CHUNK // 10, lines - start)
            stamps = arrivals(rng, last, here)
            last = float(stamps[-1])
            took = rng.lognormal(0, 0.8, here)
            columns = (
                stamps,
                rng.integers(1, 255, here),
                rng.choice([200, 200, 200, 200, 200, 200, 200, 200, 429, 499], here),
                rng.integers(300, 9000, here),
                rng.integers(300, 90_000, here),
                took,
                took / 3,
                took,
                rng.integers(0, 20, here),
                np.arange(number, number + here),
            )
            number += here
            file.writelines(LINE % row for row in zip(*(c.tolist() for c in columns), strict=True))


def make_plain(path: Path, rows: int) -> None:
    """Write the columns of the Parquet log as CSV with dates, or as JSON lines with numbers."""
    rng = np.random.default_rng(SEED)
    is_csv = path.suffix == ".csv"
    row = '{"timestamp":%.6f,"tenant":"tenant-%02d","prompt_tokens":%d,"output_tokens":%d}\n'
    last = T0
    with path.open("w", encoding="ascii") as file:
        if is_csv:
            row = "%s,tenant-%02d,%d,%d\n"
            file.write("timestamp,tenant,prompt_tokens,output_tokens\n")
        for start in range(0, rows, CHUNK // 10):
            here = min(CHUNK // 10, rows - start)
            stamps = arrivals(rng, last, here)
            last = float(stamps[-1])
            dates = np.datetime_as_string((stamps * 1e6).astype("datetime64[us]"))
            columns = (
                dates if is_csv else stamps,
                rng.integers(0, TENANTS, here),
                rng.lognormal(6, 1, here).astype(np.int64),
                rng.lognormal(5, 0.8, here).astype(np.int64),
            )
            file.writelines(
                row % cells for cells in zip(*(c.tolist() for c in columns), strict=True)
            )


# What is measured: each in a process of its own.


def ours(path: str, *, counts_only: bool = False) -> dict[str, Any]:
    from surgetank.adapters.accumulate import accumulate  # noqa: PLC0415 - see make_parquet
    from surgetank.adapters.logs import open_log  # noqa: PLC0415
    from surgetank.traffic.burstiness import Accumulator  # noqa: PLC0415

    accumulator = Accumulator(counts_only=counts_only)
    with open_log(path) as log:
        source = accumulate(log, accumulator)
    found = accumulator.analyse(source).to_json()
    unexplained = [name for name in nulls(found) if not explained(name, found["refused"])]
    return {"rows": source.rows, "skipped": source.skipped, "unexplained": unexplained}


def duckdb_seconds(path: str) -> dict[str, Any]:
    import duckdb  # noqa: PLC0415 - see make_parquet

    with duckdb.connect(config={"threads": 2}) as connection:
        found = connection.execute(
            "SELECT epoch_us(timestamp) // 1000000 AS second, count(*) AS n, sum(prompt) AS prompt,"
            " sum(output) AS output FROM read_parquet($path) GROUP BY second ORDER BY second",
            {"path": path},
        ).fetchnumpy()
    return {"rows": int(found["n"].sum())}


def duckdb_lines(path: str) -> dict[str, Any]:
    import duckdb  # noqa: PLC0415 - see make_parquet

    names = ("msec", "request_time", "status", "request_method", "request_uri")
    wanted = ", ".join(
        f"{name}: 'VARCHAR'" for name in (*names, "upstream_header_time", "http_x_tenant_id")
    )
    with duckdb.connect(config={"threads": 2}) as connection:
        found = connection.execute(
            "SELECT floor(msec::DOUBLE - request_time::DOUBLE) AS second, http_x_tenant_id, "  # noqa: S608 - our own names
            "count(*) AS n, max(upstream_header_time::DOUBLE) FROM read_json($path, "
            f"format = 'newline_delimited', columns = {{{wanted}}}) "
            "WHERE request_method = 'POST' GROUP BY ALL",
            {"path": path},
        ).fetchnumpy()
    return {"rows": int(found["n"].sum())}


def duckdb_plain(path: str) -> dict[str, Any]:
    import duckdb  # noqa: PLC0415 - see make_parquet

    stamp = "epoch_us(timestamp) // 1000000" if path.endswith(".csv") else "floor(timestamp)"
    source = "read_csv($path)" if path.endswith(".csv") else "read_json($path)"
    with duckdb.connect(config={"threads": 2}) as connection:
        found = connection.execute(
            f"SELECT {stamp} AS second, count(*) AS n, sum(prompt_tokens), sum(output_tokens)"  # noqa: S608 - our own names
            f" FROM {source} GROUP BY second ORDER BY second",
            {"path": path},
        ).fetchnumpy()
    return {"rows": int(found["n"].sum())}


def msgspec_floor(path: str) -> dict[str, Any]:
    """Decode each line to a typed record and do nothing with it: what Python cannot go below."""
    import msgspec  # noqa: PLC0415 - see make_parquet

    fields = ["msec", "request_time", "status", "request_method", "request_uri"]
    fields += ["upstream_header_time", "http_x_tenant_id"]
    record = msgspec.defstruct("record", [(name, str) for name in fields], gc=False)
    decode = msgspec.json.Decoder(record).decode
    rows = 0
    with Path(path).open("rb") as file:
        for line in file:
            decode(line)
            rows += 1
    return {"rows": rows}


STEPS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "parquet: DuckDB": duckdb_seconds,
    "parquet: counts": lambda path: ours(path, counts_only=True),
    "parquet: full": ours,
    "csv: DuckDB": duckdb_plain,
    "csv: counts": lambda path: ours(path, counts_only=True),
    "csv: full": ours,
    "jsonl: DuckDB": duckdb_plain,
    "jsonl: counts": lambda path: ours(path, counts_only=True),
    "jsonl: full": ours,
    "lines: DuckDB": duckdb_lines,
    "lines: msgspec loop": msgspec_floor,
    "lines: full": ours,
}


def nulls(value: Any, path: str = "") -> list[str]:
    """List the paths of the figures that are null."""
    if value is None:
        return [path]
    if isinstance(value, dict):
        below = [(f"{path}.{key}" if path else key, v) for key, v in value.items()]
    elif isinstance(value, list):
        below = [(path, v) for v in value]
    else:
        return []
    return sorted({null for name, v in below for null in nulls(v, name)})


def explained(path: str, refused: Any) -> bool:
    """Whether a null figure is in the JSON's own `refused`, or in the table above."""
    return any(path == name or path.startswith(name + ".") for name in (*EXPLAINED, *refused))


# The session.


def measure(step: str, path: Path) -> tuple[Cost, dict[str, Any]]:
    """Run one step in a process of its own. Raises RuntimeError when it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, "--step", step, str(path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{step} failed; its error stands above")
    found: dict[str, Any] = json.loads(said)
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(cpu, time.perf_counter() - began, found.pop("peak_mb")), found


def step(name: str, path: str) -> None:
    """Be the process that is measured."""
    found = STEPS[name](path)
    # Not ru_maxrss: that begins with the peak of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(line for line in status if line.startswith("VmHWM"))
    print(json.dumps(found | {"peak_mb": int(peak.split()[1]) / 1024}))


def run(options: argparse.Namespace) -> int:
    costs: dict[str, list[Cost]] = {}
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="surgetank-bench-", dir=options.folder) as folder:
        logs = {}
        if options.rows:
            logs["parquet"] = (Path(folder) / "log.parquet", int(options.rows))
            make_parquet(*logs["parquet"])
        if options.lines:
            logs["lines"] = (Path(folder) / "log.json", int(options.lines))
            make_lines(*logs["lines"])
        if options.plain:
            for kind in ("csv", "jsonl"):
                logs[kind] = (Path(folder) / f"log.{kind}", int(options.plain))
                make_plain(*logs[kind])
        for path, rows in logs.values():
            print(
                f"{path.name}: {rows:,} rows, {path.stat().st_size / MB:,.0f} MB", file=sys.stderr
            )
        for kind, (path, _) in logs.items():  # compiles once, and fills the page cache
            measure(f"{kind}: full", path)
        for number in range(options.rounds):
            for name in STEPS:
                kind = name.partition(":")[0]
                if kind not in logs:
                    continue
                cost, found = measure(name, logs[kind][0])
                print(f"round {number + 1}: {name:<22} {cost.cpu:8.2f} s CPU", file=sys.stderr)
                costs.setdefault(name, []).append(cost)
                if found["rows"] != logs[kind][1] or found.get("skipped"):
                    problems.append(f"{name} read {found['rows']:,} rows of {logs[kind][1]:,}")
                if name == "parquet: full" and found["unexplained"]:
                    problems.append(f"{name}: null without a reason: {found['unexplained']}")
    figures = bounds(costs, int(options.lines))
    problems += [
        f"{what}: {value:,.2f}, the bound is {bound:,.2f}"
        for what, (value, bound, at_most) in figures.items()
        if (value > bound if at_most else value < bound)
    ]
    if options.json:
        machine = {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}
        shown = {name: [asdict(cost) for cost in found] for name, found in costs.items()}
        told = {what: value for what, (value, _, _) in figures.items()}
        print(json.dumps({"machine": machine, "costs": shown, "figures": told, "missed": problems}))
    else:
        report(costs, figures, problems)
    return 1 if problems else 0


def bounds(costs: dict[str, list[Cost]], lines: int) -> dict[str, tuple[float, float, bool]]:
    """Give what is held to a bound: value, bound, and whether the bound is a maximum."""
    found: dict[str, tuple[float, float, bool]] = {}

    def ratio(one: str, other: str) -> float:
        pairs = zip(costs[one], costs[other], strict=True)
        return statistics.median(a.cpu / b.cpu for a, b in pairs)

    if "parquet: full" in costs:
        found["counts / DuckDB"] = (
            ratio("parquet: counts", "parquet: DuckDB"),
            COUNTS_RATIO,
            True,
        )
        found["full / DuckDB"] = (ratio("parquet: full", "parquet: DuckDB"), FULL_RATIO, True)
        peak = max(cost.peak_mb for cost in costs["parquet: full"])
        found["full, peak MB"] = (peak, FULL_MB, True)
    for kind in ("csv", "jsonl"):
        if f"{kind}: full" in costs:
            found[f"{kind} full / DuckDB"] = (
                ratio(f"{kind}: full", f"{kind}: DuckDB"),
                PLAIN_RATIO,
                True,
            )
    if "lines: full" in costs:
        found["lines / msgspec loop"] = (
            ratio("lines: full", "lines: msgspec loop"),
            FLOOR_RATIO,
            True,
        )
        speed = statistics.median(lines / cost.cpu for cost in costs["lines: full"])
        found["lines per CPU second"] = (speed, LINES_PER_SECOND, False)
    return found


def report(
    costs: dict[str, list[Cost]],
    figures: dict[str, tuple[float, float, bool]],
    problems: list[str],
) -> None:
    print(f"{'':<23}{'CPU s':>9}{'wall s':>9}{'peak MB':>9}   (medians, start of Python included)")
    for name, found in costs.items():
        cpu, wall, peak = (
            statistics.median(getattr(cost, what) for cost in found)
            for what in ("cpu", "wall", "peak_mb")
        )
        print(f"{name:<23}{cpu:9.2f}{wall:9.2f}{peak:9.0f}")
    for what, (value, bound, at_most) in figures.items():
        print(f"{what:<23}{value:12,.2f}   {'at most' if at_most else 'at least'} {bound:,.2f}")
    for problem in problems:
        print(f"MISSED {problem}")


def main() -> int:
    parser = argparse.ArgumentParser(description="analyze on large logs beside DuckDB and msgspec")
    parser.add_argument("--rows", type=float, default=1e8, help="of Parquet (default %(default)g)")
    parser.add_argument(
        "--lines", type=float, default=1e7, help="of nginx JSON (default %(default)g)"
    )
    parser.add_argument(
        "--plain",
        type=float,
        default=1e7,
        help="rows of CSV and of JSON lines (default %(default)g)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved (default %(default)s)")
    parser.add_argument("--folder", help="where the logs are made (5 GB by default); removed after")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    parser.add_argument("--step", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step(*options.step)
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
