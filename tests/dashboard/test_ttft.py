"""Percentiles and slope of the last first tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.dashboard.ttft import FirstTokens, Spread, percentile, slope, thin


def test_overlapping_lists_count_each_first_token_once_even_equal_ones() -> None:
    tokens = FirstTokens()
    twins = [(1.0, 0.2, "a"), (1.0, 0.2, "a")]
    assert tokens.take(twins, 2.0) == twins
    assert tokens.take([*twins, (1.0, 0.2, "a"), (2.5, 0.3, "b")], 3.0) == [
        (1.0, 0.2, "a"),
        (2.5, 0.3, "b"),
    ]


def test_what_is_older_than_the_window_no_longer_counts() -> None:
    tokens = FirstTokens()
    tokens.take([(0.0, 9.0, "a"), (8.0, 1.0, "a")], 8.0)
    assert tokens.spread(8.0).p95 == 9.0
    tokens.take([(8.0, 1.0, "a")], 10.5)
    assert tokens.spread(10.5).p95 == 1.0


def test_no_first_token_gives_no_number() -> None:
    assert FirstTokens().spread(0.0) == Spread(p50=None, p95=None, slope=None)


def test_tenants_are_kept_apart_busiest_first() -> None:
    tokens = FirstTokens()
    tokens.take([(1.0, 5.0, "b"), (1.0, 1.0, "a"), (1.5, 3.0, "a"), (1.6, 2.0, "c")], 2.0)
    found = tokens.per_tenant(2, 2.0)
    assert [(name, spread.p50, spread.p95) for name, spread in found] == [
        ("a", 1.0, 3.0),
        ("b", 5.0, 5.0),
    ]


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.95, 95), (0.951, 96), (1.0, 100)])
def test_percentiles_are_nearest_rank(share: float, value: int) -> None:
    assert percentile(list(range(1, 101)), share) == value


def test_a_ramp_has_its_slope_whatever_came_before() -> None:
    ramp = [(t / 2, 0.4 * t / 2, "a") for t in range(40)]
    assert slope(ramp, 19.5) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "tokens",
    [
        [(9.0, 1.0, "a"), (10.0, 2.0, "a"), (7.0, 1.0, "a")],
        [(9.9, 1.0, "a"), (9.92, 2.0, "a"), (9.94, 3.0, "a"), (9.96, 4.0, "a")],
        [(1.0, 1.0, "a"), (2.0, 2.0, "a"), (3.0, 3.0, "a"), (4.0, 4.0, "a")],
    ],
    ids=["too few", "all at once", "too old"],
)
def test_too_little_gives_no_slope(tokens: list[tuple[float, float, str]]) -> None:
    assert slope(tokens, 10.0) is None


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 60), st.sampled_from("abc")), max_size=60))
def test_thinning_keeps_the_slowest_and_the_fastest(tokens: list[tuple[float, float, str]]) -> None:
    kept = thin(tokens)
    assert len(kept) == min(12, len(tokens))
    if tokens:
        assert {max(t[1] for t in kept), min(t[1] for t in kept)} == {
            max(t[1] for t in tokens),
            min(t[1] for t in tokens),
        }
