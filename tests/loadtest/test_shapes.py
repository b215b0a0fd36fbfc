"""Shapes of load: they have the rates and dispersion they name, and refuse what cannot be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from surgetank.errors import InputError
from surgetank.loadtest.shapes import SHAPES, Pulses, Shape, describe, make_shape
from surgetank.traffic.dispersion import index_of_dispersion

SHORT: dict[str, dict[str, Any]] = {
    "step": {"start": 100},
    "flash": {"start": 100},
}


def drawn(name: str) -> Shape:
    return make_shape(name, {"duration": 6000, **SHORT.get(name, {})})


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_sends_the_mean_rate_that_it_says(name: str) -> None:
    shape = drawn(name)
    runs = [len(shape.times(np.random.default_rng(seed))) / 6000 for seed in range(8)]
    assert np.mean(runs) == pytest.approx(shape.mean, rel=0.06 if name == "mmpp" else 0.02)


@pytest.mark.parametrize("name", SHAPES)
def test_times_are_sorted_within_the_duration_and_of_the_seed_alone(name: str) -> None:
    shape = drawn(name)
    times = shape.times(np.random.default_rng(5))
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 6000
    assert np.array_equal(times, shape.times(np.random.default_rng(5)))


@pytest.mark.parametrize("name", SHAPES)
def test_phases_follow_each_other_over_the_whole_run(name: str) -> None:
    phases = drawn(name).phases()
    assert phases[0].start == 0
    assert phases[-1].end == 6000
    assert all(a.end == b.start for a, b in itertools.pairwise(phases))


@pytest.mark.parametrize(("name", "idc"), [("gamma", 12.0), ("mmpp", 80.0)])
def test_clumped_shapes_have_the_dispersion_asked_for_over_long_windows(
    name: str, idc: float
) -> None:
    shape = make_shape(name, {"mean": 50, "idc": idc, "duration": 40_000})
    times = shape.times(np.random.default_rng(1))
    counts = np.histogram(times, np.arange(0, 40_001, 200))[0]
    assert index_of_dispersion(counts) == pytest.approx(idc, rel=0.25)


def test_the_rate_within_and_between_pulses_is_peak_and_base() -> None:
    shape = Pulses(base=5, peak=50, width=20, period=100, duration=10_000)
    times = shape.times(np.random.default_rng(0))
    high = np.zeros(len(times), bool)
    for phase in shape.phases():
        if phase.name == "pulse":
            high |= (times >= phase.start) & (times < phase.end)
    assert high.sum() / 2000 == pytest.approx(50, rel=0.02)
    assert (~high).sum() / 8000 == pytest.approx(5, rel=0.02)


def test_the_default_pulse_stands_in_the_middle_of_its_period() -> None:
    pulses = [phase for phase in Pulses().phases() if phase.name == "pulse"]
    assert [(p.start, p.end) for p in pulses[:2]] == [(30, 60), (120, 150)]


def test_even_spacing_leaves_no_chance_in_the_counts() -> None:
    times = Pulses(base=10, peak=10, even=True).times(np.random.default_rng(0))
    assert np.diff(times).max() == pytest.approx(0.1)


def test_a_ramp_ends_faster_than_it_begins() -> None:
    times = make_shape("ramp", {"base": 0, "peak": 40, "duration": 1000}).times(
        np.random.default_rng(0)
    )
    tenths = np.histogram(times, np.linspace(0, 1000, 11))[0] / 100
    assert tenths == pytest.approx(np.arange(2, 40, 4), abs=1.5)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("pulse", {"width": 90}, "width = 90: must be below the period, 90"),
        ("pulse", {"base": -1}, "base = -1: must be >= 0"),
        ("pulse", {"peak": float("nan")}, "peak = nan: must be above 0"),
        ("pulse", {"start": 90.0}, "start = 90: must be in [0, 90)"),
        ("ramp", {"period": 9}, "period: shape ramp has none; it takes base, peak, duration"),
        ("step", {"start": 700}, "start = 700: must be before the end, 600 s"),
        ("mmpp", {"idc": 0.5}, "mmpp: idc = 0.5"),
        ("mmpp", {"idc": 5000}, "is possible with mean 40"),
        ("square", {}, "shape square: must be one of pulse, steady"),
    ],
)
def test_what_cannot_be_is_refused_with_the_parameter_and_what_would_be_right(
    name: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        make_shape(name, given)
    assert said in str(caught.value)


def test_a_shape_is_described_by_its_name_and_parameters() -> None:
    assert describe(make_shape("ramp", {"peak": 9})) == {
        "shape": "ramp",
        "base": 20.0,
        "peak": 9,
        "duration": 600.0,
    }
