"""Calibration: a profile is found again from what an engine of it was seen to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from surgetank.engine import profile as profiles
from surgetank.engine.literal import Batcher, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.errors import InputError
from surgetank.policy.record import RequestRecord
from surgetank.studies.calibrate import calibrate, described

TRUTH = profiles.find("h100-llama-3.1-8b-bf16-tp1")
LIMITS = replace(TRUTH, a_ms=10.0, b_us=10.0, c_ns=1.0, d_us=10.0, e_ns=10.0)


def seen(
    truth: EngineProfile, *, count: int, rate: float, noise: float = 0.0, replicas: int = 1
) -> list[RequestRecord]:
    """Requests as the specification's own batcher serves them, with lognormal noise on times."""
    rng = np.random.default_rng(7)
    at = np.cumsum(rng.exponential(1 / rate, count))
    prompt = np.clip(rng.lognormal(6.5, 1.0, count), 8, 8000).astype(int)
    output = np.clip(rng.lognormal(4.0, 0.8, count), 2, 1000).astype(int)
    records = {
        str(i): RequestRecord(
            id=str(i),
            arrived=1e9 + at[i],
            dispatched=1e9 + at[i],
            stream=True,
            prompt_tokens=int(prompt[i]),
            output_tokens=int(output[i]),
            outcome="completed",
            replica=f"r{i % replicas}",
        )
        for i in range(count)
    }
    for engine in range(replicas):
        batcher = Batcher(truth)
        for i in range(engine, count, replicas):
            drain(batcher, at[i], records)
            batcher.add(str(i), int(prompt[i]), int(output[i]), at[i])
        drain(batcher, np.inf, records)
    for record in records.values():
        assert record.first_token is not None
        assert record.ended is not None
        factor = np.exp(noise * rng.standard_normal(2))
        first = (record.first_token - record.arrived) * factor[0]
        rest = (record.ended - record.first_token) * factor[1]
        record.first_token = record.arrived + first
        record.ended = record.first_token + rest
    return list(records.values())


def drain(batcher: Batcher, until: float, records: dict[str, RequestRecord]) -> None:
    while (due := batcher.due) is not None and due < until:
        for event in batcher.step(due):
            if event.kind is EventKind.FIRST_TOKEN:
                records[event.id].first_token = 1e9 + event.at
            elif event.kind is EventKind.FINISHED:
                records[event.id].ended = 1e9 + event.at


def test_an_engine_is_found_again_from_its_records_without_a_profile_to_begin_with() -> None:
    records = seen(TRUTH, count=1200, rate=25.0, noise=0.02)
    found = calibrate(records, LIMITS)
    assert found.fit.held_out.requests == 360
    held = found.fit.held_out
    assert held.ttft_bias is not None
    assert held.tpot_mean is not None
    assert abs(held.ttft_bias) < 0.03
    assert held.tpot_mean < 0.05
    assert found.fit.profile.a_ms == pytest.approx(TRUTH.a_ms, rel=0.1)
    assert found.fit.profile.b_us == pytest.approx(TRUTH.b_us, rel=0.1)


def test_replicas_are_modelled_each_by_itself() -> None:
    records = seen(TRUTH, count=900, rate=60.0, replicas=3)
    found = calibrate(records, LIMITS)
    assert found.replicas == 3
    assert found.fit.held_out.ttft_bias is not None
    assert abs(found.fit.held_out.ttft_bias) < 0.03


def test_what_tells_nothing_is_left_out_and_counted() -> None:
    records = seen(TRUTH, count=60, rate=5.0)
    records[0].outcome = "quota_tokens"
    records[1].prompt_tokens = None
    records[2].output_tokens = 0
    records[3].prompt_tokens = 200_000
    found = calibrate(records, LIMITS)
    assert found.used == 56
    assert found.left_out == {
        "never ran": 1,
        "without prompt tokens": 1,
        "without output": 1,
        "longer than 131,072 tokens": 1,
    }


def test_too_few_records_are_one_clear_line() -> None:
    records = seen(TRUTH, count=30, rate=5.0)
    for record in records[:20]:
        record.prompt_tokens = None
    with pytest.raises(InputError, match=r"10 of 30 records can be used: must be >= 24 \(20 with"):
        calibrate(records, LIMITS)


def test_the_profile_says_how_far_off_it_is() -> None:
    found = calibrate(seen(TRUTH, count=200, rate=10.0), LIMITS)
    named = described(found, "mine", "some records")
    assert named.name == "mine"
    assert named.error.startswith("mean error on 60 held-out requests: TTFT ")
