"""A probe of a live engine: long, since it measures; by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mockengine.test_process import engine

pytestmark = pytest.mark.heavy


def test_a_simulated_engine_is_found_again_by_a_probe(tmp_path: Path) -> None:
    with engine("--profile", "tiny") as (_, address):
        done = subprocess.run(
            [sys.executable, "-m", "surgetank", "calibrate", address, "--json", "-o", "it.toml"],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kv_blocks"] == 256  # as vllm:cache_config_info says
    assert told["max_num_seqs"] == 8  # found: nothing tells it
    assert abs(told["held_out"]["ttft_bias"]) < 0.15
    assert told["held_out"]["tpot_mean"] < 0.15
