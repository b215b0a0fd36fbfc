"""The benchmark of large logs, on small ones: it measures, and tells what is missed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


@pytest.mark.heavy
def test_all_steps_read_every_row_and_small_logs_are_no_proof(tmp_path: Path) -> None:
    """Starting Python outweighs small logs, so the bounds are missed; rows must never be."""
    done = subprocess.run(
        [
            *(sys.executable, BENCH / "analyze.py", "--rows", "20000", "--lines", "5000"),
            *("--rounds", "1", "--folder", tmp_path, "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    result = json.loads(done.stdout)
    assert done.returncode == (1 if result["missed"] else 0)
    assert not [missed for missed in result["missed"] if " read " in missed]
    assert set(result["figures"]) == {
        "counts / DuckDB",
        "full / DuckDB",
        "full, peak MB",
        "lines / msgspec loop",
        "lines per CPU second",
    }
    assert all(cost["cpu"] > 0 for costs in result["costs"].values() for cost in costs)
    assert list(tmp_path.iterdir()) == []
