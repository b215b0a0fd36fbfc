"""Both batchers against vLLM's own scheduler, request by request."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

from surgetank.engine.literal import Batcher, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica

GOLDEN = Path(__file__).parents[1] / "data" / "golden"

COEFFICIENTS: dict[str, Any] = {
    "a_ms": 14.5,
    "b_us": 52.5,
    "c_ns": 1.09,
    "d_us": 35.3,
    "e_ns": 29.5,
    "max_model_len": 16384,
}
PRIORITY = {"scheduling": "priority"}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "big": ({"kv_blocks": 29686}, 0),
    "tight": ({"kv_blocks": 3000}, 730),
    "tight_noreserve": ({"kv_blocks": 3000, "full_prompt_gate": False}, 1667),
    "seq32": ({"kv_blocks": 29686, "max_num_seqs": 32}, 0),
    "tok512": ({"kv_blocks": 29686, "max_num_batched_tokens": 512}, 0),
    "bursty": ({"kv_blocks": 2000}, 372),
    "bursty_priority": ({"kv_blocks": 2000} | PRIORITY, 327),
    "bursty_priority_noreserve": (
        {
            "kv_blocks": 1200,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 1024,
            "full_prompt_gate": False,
        }
        | PRIORITY,
        1714,
    ),
    "bursty_block32": (
        {
            "kv_blocks": 800,
            "block_size": 32,
            "max_num_batched_tokens": 512,
            "full_prompt_gate": False,
        },
        1613,
    ),
}


def trace_of(case: str) -> list[list[float]]:
    """Return arrival (s), prompt, output and priority of each request."""
    if case.startswith("bursty"):
        return rows("bursty_trace")
    return [[*row, 0.0] for row in rows("trace")]


def rows(name: str) -> list[list[float]]:
    with gzip.open(GOLDEN / f"{name}.csv.gz", "rt", encoding="ascii") as file:
        reader = csv.reader(file)
        next(reader)
        return [[float(cell) for cell in row] for row in reader]


# Two seconds each for the specification, which the fast batcher equals in all of them.
LONG = {"seq32", "tok512", "tight_noreserve"}
BOTH = [
    pytest.param(case, kind, marks=[pytest.mark.heavy] if kind is Batcher and case in LONG else [])
    for case in CASES
    for kind in (Batcher, Replica)
]


@pytest.mark.parametrize(("case", "kind"), BOTH)
def test_every_ttft_finish_time_and_preemption_equals_vllms(
    case: str, kind: type[Batcher | Replica]
) -> None:
    settings, preemptions = CASES[case]
    trace = trace_of(case)
    batcher = kind(EngineProfile(name=case, **COEFFICIENTS, **settings))
    first: dict[str, float] = {}
    finish: dict[str, float] = {}
    preempted = dict.fromkeys(map(str, range(len(trace))), 0)

    def run_steps(until: float) -> None:
        while (due := batcher.due) is not None and due < until:
            for event in batcher.step(due):
                if event.kind is EventKind.FIRST_TOKEN:
                    first[event.id] = event.at
                elif event.kind is EventKind.FINISHED:
                    finish[event.id] = event.at
                elif event.kind is EventKind.PREEMPTED:
                    preempted[event.id] += 1

    for i, (arrived, prompt, output, priority) in enumerate(trace):
        run_steps(arrived)
        assert batcher.add(str(i), int(prompt), int(output), arrived, priority=int(priority))
    run_steps(float("inf"))

    expected = rows(case)
    assert len(expected) == len(trace) == len(finish)
    for i, (ttft_ms, finish_ms, times) in enumerate(expected):
        assert (first[str(i)] - trace[i][0]) * 1e3 == pytest.approx(ttft_ms, abs=1e-6, rel=0)
        assert finish[str(i)] * 1e3 == pytest.approx(finish_ms, abs=1e-6, rel=0)
        assert preempted[str(i)] == times
    assert batcher.preemptions == sum(preempted.values()) == preemptions
    assert (batcher.running, batcher.waiting, batcher.kv_blocks_used) == (0, 0, 0)
