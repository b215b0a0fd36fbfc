"""The study on a real llama.cpp server: both ways get the same, and are judged together."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from surgetank.loadtest.shapes import Pulses
from surgetank.loadtest.verdict import Threshold, compare
from surgetank.studies.llama_pulses import Setup, run_pulses

pytestmark = pytest.mark.heavy


def test_both_ways_get_one_schedule_and_serve_it_when_it_is_light(tmp_path: Path) -> None:
    pulses = Pulses(base=1, peak=4, width=1, period=4, duration=8)
    setup = Setup(pulses=pulses, prompt="30", output="8", ttft=20.0, max_lag=5.0)
    runs = uvloop.run(run_pulses(tmp_path, setup))
    direct, gateway = runs["direct"], runs["gateway"]
    assert direct.fingerprint == gateway.fingerprint
    for run in (direct, gateway):
        assert run.summary["completed"] == run.summary["requests"] == len(setup.schedule())
        assert run.metrics, "llama.cpp's own metrics were read"
    found = compare(direct, gateway, Threshold(), names=("direct", "gateway"))
    assert found.verdict == "not enough"
