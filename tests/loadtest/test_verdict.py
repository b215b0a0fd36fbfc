"""Verdicts on hand-made runs whose right answer is known."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from surgetank.errors import InputError
from surgetank.loadtest.runfile import Objective, Run
from surgetank.loadtest.verdict import Comparison, Judged, Threshold, compare
from surgetank.loadtest.verdictpage import page
from surgetank.loadtest.verdictscreen import show
from surgetank.report.page import html
from surgetank.report.terminal import console
from tests.loadtest import rehearsed


def _served(pulse: float, back: float = 4.0) -> Callable[[float, int], float | None]:
    """Slow in the pulse and for `back` seconds after it, else 0.1 s."""
    return lambda at, _cycle: pulse if 0 <= at < 10 + back else 0.1


def _usual(seed: int = 1) -> Run:
    return rehearsed.run(_served(0.8), jitter=0.05, seed=seed)


def _figure(found: Comparison, key: str) -> Judged:
    return next(figure for figure in found.figures if figure.key == key)


def test_a_run_does_not_differ_from_itself() -> None:
    found = compare(_usual(), _usual())
    assert found.verdict == "no difference"
    assert {figure.says for figure in found.figures} == {"no difference"}
    assert all(figure.difference == 0 for figure in found.figures)


def test_noise_alone_is_no_difference() -> None:
    assert compare(_usual(1), _usual(2)).verdict == "no difference"


def test_slower_pulses_are_worse_and_faster_ones_better() -> None:
    slower = rehearsed.run(_served(0.9), jitter=0.05, seed=2)
    found = compare(_usual(), slower)
    assert found.verdict == "worse"
    ttft = _figure(found, "ttft_p95_pulse")
    assert ttft.says == "worse"
    assert ttft.relative == pytest.approx(0.125, abs=0.03)
    assert ttft.low is not None
    assert ttft.low > 0
    assert compare(slower, _usual()).verdict == "better"


def test_a_change_below_the_threshold_is_none_however_certain() -> None:
    slower = rehearsed.run(_served(0.9), jitter=0.05, seed=2)
    found = compare(_usual(), slower, Threshold(relative=0.25))
    assert _figure(found, "ttft_p95_pulse").p == pytest.approx(0, abs=1e-6)
    assert found.verdict == "no difference"


def test_a_longer_recovery_is_worse() -> None:
    found = compare(_usual(), rehearsed.run(_served(0.8, 8.0), jitter=0.05, seed=2))
    assert found.verdict == "worse"
    assert _figure(found, "recovery").difference == pytest.approx(4.0, abs=0.3)
    assert _figure(found, "ttft_p95_pulse").says == "no difference"


def test_refusals_count_in_points_and_cannot_be_bought_off() -> None:
    def shedding(at: float, cycle: int) -> float | None:
        if round(at * 8) % 50 == 0:
            return None
        return 0.3 if 0 <= at < 14 else 0.1  # and everyone else is served much faster

    found = compare(_usual(), rehearsed.run(shedding, jitter=0.05, seed=2))
    assert found.verdict == "worse"
    assert _figure(found, "unserved").says == "worse"
    assert _figure(found, "ttft_p95_pulse").says == "better"
    assert "requests not served 0 % to" in found.line
    assert "but better: TTFT P95 in pulses" in found.line
    allowed = compare(
        _usual(), rehearsed.run(shedding, jitter=0.05, seed=2), Threshold(unserved=0.05)
    )
    assert _figure(allowed, "unserved").says == "no difference"


def test_half_a_point_is_the_least_of_attainment_that_counts() -> None:
    def late(cycles: int) -> Run:
        """One request of 140 is late in each so many-th cycle."""
        return rehearsed.run(lambda at, c: 1.5 if at == 0 and c % cycles == 0 else 0.1)

    few = compare(rehearsed.run(), late(2))  # 0.36 points
    assert _figure(few, "attainment").difference == pytest.approx(-5 / 1390)
    assert _figure(few, "attainment").says == "no difference"
    many = compare(rehearsed.run(), late(1))
    assert _figure(many, "attainment").says == "worse"
    assert many.verdict == "worse"


def test_fewer_than_five_cycles_get_no_verdict() -> None:
    short = rehearsed.Pulse(duration=160.0)
    found = compare(
        rehearsed.run(_served(0.8), pulse=short), rehearsed.run(_served(5.0), pulse=short)
    )
    assert found.verdict == "not enough"
    assert found.line.startswith("Not enough: 4 whole cycles")
    assert {figure.says for figure in found.figures} == {"unknown"}


def test_five_cycles_suffice_for_a_large_change() -> None:
    short = rehearsed.Pulse(duration=200.0)
    a = rehearsed.run(_served(0.8), pulse=short, jitter=0.05)
    b = rehearsed.run(_served(2.0), pulse=short, jitter=0.05, seed=3)
    assert compare(a, b).verdict == "worse"


def test_only_cycles_that_both_have_are_compared() -> None:
    found = compare(replace(_usual(), done=250.0), _usual(2))
    assert found.cycles == 6
    assert "A was cut off after 250 s" in found.notes[0]


def test_infinite_in_one_is_told_and_judged() -> None:
    def most_refused(at: float, cycle: int) -> float | None:
        return None if 0 <= at < 10 and round(at * 8) % 3 == 0 else 0.1

    found = compare(_usual(), rehearsed.run(most_refused, jitter=0.05))
    ttft = _figure(found, "ttft_p95_pulse")
    assert (ttft.b, ttft.difference, ttft.note) == (None, None, "infinite in B")
    assert ttft.says == "worse"
    back = compare(rehearsed.run(most_refused, jitter=0.05), _usual())
    assert _figure(back, "ttft_p95_pulse").says == "better"
    both = compare(rehearsed.run(most_refused), rehearsed.run(most_refused))
    assert _figure(both, "ttft_p95_pulse").note.startswith("infinite in both")
    assert both.verdict == "no difference"


def test_other_schedules_are_refused_with_the_difference() -> None:
    a = rehearsed.run(description={"peak": 8})
    b = rehearsed.run(description={"peak": 9})
    with pytest.raises(InputError, match=r"before .A. and after .B. were sent different schedules"):
        compare(a, b, names=("before", "after"))
    with pytest.raises(InputError, match="peak = 8 in A and 9 in B: run both with the same"):
        compare(a, b)


def test_resources_stand_beside_and_decide_nothing() -> None:
    def metrics(replicas: float, kv: float) -> list[dict[str, float]]:
        return [
            {"t": float(t), "replicas": replicas, "kv": kv + 0.01 * (t % 3)}
            for t in range(0, 400, 5)
        ]

    a = rehearsed.run(_served(0.8), jitter=0.05, metrics=metrics(2, 0.4))
    b = rehearsed.run(_served(0.8), jitter=0.05, seed=2, metrics=metrics(4, 0.8))
    found = compare(a, b)
    assert found.verdict == "no difference"
    spent = _figure(found, "replica_seconds")
    assert spent.a == pytest.approx(80.0, rel=0.15)
    assert spent.relative == pytest.approx(1.0)
    assert (spent.resource, spent.decides, spent.says) == (True, False, "worse")
    assert _figure(found, "kv_mean").says == "changed"


def test_both_runs_are_judged_by_one_objective() -> None:
    a, b = _usual(), replace(_usual(2), objective=Objective(0.2))
    found = compare(a, b)
    assert found.objective_ttft == 1.0
    assert any("different objectives" in note for note in found.notes)
    strict = compare(a, b, ttft=0.5)
    kept = _figure(strict, "attainment").b
    assert kept is not None
    assert kept < 0.6
    assert not any("objectives" in note for note in strict.notes)


def test_a_late_sender_is_noted() -> None:
    late = replace(_usual(2), sender={"valid": False})
    assert "sender of B was late" in compare(_usual(), late).notes[0]


def test_the_same_runs_give_the_same_verdict() -> None:
    other = rehearsed.run(_served(0.9), jitter=0.05, seed=2)
    assert compare(_usual(), other) == compare(_usual(), other)


def test_text_json_and_page_tell_the_same() -> None:
    b = rehearsed.run(_served(0.9, 8.0), jitter=0.05, seed=2)
    found = compare(_usual(), b, names=("before.json", "after <b>.json"))
    out = io.StringIO()
    show(found, console(out, width=110))
    whole = html(page(_usual(), b, found))
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["verdict"] == "worse"
    assert told["line"] == found.line
    change = f"+{100 * told['figures'][0]['relative']:.1f} %"
    for text in (out.getvalue(), whole):
        assert change in text
        assert "adjusted together (Holm)" in text
        assert "before.json" in text
    assert "after <b>" not in whole
    assert found.line.startswith("Worse: TTFT P95 in pulses")


def test_the_text_fits_80_columns() -> None:
    out = io.StringIO()
    show(compare(_usual(), _usual(2)), console(out, width=80))
    assert max(len(line) for line in out.getvalue().splitlines()) <= 80
    assert "…" not in out.getvalue()


def test_runs_without_pulses_get_no_verdict() -> None:
    whole = rehearsed.run().phases[:1]
    a = replace(rehearsed.run(), phases=whole)
    found = compare(a, a)
    assert found.verdict == "not enough"
    assert "0 whole cycles" in found.line
    assert "</html>" in html(page(a, a, found))
