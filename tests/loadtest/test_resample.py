"""The bootstrap over cycles, Student's t and Holm, against values known otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.loadtest import resample
from surgetank.loadtest.student import quantile, two_sided


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=6),
    st.sampled_from([0.5, 0.95, 0.99]),
    st.integers(0, 1000),
)
def test_quantiles_of_resamples_equal_those_of_the_pooled_values(
    cycles: list[list[int]], share: float, seed: int
) -> None:
    groups = [np.sort(np.array(values, float)) for values in cycles]
    drawn = resample.weights(len(groups), seed, 20)
    found = resample.quantiles(groups, share, drawn)
    for row, value in zip(drawn, found, strict=True):
        parts = [np.repeat(g, int(k)) for g, k in zip(groups, row, strict=True)]
        pooled = np.sort(np.concatenate(parts))
        if not len(pooled):
            assert np.isnan(value)
        else:
            assert value == pooled[max(0, int(np.ceil(share * len(pooled) - 1e-9)) - 1)]


def test_large_samples_lose_less_than_a_thousandth_of_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    groups = [np.sort(rng.uniform(0, 1, 5000) + i / 20) for i in range(10)]
    drawn = resample.weights(10, 1, 50)
    exact = resample.quantiles(groups, 0.95, drawn)
    monkeypatch.setattr(resample, "_CELLS", 20_000)
    assert resample.quantiles(groups, 0.95, drawn) == pytest.approx(exact, abs=1e-3)


def test_means_and_ratios_are_those_of_the_drawn_cycles() -> None:
    drawn = np.array([[1.0, 1.0, 1.0], [3.0, 0.0, 0.0], [0.0, 2.0, 1.0]])
    assert resample.means(np.array([1.0, 2.0, 6.0]), drawn).tolist() == pytest.approx(
        [3, 1, 10 / 3]
    )
    found = resample.ratios(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 4.0]), drawn)
    assert found.tolist() == pytest.approx([6 / 8, 0.5, 7 / 8])
    unknown = resample.means(np.array([1.0, np.nan, 5.0]), drawn)
    assert unknown.tolist() == pytest.approx([3, 1, 5])


def test_every_resample_has_as_many_cycles_as_there_are() -> None:
    drawn = resample.weights(7, 3, 100)
    assert (drawn.sum(axis=1) == 7).all()
    assert (resample.weights(7, 3, 100) == drawn).all()
    assert not (resample.weights(7, 4, 100) == drawn).all()


def _of_mean(each: resample.Values, drawn: resample.Values) -> resample.Estimate:
    without = resample.means(each, resample.left_out(len(each)))
    return resample.estimate(float(each.mean()), resample.means(each, drawn), without)


def test_the_interval_of_a_mean_is_students() -> None:
    each = np.random.default_rng(0).normal(10, 2, 12)
    each[::2], each[1::2] = np.sort(each)[:6], np.sort(each)[6:]  # no two neighbours alike
    drawn = resample.weights(12, 1, 20_000)
    found = _of_mean(each, drawn)
    reach = 2.200985 * each.std(ddof=1) / np.sqrt(12)
    assert found.high - found.value == pytest.approx(reach, rel=0.02)
    assert found.value - found.low == pytest.approx(reach, rel=0.02)


def test_cycles_that_drift_count_as_fewer() -> None:
    rng = np.random.default_rng(2)
    drawn = resample.weights(40, 1, 1000)
    held = independent = 0
    for _ in range(200):
        walk = np.zeros(40)
        for i, shock in enumerate(rng.standard_normal(40)):
            walk[i] = shock / 0.6 if not i else 0.8 * walk[i - 1] + shock
        found = _of_mean(walk, drawn)
        held += found.low <= 0 <= found.high
        reach = 2.0227 * walk.std(ddof=1) / 40**0.5
        independent += abs(walk.mean()) <= reach
    assert independent < 110  # of 200: what intervals of independent cycles would hold
    assert held > 172  # 190 would be perfect: the correlation itself is estimated


@pytest.mark.parametrize("cycles", [5, 8, 20])
def test_nine_and_a_half_of_ten_intervals_hold_the_truth(cycles: int) -> None:
    rng = np.random.default_rng(5)
    drawn = resample.weights(cycles, 2, 1000)
    held = 0
    for _ in range(400):
        each = rng.normal(1.0, 0.5, cycles)
        found = _of_mean(each, drawn)
        held += found.low <= 1.0 <= found.high
    # 380 expected, two standard deviations are 9; from 15 cycles on correlation by chance widens.
    assert 370 <= held <= (392 if cycles < 15 else 397)


def test_nothing_that_moves_is_certain() -> None:
    still, cycles = np.zeros(100), np.zeros(9)
    assert resample.estimate(0.0, still, cycles) == resample.Estimate(0.0, 0.0, 0.0, 1.0)
    assert resample.estimate(0.3, still + 0.3, cycles).p == 0.0
    one = resample.estimate(0.3, still, cycles[:1])
    assert one.p == 1.0
    assert np.isnan(one.low)
    assert resample.estimate(np.inf, still, cycles).p == 1.0


def test_holm_adjusts_the_smallest_by_all_and_keeps_the_order() -> None:
    assert resample.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert resample.holm([0.5, 0.6]) == [1.0, 1.0]
    assert resample.holm([]) == []


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.70620), (2, 4.302653), (4, 2.776445), (10, 2.228139), (30, 2.042272), (1e6, 1.959966)],
)
def test_students_quantiles_are_those_of_the_tables(freedom: float, t: float) -> None:
    assert quantile(0.975, freedom) == pytest.approx(t, rel=1e-6)
    assert two_sided(t, freedom) == pytest.approx(0.05, rel=1e-5)


def test_students_tails() -> None:
    assert two_sided(0, 5) == 1.0
    assert two_sided(3, 5) == pytest.approx(0.0300992479, rel=1e-8)
    assert two_sided(-3, 5) == two_sided(3, 5)
    assert two_sided(1, 1) == pytest.approx(0.5)  # Cauchy's quartiles
    assert two_sided(100, 20) < 1e-25
    with pytest.raises(ValueError, match="share = 1"):
        quantile(1, 5)
