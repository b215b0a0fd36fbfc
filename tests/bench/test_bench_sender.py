"""The sender's benchmark measures, and says what is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def bench(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCH / "sender.py", *arguments],
        env=os.environ | ({} if path is None else {"PATH": path}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="its server uses epoll")
def test_a_server_of_constant_time_is_never_read_as_faster_than_it_is(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = bench("--only", "constant", "--seconds", "0.5", "--json", str(out))
    assert done.returncode in {0, 1}, done.stderr  # 1: a bound was missed, as on a busy machine
    rows = json.loads(out.read_text())
    found = [re.search(r"P50 ([0-9.]+) ms", value) for _, value, _ in rows[:2]]
    assert [match is not None and float(match[1]) >= 50.0 for match in found] == [True, True]
    missed = [ok for _, _, ok in rows if ok is False]
    assert bool(missed) == (done.returncode == 1)


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    done = bench("--only", "constant", path=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "cannot measure: a C compiler (cc) is needed for the server\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_unknown_part_is_refused_with_the_known_ones() -> None:
    done = bench("--only", "speed")
    assert done.returncode == 2
    assert "speed is not one of constant, peers, lag, rate, chunks, schedules" in done.stderr
