"""`surgetank anonymize`: nothing of a person is written, and a file that has something is told."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import surgetank
from surgetank.cli import main

LOG = """arrival_time,tenant,prompt_tokens,output_tokens,session_id,client_ip,prompt
1796006832.412,Acme,120,7,s1,203.0.113.9,"please write a letter to my landlord about the rent"
1796006833.5,Acme,121,8,s1,203.0.113.9,"hello bob@example.org"
1796006834.5,Bob,122,9,s2,203.0.113.9,"sk-st-AbCdEfGhIjKlMnOpQrStUvWxYz012345"
x,Bob,122,9,s2,203.0.113.9,"no time"
"""
SECRETS = ("Acme", "Bob", "bob", "203.0", "landlord", "sk-st", "s1")


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Run:
    """The command line in this process: starting one for each test would take a second."""

    def __init__(self, patch: pytest.MonkeyPatch, printed: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._printed = printed

    def __call__(self, folder: Path, *arguments: str, stdin: bytes = b"") -> Done:
        if "-o" in arguments and "--max-bad" not in arguments:
            arguments = (*arguments, "--max-bad", "30%")  # one of LOG's four rows is bad
        self._patch.chdir(folder)
        self._patch.setattr(sys, "argv", ["surgetank", "anonymize", *arguments])
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._printed.readouterr()
        return Done(int(ended.value.code or 0), printed.out, printed.err)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(LOG)
    return tmp_path


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_person_is_in_the_export_nor_in_what_is_printed(folder: Path, run: Run) -> None:
    done = run(folder, "log.csv", "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    out = folder / "out.jsonl"
    assert not [s for s in SECRETS if s in out.read_text() + done.stdout + done.stderr]
    assert [row["prompt_tokens"] for row in rows(out)] == [120, 121, 122]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "fields seen in the log: arrival_time, tenant, prompt_tokens" in done.stdout
    assert "1 rows could not be read" in done.stdout
    assert "values of tenant have fewer than 5 requests" in done.stdout
    assert sorted(p.name for p in folder.iterdir()) == ["log.csv", "out.jsonl"]


def test_the_export_passes_the_check_and_the_log_does_not(folder: Path, run: Run) -> None:
    run(folder, "log.csv", "-o", "out.jsonl")
    clean = run(folder, "--check", "out.jsonl", "--json")
    assert (clean.returncode, json.loads(clean.stdout)["findings"]) == (0, [])
    told = run(folder, "--check", "log.csv", "--json")
    assert told.returncode == 1
    assert {
        (f["kind"], f["field"], f["lines"], f["first"]) for f in json.loads(told.stdout)["findings"]
    } == {
        ("IP address", "client_ip", 4, 2),
        ("free text", "prompt", 1, 2),
        ("e-mail address", "prompt", 1, 3),
        ("API key or token", "prompt", 1, 4),
    }
    assert not [s for s in SECRETS if s in told.stdout]


def test_a_packed_log_and_parquet_are_checked_too(folder: Path, run: Run) -> None:
    (folder / "log.gz").write_bytes(gzip.compress(LOG.encode()))
    assert "client_ip" in run(folder, "--check", "log.gz").stdout
    (folder / "torn.gz").write_bytes(gzip.compress(LOG.encode())[:-9])
    torn = run(folder, "--check", "torn.gz")
    assert torn.returncode == 2
    assert "was not checked" in torn.stderr
    pq.write_table(
        pa.table({"t": [1.0, 2.0], "user": ["a", "bob@example.org"]}), folder / "log.parquet"
    )
    told = run(folder, "--check", "log.parquet")
    assert told.returncode == 1
    assert "e-mail address" in told.stdout
    assert "line 2" in told.stdout


def test_one_key_gives_one_hash_and_is_not_shown(folder: Path, run: Run) -> None:
    first = run(folder, "log.csv", "-o", "a.jsonl", "--key", "key")
    key = (folder / "key").read_text().strip()
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert "made the key key" in first.stderr
    second = run(folder, "log.csv", "-o", "b.jsonl", "--key", "key", "--json")
    assert (folder / "a.jsonl").read_text() == (folder / "b.jsonl").read_text()
    assert key not in first.stdout + first.stderr + second.stdout + second.stderr
    run(folder, "log.csv", "-o", "c.jsonl")
    run(folder, "log.csv", "-o", "d.jsonl")
    names = [{str(row["tenant"]) for row in rows(folder / f"{n}.jsonl")} for n in "acd"]
    assert len(set.union(*names)) == 6


def test_times_are_kept_or_shifted_as_asked(folder: Path, run: Run) -> None:
    run(folder, "log.csv", "-o", "kept.jsonl", "--keep-times")
    assert rows(folder / "kept.jsonl")[0]["arrived"] == 1796006832.412
    run(folder, "-", "-o", "shifted.jsonl", "--shift", "-86400")
    done = run(folder, "-", "-o", "shifted.jsonl", "--shift", "-86400", stdin=LOG.encode())
    assert done.returncode == 0, done.stderr
    assert rows(folder / "shifted.jsonl")[0]["arrived"] == 1796006832.412 - 86400


def test_columns_and_names_are_chosen(folder: Path, run: Run) -> None:
    chosen = ("--column", "tenant=session_id", "--keep", "tenant", "--format", "csv")
    told = json.loads(run(folder, "log.csv", "-o", "o.jsonl", *chosen, "--json").stdout)
    assert [row["tenant"] for row in rows(folder / "o.jsonl")] == ["s1", "s1", "s2"]
    fates = {row["column"]: row["fate"] for row in told["columns"]}
    assert fates["tenant"] == "kept"
    assert told["rows"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the log and where to write"),
        (["log.csv"], "name the log and where to write"),
        (["log.csv", "--check", "log.csv"], "reads FILE alone"),
        (["log.csv", "-o", "o", "--shift", "1", "--keep-times"], "exclude each other"),
        (["log.csv", "-o", "o", "--keep", "prompt"], "'prompt' is no column of names"),
        (["log.csv", "-o", "o", "--column", "tenant"], "must be OURS=THEIRS"),
        (["log.csv", "-o", "o", "--key", "log.csv/x"], "cannot be read as a key"),
        (["log.csv", "-o", "absent/o"], "the folder absent does not exist: make it first"),
        (["log.csv", "-o", "."], "is a folder"),
        (["log.csv", "-o", "log.csv"], "--out log.csv: is what is read"),
        (["log.csv", "-o", "../" + "o" * 300], "cannot be written: File name too long"),
        (["log.csv", "-o", "o", "--key", "o"], "--out o: is what is read"),
        (["log.csv", "-o", "o", "--key", "log.csv"], "--key log.csv: is the log itself"),
        (["log.csv", "-o", "o", "--shift", "nan"], "--shift nan: must be seconds"),
        (["log.csv", "-o", "o", "--shift", "inf"], "--shift inf: must be seconds"),
        (["log.csv", "-o", "o", "--shift", "-1e300"], "--shift -1e+300: must be seconds"),
        (["absent.csv", "-o", "o"], "absent.csv: does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    folder: Path, run: Run, arguments: list[str], said: str
) -> None:
    done = run(folder, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["log.csv"]


def test_a_log_without_requests_does_not_replace_an_earlier_export(folder: Path, run: Run) -> None:
    (folder / "out.jsonl").write_text("earlier")
    (folder / "log.csv").write_text("arrival_time,tenant\nx,y\n")
    assert run(folder, "log.csv", "-o", "out.jsonl").returncode == 2
    assert (folder / "out.jsonl").read_text() == "earlier"


def test_an_export_of_a_log_that_can_hardly_be_read_is_refused(folder: Path, run: Run) -> None:
    done = run(folder, "log.csv", "-o", "out.jsonl", "--max-bad", "1%")
    assert done.returncode == 2
    assert "1 of 4 rows cannot be read as csv, more than --max-bad 1%" in done.stderr
    assert not (folder / "out.jsonl").exists()


def test_dates_without_year_and_zone_get_those_of_the_command_line(folder: Path, run: Run) -> None:
    line = b"INFO 11-30 10:47:12 [logger.py:63] Received request chatcmpl-5: prompt: 'x y', params:"
    (folder / "vllm.log").write_bytes(line + b" SamplingParams(n=1, max_tokens=512), x: None.\n")
    given = ("--keep-times", "--year", "2026", "--timezone", "+08:00")
    assert run(folder, "vllm.log", "-o", "out.jsonl", *given).returncode == 0
    assert rows(folder / "out.jsonl")[0]["arrived"] == 1796006832.0


def pulsed(path: Path) -> None:
    """Write a log of a pulse 20 -> 80 requests/s, 30 of every 90 s, of three tenants."""
    rng = np.random.default_rng(3)
    stamps = 1_796_006_832 + np.cumsum(rng.exponential(1 / 80, 40_000))
    stamps = stamps[(stamps % 90 < 30) | (rng.random(len(stamps)) < 0.25)]
    rows = zip(
        stamps.tolist(),
        rng.lognormal(6, 1, len(stamps)).astype(int).tolist(),
        rng.lognormal(5, 1, len(stamps)).astype(int).tolist(),
        rng.choice(["Acme", "Bob", "Carol"], len(stamps), p=[0.6, 0.3, 0.1]).tolist(),
        rng.integers(0, 3000, len(stamps)).tolist(),
        strict=True,
    )
    path.write_text(
        "arrival_time,prompt_tokens,output_tokens,tenant,session_id\n"
        + "".join(f"{t:.6f},{p},{o},{tenant},s{session}\n" for t, p, o, tenant, session in rows)
    )


@pytest.mark.parametrize("times", [("--keep-times",), ()])
def test_every_burst_figure_of_the_export_is_that_of_the_log(
    folder: Path, run: Run, times: tuple[str, ...]
) -> None:
    pulsed(folder / "log.csv")
    assert run(folder, "log.csv", "-o", "out.jsonl", *times).returncode == 0
    before = surgetank.read_log(folder / "log.csv").burstiness().to_json()
    after = surgetank.read_log(folder / "out.jsonl").burstiness().to_json()
    assert before["verdict"]["shape"] == "pulses"
    assert before["sessions"] is not None
    # The pulse is fitted on a grid that begins at the epoch: a shift moves it by a part of a cell.
    for fitted in ("base_rps", "peak_rps", "width_s", "period_s"):
        near = pytest.approx(before["pulse"][fitted], rel=0.0 if times else 0.02)
        assert after["pulse"][fitted] == near
    assert without_names(before) == without_names(after)


def without_names(figures: dict[str, Any]) -> dict[str, Any]:
    """Leave out where a log came from, what its tenants are called, and when episodes began."""
    tenants = [tenant | {"name": ""} for tenant in figures["tenants"]]
    episodes = [episode | {"start": 0, "tenant": ""} for episode in figures["episodes"]]
    rest = {"tenants": tenants, "episodes": episodes}
    return figures | rest | dict.fromkeys(("source", "pulse", "burst_seconds"))


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_to_the_log_is_the_log(folder: Path, run: Run, link: Callable[..., None]) -> None:
    link(folder / "log.csv", folder / "other")
    done = run(folder, "log.csv", "-o", "other")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is what is read" in done.stderr
    assert (folder / "log.csv").read_text() == LOG


def test_a_pipe_is_written_to_and_stays_a_pipe(folder: Path, run: Run) -> None:
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run(folder, "log.csv", "-o", "pipe").returncode == 0
        told = os.read(reader, 1 << 16).splitlines()
    finally:
        os.close(reader)
    assert len(told) == 3
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)


def test_a_link_is_followed_and_stays_a_link(folder: Path, run: Run) -> None:
    (folder / "place").symlink_to(folder / "real.jsonl")
    assert run(folder, "log.csv", "-o", "place").returncode == 0
    assert (folder / "place").is_symlink()
    assert rows(folder / "real.jsonl")
