"""Gap counts: exact sums, and figures within a bin of what was measured."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.gaps import BOUNDS, count_gaps, flattened, gap_quantile, merged

gaps = st.lists(st.floats(0.0, 100.0), max_size=50)


@given(gaps, st.integers(0, 5))
def test_every_gap_is_counted_once_and_joined_tokens_are_gaps_of_zero(
    values: list[float], joined: int
) -> None:
    moments = list(accumulate(values, initial=7.0))
    counts = count_gaps(moments, len(moments) + joined)
    assert sum(counts.values()) == len(values) + joined
    assert counts.get(0, 0) >= joined


@given(st.lists(st.floats(2e-4, 500.0), min_size=1, max_size=40), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_within_a_bin_of_the_exact_one(values: list[float], quantile: float) -> None:
    counts = count_gaps(list(accumulate(values, initial=0.0)), len(values) + 1)
    exact = sorted(values)[math.ceil(quantile * len(values) - 1e-9) - 1]
    found = gap_quantile(counts, quantile)
    assert found is not None
    assert found == pytest.approx(exact, rel=0.1)


@given(st.lists(gaps, max_size=5))
def test_merging_records_is_counting_all_at_once(streams: list[list[float]]) -> None:
    each = [
        flattened(count_gaps(list(accumulate(values, initial=0.0)), len(values) + 1))
        for values in streams
    ]
    total = merged(each)
    assert sum(total.values()) == sum(len(values) for values in streams)
    assert merged([flattened(total)]) == total


def test_the_ends_of_the_scale() -> None:
    assert count_gaps([], 0) == {}
    assert count_gaps([1.0], 1) == {}
    assert count_gaps([1.0], 3) == {0: 2}
    assert count_gaps([0.0, 0.02], 2) == {62: 1}
    assert gap_quantile({62: 1}, 0.99) == pytest.approx(0.02, rel=0.045)
    assert gap_quantile({len(BOUNDS): 4}, 0.5) == BOUNDS[-1]
    assert gap_quantile({0: 4}, 0.5) == 0.0
    assert gap_quantile({}, 0.5) is None
