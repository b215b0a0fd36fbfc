"""The benchmark of the engine model: it measures, and says by its exit code what is missed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.heavy
def test_it_measures_and_its_exit_code_says_whether_the_bounds_are_kept() -> None:
    options = ["--requests", "40000", "--replicas", "3", "--rounds", "1", "--json", "--peer"]
    done = subprocess.run(
        [sys.executable, BENCH / "simulation.py", *options, f"{sys.executable} -c pass"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    result = json.loads(done.stdout)
    assert done.returncode == (1 if result["missed"] else 0), done.stderr
    rates = result["requests_per_cpu_s"]
    assert set(rates) == {"literal", "replica", "bulk 1", "peer"} | {
        f"fleet 3 {routing}" for routing in ("round_robin", "random", "least_outstanding")
    }
    assert rates["bulk 1"] > rates["replica"] > rates["literal"] > 0
