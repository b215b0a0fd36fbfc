"""Exports: what other tools read is the same schedule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from surgetank.adapters.logs import read_log
from surgetank.errors import InputError
from surgetank.loadtest.exports import BLOCK_TOKENS, export
from surgetank.loadtest.sessions import SessionSpec
from surgetank.loadtest.shapes import Pulses, Ramp, Shape
from surgetank.loadtest.tenants import Prefix, TenantLoad, draw
from surgetank.traffic.tokencounts import Lengths

PULSES = Pulses(base=5, peak=40, width=10, period=30, duration=90)


def tenant(shape: Shape = PULSES, **more: object) -> TenantLoad:
    return TenantLoad("t", shape, Lengths("fixed", 1500), Lengths("fixed", 64), **more)  # type: ignore[arg-type]  # named fields


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def integral(points: list[dict[str, float]]) -> float:
    """Requests under the lines between the points."""
    return float(np.trapezoid([p["qps"] for p in points], [p["time_s"] for p in points]))


@pytest.mark.parametrize("shape", [PULSES, Ramp(base=2, peak=30, duration=120)])
def test_aiperfs_rate_series_sends_as_many_requests_as_the_schedule(shape: Shape) -> None:
    schedule = draw([tenant(shape)], seed=0)
    points = json.loads(export(schedule, "aiperf"))["points"]
    times = [p["time_s"] for p in points]
    assert times == sorted(set(times)), "strictly ascending"
    assert times[0] == 0
    assert times[-1] == schedule.duration
    assert integral(points) == pytest.approx(len(schedule), rel=0.01)


def test_aiperfs_rate_series_of_pulses_has_the_rate_of_each_phase() -> None:
    points = json.loads(export(draw([tenant()], seed=0), "aiperf"))["points"]
    inside = [p["qps"] for p in points if 10 < p["time_s"] <= 20]
    assert inside == pytest.approx([40, 40], rel=0.15)


def test_aiperfs_rates_are_above_zero_in_silence_too() -> None:
    schedule = draw([tenant(Ramp(base=0, peak=0.5, duration=60))], seed=0)
    points = json.loads(export(schedule, "aiperf"))["points"]
    assert min(p["qps"] for p in points) == 0.001


def test_mooncake_lines_are_read_back_as_the_same_arrivals_and_sizes(tmp_path: Path) -> None:
    schedule = draw([tenant()], seed=0)
    file = tmp_path / "trace.jsonl"
    file.write_text(export(schedule, "mooncake"))
    trace = read_log(file)
    assert trace.source.format == "mooncake"
    assert trace.batch.arrived - trace.batch.arrived[0] == pytest.approx(
        schedule.at - schedule.at[0], abs=0.0011
    )
    assert trace.batch.prompt_tokens is not None
    assert trace.batch.prompt_tokens.tolist() == schedule.prompt_tokens.tolist()


def test_mooncakes_blocks_are_shared_where_prompts_share_whole_blocks() -> None:
    schedule = draw([tenant(prefix=Prefix(1100, 1))], seed=0)
    first, second = (row["hash_ids"] for row in rows(export(schedule, "mooncake"))[:2])
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert len(first) == -(-1500 // BLOCK_TOKENS)
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_mooncakes_turns_of_a_session_begin_with_the_blocks_before() -> None:
    schedule = draw([tenant(sessions=SessionSpec(turns=6, think=1))], seed=1)
    made = rows(export(schedule, "mooncake"))
    session = int(np.bincount(schedule.session).argmax())
    blocks = [made[i]["hash_ids"] for i in np.flatnonzero(schedule.session == session).tolist()]
    first, second = blocks[:2]
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert second[: len(first) - 1] == first[:-1]


def test_guidellm_gets_seconds_and_sizes() -> None:
    schedule = draw([tenant()], seed=0)
    made = rows(export(schedule, "guidellm"))
    assert len(made) == len(schedule)
    assert set(made[0]) == {"timestamp", "input_length", "output_length"}
    assert [row["timestamp"] for row in made] == pytest.approx(schedule.at, abs=1e-6)


def test_another_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="must be one of aiperf, mooncake, guidellm"):
        export(draw([tenant()], seed=0), "locust")
