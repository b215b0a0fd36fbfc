"""The public command against vLLM's own scheduler, request by request."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from surgetank.cli import app
from surgetank.policy.record import RequestRecord, parse
from tests.engine.test_golden import CASES, COEFFICIENTS, GOLDEN


def columns(name: str) -> Any:
    with gzip.open(GOLDEN / f"{name}.csv.gz", "rt", encoding="ascii") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1)


def toml(value: object) -> str:
    return json.dumps(value)


@pytest.mark.parametrize("case", CASES)
def test_the_command_gives_vllms_times_and_preemptions(case: str, tmp_path: Path) -> None:
    settings, preemptions = CASES[case]
    profile = tmp_path / "engine.toml"
    values = {"name": case, **COEFFICIENTS, **settings}
    profile.write_text("".join(f"{key} = {toml(value)}\n" for key, value in values.items()))
    records = tmp_path / "records.jsonl"
    trace = GOLDEN / ("bursty_trace.csv.gz" if case.startswith("bursty") else "trace.csv.gz")
    command = ["simulate", str(trace), "--engine", str(profile), "--json"]
    command += ["--policy", "passthrough", "--replicas", "1", "--records", str(records)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output

    rows = [parse(line) for line in records.read_text().splitlines()]
    found = sorted(
        (row for row in rows if isinstance(row, RequestRecord)), key=lambda row: int(row.id)
    )
    expected = columns(case)
    assert len(found) == len(expected)
    ttft = np.array([(r.first_token or np.nan) - r.arrived for r in found]) * 1e3
    ended = np.array([r.ended or np.nan for r in found]) * 1e3
    assert np.abs(ttft - expected[:, 0]).max() < 1e-3
    assert np.abs(ended - expected[:, 1]).max() < 1e-3
    (run,) = json.loads(done.stdout)["runs"]
    assert run["preemptions"] == preemptions == int(expected[:, 2].sum())
