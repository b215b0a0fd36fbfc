"""Replay: a log's requests again, clock-true, faster or denser; and the load that fits a log."""

from __future__ import annotations

import numpy as np
import pytest

from surgetank.errors import InputError
from surgetank.loadtest.fromlog import tenants_of
from surgetank.loadtest.replay import ReplaySpec, busiest, replay
from surgetank.loadtest.shapes import Clumps, Pulses, Steady
from surgetank.loadtest.tenants import draw
from surgetank.traffic import arrivals
from surgetank.traffic.tokencounts import Lengths, Observed
from surgetank.traffic.trace import Batch, Labels, Trace

SPEC = ReplaySpec(prompt=Lengths("fixed", 77), output=Lengths("fixed", 33))
BEGIN = 1_764_460_800.0


def log(times: list[float], **columns: object) -> Trace:
    return Trace.of([Batch(np.array(times), **columns)])  # type: ignore[arg-type]  # named columns


def counts(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def pulses(seed: int, base: float, peak: float, tenant: str = "", span: float = 900) -> Trace:
    at = arrivals.pulse(np.random.default_rng(seed), base, peak, 30, 90, span) + BEGIN
    label = Labels(np.zeros(len(at), np.int32), (tenant,)) if tenant else None
    return Trace.of([Batch(at, prompt_tokens=np.full(len(at), 9), tenant=label)])


def test_requests_are_due_as_they_came_from_the_first_on() -> None:
    made = replay(log([105.0, 100.0, 100.25]), SPEC, name="x").schedule
    assert made.at.tolist() == [0.0, 0.25, 5.0]


def test_speed_shrinks_time_and_nothing_else() -> None:
    trace = log([0, 10, 30], prompt_tokens=counts(5, 6, 7), output_tokens=counts(1, 2, 0))
    made = replay(trace, ReplaySpec(prompt=SPEC.prompt, output=SPEC.output, speed=4), name="x")
    assert made.schedule.at.tolist() == [0, 2.5, 7.5]
    assert made.schedule.prompt_tokens.tolist() == [5, 6, 7]
    assert made.schedule.max_tokens.tolist() == [1, 2, 1], "an engine generates one at least"
    assert made.notes == ()


@pytest.mark.parametrize("scale", [0.25, 1.5, 3.0])
def test_scale_multiplies_the_requests_and_keeps_the_pulse(scale: float) -> None:
    trace = pulses(0, 5, 40)
    spec = ReplaySpec(prompt=SPEC.prompt, output=SPEC.output, scale=scale)
    made = replay(trace, spec, name="x").schedule
    assert len(made) / len(trace) == pytest.approx(scale, rel=0.05)
    assert (np.diff(made.at) >= 0).all()
    was = np.histogram(trace.batch.arrived - trace.batch.arrived[0], np.arange(0, 891, 30))[0]
    now = np.histogram(made.at, np.arange(0, 891, 30))[0]
    assert np.corrcoef(was, now)[0, 1] > 0.97


def test_scale_one_sends_the_log_itself() -> None:
    trace = pulses(3, 5, 40)
    made = replay(trace, SPEC, name="x").schedule
    assert np.array_equal(made.at, trace.batch.arrived - trace.batch.arrived[0])


def test_a_window_is_the_busiest_stretch() -> None:
    trace = log([0, 50, 51, 52, 59.5, 100, 110])
    assert busiest(trace.batch, 10).arrived.tolist() == [50, 51, 52, 59.5]


def test_tenants_keep_their_names_and_rows_without_one_get_the_default() -> None:
    trace = log([0, 1, 2], tenant=Labels.of(["b", None, "a"]))
    made = replay(trace, SPEC, name="x").schedule
    names = [made.tenant.names[code] for code in made.tenant.codes]
    assert names == ["b", "default", "a"]


def test_sizes_that_a_log_does_not_say_are_drawn_and_told() -> None:
    made = replay(log([0, 1], prompt_tokens=counts(-1, 4)), SPEC, name="x")
    assert made.schedule.prompt_tokens.tolist() == [77, 4]
    assert made.schedule.max_tokens.tolist() == [33, 33]
    assert made.notes == (
        "prompt tokens: 1 of 2 requests say none; drawn",
        "output tokens: 2 of 2 requests say none; drawn",
    )


def test_cached_tokens_become_a_prefix_shared_with_the_session() -> None:
    trace = log(
        [0, 1, 2],
        prompt_tokens=counts(10, 30, 40),
        cached_tokens=counts(0, 20, 99),
        session=Labels.of(["s", "s", None]),
    )
    made = replay(trace, SPEC, name="x").schedule
    assert made.shared.tolist() == [0, 20, 0]
    assert made.root.tolist() == [-1, 0, -1]


def test_episodes_of_the_log_are_the_pulses_of_the_report() -> None:
    made = replay(pulses(1, 2, 40), SPEC, name="x").schedule
    found = [(p.start, p.end) for p in made.phases if p.name == "pulse"]
    assert len(found) == 10
    assert all(end - start == pytest.approx(30, abs=8) for start, end in found)


def test_the_last_request_lies_within_the_run() -> None:
    made = replay(pulses(1, 2, 40), SPEC, name="x").schedule
    assert made.at[-1] < made.phases[-1].end == made.duration


def test_a_row_without_a_time_is_left_out_and_told() -> None:
    made = replay(log([0, float("nan"), 2]), SPEC, name="x")
    assert len(made.schedule) == 2
    assert made.notes[-1] == "1 rows without a time were left out"


@pytest.mark.parametrize("times", [[5.0], [5.0, 5.0]])
def test_a_log_of_one_moment_can_be_replayed(times: list[float]) -> None:
    made = replay(log(times), SPEC, name="x").schedule
    assert made.at.tolist() == [0.0] * len(times)
    assert made.duration == 1.0


def test_too_many_requests_and_none_are_refused() -> None:
    with pytest.raises(InputError, match="x: no request with a time in it"):
        replay(log([float("nan")]), SPEC, name="x")
    with pytest.raises(InputError, match="x: 3 requests, more than 2: take a --window of it"):
        replay(log([0, 1, 2]), SPEC, name="x", most=2)
    with pytest.raises(InputError, match="--speed 0: must be above 0"):
        ReplaySpec(prompt=SPEC.prompt, output=SPEC.output, speed=0)


def fitted(trace: Trace, **changed: float) -> dict[str, object]:
    options = {"duration": 600.0, "scale": 1.0, **changed}
    tenants = tenants_of(trace, name="x.log", prompt=SPEC.prompt, output=SPEC.output, **options)
    return {tenant.name: tenant for tenant in tenants}


def joined(*traces: Trace) -> Trace:
    return Trace.of([trace.batch for trace in traces])


def test_the_pulse_of_a_log_is_played_back_for_each_tenant_on_one_clock() -> None:
    steady = arrivals.poisson(np.random.default_rng(5), 8, 900) + BEGIN
    calm = Trace.of([Batch(steady, tenant=Labels(np.zeros(len(steady), np.int32), ("calm",)))])
    found = tenants_of(
        joined(pulses(1, 4, 40, "bursty"), calm),
        name="x.log",
        duration=600,
        scale=1,
        prompt=SPEC.prompt,
        output=SPEC.output,
    )
    shapes = {tenant.name: tenant.shape for tenant in found}
    bursty = shapes["bursty"]
    assert isinstance(bursty, Pulses)
    assert bursty.base == pytest.approx(4, rel=0.2)
    assert bursty.peak == pytest.approx(40, rel=0.1)
    assert bursty.width == pytest.approx(30, rel=0.1)
    assert bursty.period == pytest.approx(90, rel=0.02)
    assert bursty.onset == pytest.approx(60, abs=3), "each period of the log begins with its base"
    assert isinstance(shapes["calm"], Steady)
    assert shapes["calm"].rate == pytest.approx(8, rel=0.05)


def test_sizes_are_drawn_from_those_of_the_tenant_or_from_the_options() -> None:
    (tenant,) = tenants_of(
        pulses(1, 4, 40, "a"),
        name="x",
        duration=600,
        scale=1,
        prompt=SPEC.prompt,
        output=SPEC.output,
    )
    assert isinstance(tenant.prompt, Observed)
    made = draw([tenant], seed=0)
    assert set(made.prompt_tokens.tolist()) == {9}
    assert set(made.max_tokens.tolist()) == {33}


def test_scale_multiplies_the_fitted_rates() -> None:
    whole, tenth = (
        tenants_of(
            pulses(1, 4, 40),
            name="x",
            duration=600,
            scale=s,
            prompt=SPEC.prompt,
            output=SPEC.output,
        )[0].shape
        for s in (1.0, 0.1)
    )
    assert tenth.top == pytest.approx(whole.top / 10)


def test_many_small_tenants_are_others_and_share_the_pulse_of_all() -> None:
    trace = pulses(2, 6, 60)
    owner = np.random.default_rng(0).integers(40, size=len(trace)).astype(np.int32)
    labelled = Batch(trace.batch.arrived, tenant=Labels(owner, tuple(f"t{i}" for i in range(40))))
    found = tenants_of(
        Trace.of([labelled]),
        name="x",
        duration=600,
        scale=1,
        prompt=SPEC.prompt,
        output=SPEC.output,
    )
    assert len(found) == 9
    assert found[-1].name == "others"
    assert all(isinstance(t.shape, Pulses) for t in found)
    assert sum(t.shape.top for t in found) == pytest.approx(60, rel=0.1)
    assert sum(t.shape.mean for t in found) == pytest.approx(24, rel=0.1)


def test_clumps_of_a_tenant_stay_clumps() -> None:
    rng = np.random.default_rng(1)
    at = arrivals.gamma_renewal(rng, 10, 900, cv=3.0) + BEGIN
    clumpy = Trace.of([Batch(at, tenant=Labels(np.zeros(len(at), np.int32), ("clumpy",)))])
    found = tenants_of(
        joined(pulses(1, 4, 40, "bursty"), clumpy),
        name="x",
        duration=600,
        scale=1,
        prompt=SPEC.prompt,
        output=SPEC.output,
    )
    shape = {tenant.name: tenant.shape for tenant in found}["clumpy"]
    assert isinstance(shape, Clumps)
    assert shape.idc == pytest.approx(9, rel=0.5)


def test_a_log_without_a_pulse_is_refused_with_what_to_do() -> None:
    at = arrivals.poisson(np.random.default_rng(0), 5, 900)
    with pytest.raises(InputError, match=r"no pulse can be fitted \(poisson: .*surgetank replay"):
        fitted(log(at.tolist()))


def test_a_run_shorter_than_three_periods_is_refused_with_the_length_it_needs() -> None:
    with pytest.raises(InputError, match=r"pulses come every 90 s: give --duration, at least 270"):
        fitted(pulses(1, 4, 40), duration=200)
