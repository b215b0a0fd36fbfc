"""The processes of a sweep, as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyarrow import parquet

SWEEP = ["--pulse", "2:40:20:60:600", "--engine", "tiny", "--policy", "static", "--seeds", "3"]
BOUND = 60.0


@pytest.mark.heavy
def test_a_sweep_that_is_killed_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    kept = tmp_path / "r.parquet.rows.jsonl"
    command = [sys.executable, "-m", "surgetank", "simulate", *SWEEP]
    command += ["--vary", "replicas=1,2", "--out", str(out), "--workers", "1"]
    running = subprocess.Popen(command, start_new_session=True)
    end = time.monotonic() + BOUND
    while not kept.exists() or len(kept.read_bytes().splitlines()) < 2:
        assert time.monotonic() < end
        assert running.poll() is None
        time.sleep(0.01)  # a file of another process
    running.kill()
    running.wait()
    while alive(running.pid):
        assert time.monotonic() < end
        time.sleep(0.01)
    before = kept.read_bytes()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert kept.read_bytes().startswith(before[: before.rfind(b"\n")])
    assert parquet.read_table(out).num_rows == 6


def alive(session: int) -> bool:
    """Whether a process of this session is left, other than a zombie."""
    try:
        os.killpg(session, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return True
