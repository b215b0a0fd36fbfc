"""`surgetank analyze`: text, JSON and page of one log agree, and bad input is one clear line."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surgetank import cli
from surgetank.cli.analysis_schema import schema
from surgetank.report import numbers
from surgetank.traffic import arrivals
from surgetank.traffic.trace import Seconds

from .json_schema import misfits

BEGIN = 1_764_460_800.0  # 2025-11-30 00:00 UTC
TENANTS = ("夜間バッチ", "<script>alert(1)</script>", "acme")
ROOT = Path(__file__).parents[2]
SHARED = next((f for f in (ROOT.parent / "shared", ROOT.parents[1] / "shared") if f.is_dir()), ROOT)


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of a mistake."""
        assert (self.code, self.out) == (2, "")
        assert self.err.startswith("surgetank: ")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("surgetank: ").strip()


Run = Callable[..., Done]


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path, command: str = "analyze") -> Done:
        monkeypatch.setattr(sys, "argv", ["surgetank", command, *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


def write(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [("arrival_time", "tenant", "prompt_tokens", "output_tokens"), *rows]
    )
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def rows_of(times: Seconds) -> list[tuple[object, ...]]:
    rng = np.random.default_rng(5)
    codes, prompts = rng.integers(0, 3, len(times)), rng.integers(1, 4000, len(times))
    return [
        (f"{BEGIN + t:.6f}", TENANTS[c], p, p // 10)
        for t, c, p in zip(times.tolist(), codes.tolist(), prompts.tolist(), strict=True)
    ]


@pytest.fixture(scope="module")
def pulse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 to 40 requests/s for 30 s of every 90 s."""
    times = arrivals.pulse(np.random.default_rng(1), 10, 40, 30, 90, 600)
    return write(tmp_path_factory.mktemp("logs") / "pulse.csv", rows_of(times))


def test_the_json_fits_its_schema(analyze: Run, pulse: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone.csv"
    lone.write_text("arrival_time\n1764460800\n")
    for log in (pulse, lone):
        assert list(misfits(analyze(log, "--json").json, schema())) == []


def test_the_schema_refuses_what_the_command_does_not_write(analyze: Run, pulse: Path) -> None:
    found = analyze(pulse, "--json").json
    for change in ("requests", "idc", "source"):
        less = copy.deepcopy(found)
        del less[change]
        assert list(misfits(less, schema())) == [f"$.{change}: is missing"]
    found["rate"]["mean"] = "many"
    found["idc"]["more"] = 1
    assert len(list(misfits(found, schema()))) == 2


def test_the_json_has_the_keys_that_were_promised(analyze: Run, pulse: Path) -> None:
    found = analyze(pulse, "--json").json
    assert set(found) >= {
        "source", "span_s", "requests", "rate", "cv_1s", "poisson_cv_1s", "excess_cv_1s",
        "peak_to_mean", "idc", "interarrival", "interarrival_refused", "tokens", "verdict",
        "tenants", "sessions", "episodes", "pulse", "advice",
    }  # fmt: skip
    assert set(found["source"]) >= {
        "path", "format", "rows", "skipped", "resolution_s", "arrival_from",
    }  # fmt: skip
    assert set(found["pulse"]) >= {"base_rps", "peak_rps", "width_s", "period_s"}


def test_text_page_and_json_have_the_same_numbers(
    analyze: Run, pulse: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    found = analyze(pulse, "--json").json
    text = analyze(pulse, "--html", page)
    assert text.code == 0
    assert text.err == ""
    shown, written = text.out, page.read_text(encoding="utf-8")
    figures = [
        numbers.count(found["requests"]),
        numbers.number(found["cv_1s"]),
        numbers.number(found["poisson_cv_1s"]),
        numbers.number(found["excess_cv_1s"]),
        numbers.number(found["interarrival"]["cv"]),
        numbers.compact(found["tokens"]["prompt"]["p99"]),
        numbers.percent(found["tenants"][0]["share"]),
        numbers.number(found["pulse"]["base_rps"]),
        numbers.rate(found["pulse"]["peak_rps"], "req"),
        numbers.seconds(found["pulse"]["period_s"]),
        *(numbers.compact(v) for v in found["rate"].values()),
        *(numbers.number(v) for v in found["peak_to_mean"].values()),
        *(numbers.number(v) for v in found["idc"]["requests"].values()),
        *(numbers.compact(e["peak"]) for e in found["episodes"]),
    ]
    assert [f for f in figures if f not in shown] == []
    assert [f for f in figures if f not in written] == []


def test_a_pipe_gets_no_colour_no_progress_and_names_as_they_are(analyze: Run, pulse: Path) -> None:
    done = analyze(pulse)
    assert "\x1b" not in done.out + done.err
    assert all(name in done.out for name in TENANTS)
    assert done.err == ""


def test_a_plain_file_of_arrival_times_works_without_an_option(
    analyze: Run, tmp_path: Path
) -> None:
    times = arrivals.poisson(np.random.default_rng(6), 5, 300)
    log = tmp_path / "requests.csv"
    log.write_text("arrival_time\n" + "".join(f"{BEGIN + t:.3f}\n" for t in times))
    done = analyze(log)
    assert done.code == 0
    assert f"{len(times):,} requests in 5 min" in done.out.replace("4.9", "5").replace("5.0", "5")
    assert "Poisson: " in done.out


def test_parts_of_one_service_are_told_as_one(analyze: Run, pulse: Path, tmp_path: Path) -> None:
    _, *rows = list(csv.reader(io.StringIO(pulse.read_text(encoding="utf-8"))))
    one = write(tmp_path / "gateway-1.csv", rows[::2])
    two = tmp_path / "gateway-2.csv.gz"
    plain = write(tmp_path / "gateway-2.csv", rows[1::2])
    two.write_bytes(gzip.compress(plain.read_bytes()))
    whole, parts = analyze(pulse, "--json").json, analyze(one, two, "--json").json
    assert parts["source"]["path"] == f"{one}, {two}"
    assert parts["source"]["rows"] == whole["source"]["rows"]
    for key in (
        "requests",
        "rate",
        "idc",
        "interarrival",
        "tokens",
        "pulse",
        "episodes",
        "verdict",
    ):
        assert parts[key] == whole[key], key
    shares = {t["name"]: t["share"] for t in parts["tenants"]}
    assert shares == {t["name"]: t["share"] for t in whole["tenants"]}


def test_standard_input_is_a_log(pulse: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surgetank", "analyze", "-", "--json"],
        input=pulse.read_bytes(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["source"]["path"] == "-"
    assert found["verdict"]["shape"] == "pulses"


def test_a_part_of_the_time_and_one_tenant_can_be_chosen(analyze: Run, pulse: Path) -> None:
    whole = analyze(pulse, "--json").json
    part = analyze(pulse, "--json", "--from", "2025-11-30T00:01:00", "--to", BEGIN + 120).json
    assert 59 < part["span_s"] < 60
    assert part["requests"] < whole["requests"]
    one = analyze(pulse, "--json", "--tenant", "acme").json
    share = next(t["requests"] for t in whole["tenants"] if t["name"] == "acme")
    assert one["requests"] == share
    two = analyze(pulse, "--json", "--tenant", "acme", "--tenant", TENANTS[0]).json
    assert two["requests"] > one["requests"]


def test_times_without_a_zone_are_read_in_the_one_that_is_named(
    analyze: Run, tmp_path: Path
) -> None:
    log = tmp_path / "naive.csv"
    log.write_text("arrival_time\n" + "".join(f"2025-11-30 08:00:{s:02}\n" for s in range(50)))
    done = analyze(log, "--timezone", "Asia/Shanghai")
    assert "2025-11-30 00:00:00 to 00:00:49 UTC" in done.out
    hour = analyze(log, "--timezone", "+08:00", "--from", "2025-11-30 08:00:30", "--json")
    assert hour.json["requests"] == 20


def test_counts_alone_have_no_gaps_and_no_tenants(analyze: Run, pulse: Path) -> None:
    whole, counts = analyze(pulse, "--json").json, analyze(pulse, "--json", "--counts").json
    assert counts["idc"]["requests"] == whole["idc"]["requests"]
    assert counts["interarrival"] is None
    assert counts["interarrival_refused"]
    assert counts["tenants"] == []
    assert analyze(pulse, "--counts").code == 0


def test_top_bounds_the_tables(analyze: Run, pulse: Path) -> None:
    assert "夜間バッチ" in analyze(pulse, "--top", "3").out
    first = analyze(pulse, "--json").json["tenants"][0]["name"]
    shown = analyze(pulse, "--top", "1").out.partition("tenant")[2]
    assert sum(name in shown for name in TENANTS) == 1
    assert first in shown


def test_the_advice_depends_on_the_capacity_delay(analyze: Run, pulse: Path) -> None:
    slow = analyze(pulse, "--json", "--capacity-delay", "300").json
    fast = analyze(pulse, "--json", "--capacity-delay", "1").json
    assert slow["capacity_delay_s"] == 300
    assert slow["advice"] != fast["advice"]


# Bad rows.


@pytest.fixture
def spoilt(pulse: Path, tmp_path: Path) -> Path:
    """The pulse's beginning, seven of its rows without a readable time."""
    lines = pulse.read_text(encoding="utf-8").splitlines()[:2000]
    for i in (5, 9, 100, 200, 300, 400, 500):
        lines[i - 1] = "yesterday,acme,1,1"
    log = tmp_path / "spoilt.csv"
    log.write_text("\n".join(lines), encoding="utf-8")
    return log


def test_bad_rows_are_counted_and_the_first_five_are_told(analyze: Run, spoilt: Path) -> None:
    done = analyze(spoilt)
    assert done.code == 0
    assert "Bad rows: 7 of " in done.out
    for line in (5, 9, 100, 200, 300):
        assert f"  line {line}: " in done.out
    assert "line 400" not in done.out
    source = analyze(spoilt, "--json").json["source"]
    assert (source["skipped"], source["bad"][0]["line"]) == (7, 5)


def test_too_many_bad_rows_end_it_in_one_line(analyze: Run, spoilt: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    error = analyze(spoilt, "--max-bad", "0.01%", "--html", page).error
    assert error.startswith(f"{spoilt}: 7 of ")
    assert "more than --max-bad 0.01%; the first is line 5: " in error
    assert not page.exists()
    assert analyze(spoilt, "--max-bad", "0").code == 2
    assert analyze(spoilt, "--max-bad", "0.01").code == 0


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--max-bad", "often"], "--max-bad often: must be a share of the rows such as 1% or 0.01"),
        (["--max-bad", "150%"], "--max-bad 150%: must be a share"),
        (["--from", "soon"], "--from 'soon': must be a time such as 2026-11-30T10:00:00"),
        (["--from", "2025-12-01", "--to", "2025-11-30"], "--to 2025-11-30: must be later than"),
        (["--from", "2030-01-01"], "it has 2025-11-30 00:00:00 to 2025-11-30 00:0"),
        (["--time-unit", "min"], "--time-unit min: must be one of s, ms, us, ns"),
        (["--timezone", "Mars/Olympus"], "--timezone: "),
        (["--column", "tenant"], "--column 'tenant': must be OURS=THEIRS"),
        (["--tenant", "nobody"], "--tenant nobody: is not in "),
        (["--format", "nope"], "nope"),
        (["--html", "nowhere/report.html"], "the folder nowhere does not exist: make it first"),
        (["--html", "."], "--html .: is a folder: name a file"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_right(
    analyze: Run, pulse: Path, arguments: list[str], told: str
) -> None:
    assert told in analyze(pulse, *arguments).error


def test_an_unknown_tenant_is_told_which_there_are(analyze: Run, pulse: Path) -> None:
    error = analyze(pulse, "--tenant", "nobody").error
    assert all(name in error for name in TENANTS)


def test_a_log_that_is_none_is_one_line(analyze: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    pointer = tmp_path / "pointer.csv"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    header = tmp_path / "header.csv"
    header.write_text("arrival_time\n")
    for log in (empty, pointer, header, tmp_path / "missing.log", tmp_path):
        assert str(log) in analyze(log).error
    assert "git-LFS" in analyze(pointer).error
    assert "once only" in analyze("-", "-").error


def test_end_stamped_logs_say_that_arrivals_were_worked_out(analyze: Run, tmp_path: Path) -> None:
    times = arrivals.poisson(np.random.default_rng(7), 5, 120)
    rng = np.random.default_rng(8)
    ends = sorted(
        (BEGIN + t + d, d) for t, d in zip(times, rng.exponential(20, len(times)), strict=True)
    )
    log = tmp_path / "access.json"
    log.write_text(
        "".join(
            json.dumps(
                {
                    "msec": f"{end:.3f}",
                    "request_time": f"{took:.3f}",
                    "request_method": "POST",
                    "uri": "/v1/chat/completions",
                    "status": "200",
                }
            )
            + "\n"
            for end, took in ends
        )
    )
    done = analyze(log)
    assert done.code == 0, done.err
    assert "arrivals are stamp - duration" in done.out
    found = analyze(log, "--json").json
    assert found["source"]["arrival_from"] == "end - duration"
    assert found["span_s"] == pytest.approx(times[-1] - times[0], abs=0.01)


SAMPLES = sorted((SHARED / "log_samples").glob("*")) + sorted((SHARED / "traces").glob("*.[cj]*"))


@pytest.mark.skipif(not SAMPLES, reason="needs ../shared")
@pytest.mark.parametrize(
    "log",
    # A day of drawn arrivals takes ten seconds.
    [pytest.param(p, marks=pytest.mark.heavy if "servegen" in p.name else ()) for p in SAMPLES],
    ids=lambda p: p.name,
)
def test_every_sample_gives_a_report_or_says_why_not(
    analyze: Run, log: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    done = analyze(log, "--html", page)
    if log.name == "llamacpp_server.log":  # has no times at all
        assert "time" in done.error
        return
    assert done.code == 0, done.err
    assert "request" in done.out
    assert len(page.read_bytes()) <= 500_000
    assert list(misfits(analyze(log, "--json").json, schema())) == []


@pytest.mark.parametrize("link", [None, os.link, os.symlink])
def test_the_page_never_takes_a_logs_place(
    analyze: Run, tmp_path: Path, link: Callable[..., None] | None
) -> None:
    log = write(tmp_path / "log.csv", rows_of(np.arange(5.0)))
    before, page = log.read_bytes(), log
    if link is not None:
        page = tmp_path / "page.html"
        link(log, page)
    assert "is what is read" in analyze(log, "--html", page).error
    assert log.read_bytes() == before


def test_a_page_name_no_disk_takes_is_one_line(analyze: Run, tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", rows_of(np.arange(5.0)))
    assert "File name too long" in analyze(log, "--html", tmp_path / ("n" * 300)).error


@pytest.mark.parametrize("seconds", ["inf", "1e300", "nan", "0"])
def test_a_capacity_delay_that_is_none_is_refused(
    analyze: Run, tmp_path: Path, seconds: str
) -> None:
    log = write(tmp_path / "log.csv", rows_of(np.arange(5.0)))
    done = analyze(log, "--capacity-delay", seconds)
    assert done.code == 2
    assert "--capacity-delay" in done.err


def test_names_in_an_error_do_not_steer_the_terminal(analyze: Run, tmp_path: Path) -> None:
    said = analyze(tmp_path / "\x1b]0;owned\x07\u202e\udcff.log").error
    assert said.isprintable()
    assert "\\x1b]0;owned" in said


def test_logs_of_two_clocks_are_refused(analyze: Run, tmp_path: Path) -> None:
    dated = write(tmp_path / "dated.csv", rows_of(np.arange(50.0)))
    own = tmp_path / "own.csv"
    own.write_text("arrival_time\n" + "".join(f"{t}.5\n" for t in range(50)))
    assert "counts its times from its own start" in analyze(dated, own).error
    parquet = tmp_path / "own.parquet"
    pq.write_table(pa.table({"arrival_time": np.arange(50.0)}), parquet)
    assert "counts its times from its own start" in analyze(parquet, dated).error
    assert analyze(own, parquet, "--json").json["requests"] == 100


def test_damage_within_parquet_is_one_line(analyze: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    times = BEGIN + np.random.default_rng(1).random(6000) * 300
    pq.write_table(pa.table({"arrival_time": times}), log)
    whole = bytearray(log.read_bytes())
    whole[2000:4000] = bytes(range(250)) * 8
    log.write_bytes(whole)
    assert "is damaged after row" in analyze(log).error


def test_two_parquet_columns_of_one_name_are_told(analyze: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    times = pa.array([BEGIN, BEGIN + 1])
    pq.write_table(pa.table([times, times], names=["arrival_time"] * 2), log)
    assert "has 2 columns named 'arrival_time'" in analyze(log).error


def test_nested_parquet_columns_are_named(analyze: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"request": [{"arrival_time": BEGIN}]}), log)
    assert "nested columns are not read: request" in analyze(log).error


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_one_line(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", rows_of(np.arange(5.0)))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "surgetank", "analyze", str(log)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "surgetank: the output: cannot be written: No space left on device\n"


def test_a_closed_standard_input_is_one_line(analyze: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in analyze("-").error


def test_a_log_that_cannot_be_read_after_it_was_opened_is_one_line(analyze: Run) -> None:
    log = Path("/proc/self/mem")  # its first page is never there
    if not log.exists():
        pytest.skip("needs /proc")
    assert "cannot be read" in analyze(log).error
