"""The report of a run: numbers of hand-made runs, and the same in text, JSON and page."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from surgetank.loadtest.latency import seen
from surgetank.loadtest.phases import locate, phases_between
from surgetank.loadtest.report import Report, backlog, report
from surgetank.loadtest.reportpage import page
from surgetank.loadtest.reportscreen import show
from surgetank.loadtest.runfile import OUTCOMES, Labels, Objective, Run, Samples
from surgetank.report.page import html
from surgetank.report.terminal import console
from tests.loadtest import rehearsed


def _five() -> Run:
    """Five requests: two served, one refused, one timed out, one left before its first token."""
    nan = float("nan")
    codes = [
        OUTCOMES.index(name)
        for name in ("completed", "completed", "queue_full", "request_timeout", "abandoned")
    ]
    return Run(
        description={"by": "hand"},
        fingerprint="f",
        duration=20.0,
        phases=phases_between([(5, 10)], 20),
        samples=Samples(
            scheduled=np.array([1.0, 6.0, 7.0, 8.0, 12.0]),
            sent=np.array([1.1, 6.5, 7.0, 8.0, 12.0]),
            first_byte=np.array([1.5, 8.0, 7.1, nan, nan]),
            first_token=np.array([1.6, 8.0, nan, nan, nan]),
            ended=np.array([3.6, 9.0, 7.1, 18.0, 13.0]),
            status=np.array([200, 200, 429, 0, 0], np.int32),
            outcome=np.array(codes, np.int16),
            tenant=Labels(np.array([0, 1, 1, 0, 0], np.int32), ("amber", "blue")),
            prompt_tokens=np.array([10, 10, 10, 10, 10]),
            output_tokens=np.array([21, 1, -1, -1, -1]),
            attempts=np.array([1, 2, 3, 1, 1], np.int32),
        ),
        objective=Objective(1.0, tenants={"blue": 3.0}),
    )


def test_every_request_counts_once_and_in_one_way() -> None:
    found = report(_five())
    assert found.requests == 5
    assert (found.completed, found.refused, found.abandoned, found.failed) == (2, 1, 1, 1)
    assert (found.retried, found.attempts, found.amplification) == (2, 8, 1.6)
    assert [(p.name, p.requests) for p in found.phases] == [
        ("base", 1),
        ("pulse", 3),
        ("recovery", 1),
    ]


def test_refusals_and_timeouts_are_misses_and_infinite() -> None:
    found = report(_five())
    assert found.attainment == 0.4  # the second is blue's, whose objective is 3 s
    pulse = found.phases[1]
    assert pulse.attainment == pytest.approx(1 / 3)
    assert pulse.ttft.p50 is None  # two of three never came
    assert found.whole.ttft.p50 is None
    assert pulse.refused_rate == pytest.approx(1 / 3)
    assert pulse.error_rate == pytest.approx(1 / 3)
    assert pulse.retry_rate == 1.0


def test_latency_is_told_from_the_schedule_and_from_the_send() -> None:
    calm = report(_five()).phases[0]
    assert calm.ttft.p50 == pytest.approx(0.6)
    assert calm.ttft_sent.p50 == pytest.approx(0.5)
    assert calm.e2e.p50 == pytest.approx(2.6)
    assert calm.e2e_sent.p50 == pytest.approx(2.5)
    assert calm.tpot.p50 == pytest.approx(2.0 / 20)  # the other has one token: no gap


def test_who_left_after_the_first_token_keeps_its_time() -> None:
    run = _five()
    first = run.samples.first_token.copy()
    first[4] = 12.5
    found = report(replace(run, samples=replace(run.samples, first_token=first)))
    assert found.phases[2].ttft.p50 == pytest.approx(0.5)
    assert found.phases[2].attainment == 0.0


def test_the_backlog_is_what_is_due_and_not_answered() -> None:
    run = _five()
    phase, cycle = locate(run.phases, run.samples.scheduled)
    moments, level = backlog(seen(run.samples, run.objective, phase, cycle))
    assert dict(zip(moments.round(3).tolist(), level.tolist(), strict=True)) == {
        1.0: 1,
        1.6: 0,
        6.0: 1,
        7.0: 2,
        7.1: 1,
        8.0: 1,  # one begins as the other is served
        12.0: 2,
        13.0: 1,
        18.0: 0,
    }
    assert report(run).backlog_peak == 2
    assert report(run).backlog.value == pytest.approx(0.6 + 2.0 + 0.1 + 10.0 + 1.0)


def test_tenants_have_figures_of_their_own() -> None:
    amber, blue = report(_five()).tenants
    assert (amber.name, amber.requests, amber.failed) == ("amber", 3, 1)
    assert (blue.name, blue.requests, blue.refused) == ("blue", 2, 1)
    assert blue.attainment == 0.5


def _relapsing() -> Run:
    """Ten cycles whose recovery takes 4 s, and 6 s in every other one."""
    return rehearsed.run(
        lambda at, cycle: 0.8 if 0 <= at < (14 if cycle % 2 else 16) else 0.1, jitter=0.01
    )


def test_recovery_time_has_an_interval_over_cycles() -> None:
    found = report(_relapsing()).recovery
    assert found.cycles == 10
    assert found.seconds == pytest.approx(5.0, abs=0.6)
    assert found.low is not None
    assert found.high is not None
    assert found.seconds is not None
    assert found.low < found.seconds < found.high
    assert found.high - found.low == pytest.approx(2 * 2.262 * 1.054 / 10**0.5, rel=0.1)
    assert found.each[0] == pytest.approx(6.0, abs=0.6)


def test_a_service_that_never_comes_back_is_told_as_such() -> None:
    run = rehearsed.run(lambda at, cycle: 0.1 if at < 0 and cycle == 0 else 3.0)
    found = report(run)
    assert found.recovery.censored == 10
    assert "never back to normal" in told(found)


def test_peaks_of_the_target_belong_to_their_phase() -> None:
    metrics = [
        {"t": 1.0, "queue": 1.0, "kv": 0.2},
        {"t": 16.0, "queue": 9.0, "kv": 0.9},
        {"t": 26.0, "queue": 4.0},
    ]
    found = report(rehearsed.run(metrics=metrics))
    assert [dict(p.peaks) for p in found.phases] == [
        {"queue": 1.0, "kv": 0.2},
        {"queue": 9.0, "kv": 0.9},
        {"queue": 4.0},
    ]


def test_what_was_sent_is_read_back_beside_the_schedule() -> None:
    found = report(rehearsed.run()).achieved
    assert found["rate"] == found["scheduled_rate"] == pytest.approx(3.5)
    assert found["idc"]["10"] == found["scheduled_idc"]["10"] > 5
    late = report(rehearsed.run(lag=1e9)).achieved
    assert late["idc"]["10"] is None  # nothing was sent within the run


def test_a_run_that_was_cut_off_is_told_until_then() -> None:
    found = report(replace(_relapsing(), done=100.0))
    assert found.recovery.cycles == 2
    assert "Cut off after 100 s of 6.7 min" in told(found)


def test_a_run_without_requests_has_a_report() -> None:
    run = _five()
    empty = report(replace(run, samples=run.samples.take(np.zeros(5, np.bool_))))
    assert empty.requests == 0
    assert empty.attainment is None
    json.dumps(empty.to_json(), allow_nan=False)
    assert "0 requests" in told(empty)
    assert "</html>" in html(page(replace(run, samples=run.samples.take(np.empty(0, int))), empty))


def told(found: Report, width: int = 110) -> str:
    out = io.StringIO()
    show(found, console(out, width=width))
    return out.getvalue()


def test_json_has_requests_on_top_and_the_definitions() -> None:
    found = report(_five()).to_json()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == found | {
        "phases": list(found["phases"]),
        "tenants": list(found["tenants"]),
        "recovery": found["recovery"] | {"each": list(found["recovery"]["each"])},
        "recovery_histogram": {k: list(v) for k, v in found["recovery_histogram"].items()},
    }
    assert found["requests"] == 5
    assert found["phases"][1]["name"] == "pulse"
    assert "misses" in found["definitions"]["attainment"]
    assert {"seconds", "low", "high", "cycles"} <= found["recovery"].keys()
    assert {"rate", "idc"} <= found["achieved"].keys()


def test_text_and_page_tell_the_same_figures() -> None:
    run = rehearsed.run(lambda at, _: 0.8 if 0 <= at < 12 else 0.123, tenants=("amber", "blue <b>"))
    found = report(run)
    text, whole = told(found), html(page(run, found))
    for said in ("123 ms", "800 ms", "recovery time", "amber", "P95 of the TTFT in the calmest"):
        assert said in text
        assert said in whole
    assert "blue <b>" in text
    assert "blue <b>" not in whole
    assert "blue &lt;b&gt;" in whole
    assert "https://" not in whole.replace("https://github.com/leeoniya/uPlot", "")


def test_the_text_fits_80_columns() -> None:
    text = told(report(_relapsing()), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "TTFT P95" in text
    assert "…" not in text


def test_a_late_sender_makes_the_run_invalid_in_words() -> None:
    run = replace(rehearsed.run(), sender={"lag": {"p99": 0.05}, "valid": False})
    found = report(run)
    assert "INVALID" in told(found)
    assert "INVALID" in html(page(run, found))
