"""TokenBucket: rows of what happened and what must be left, and the bound it exists for."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.bucket import TokenBucket

Row = tuple[float, str, float, float | bool]


@pytest.mark.parametrize(
    ("rate", "burst", "rows"),
    [
        pytest.param(
            10, 10, [(0, "reserve", 10, True), (0, "reserve", 1, False), (0.1, "reserve", 1, True)],
            id="starts full, then refills at its rate",
        ),
        pytest.param(
            10, 10, [(5, "reserve", 4, True), (99, "level", 0, 10)], id="never above its size"
        ),
        pytest.param(
            10, 10, [(0, "reserve", 8, True), (1, "refund", 8, 10), (1, "reserve", 11, False)],
            id="a refund does not overfill it",
        ),
        pytest.param(
            10, 10,
            [
                (0, "reserve", 5, True),
                (0, "settle", 25, -15),
                (0, "wait", 1, 1.6),
                (1, "reserve", 1, False),
                (1.6, "reserve", 1, True),
            ],
            id="real usage beyond the reservation is a debt that refill pays",
        ),
        pytest.param(
            10, 10,
            [
                (10, "reserve", 10, True),
                (5, "level", 0, 0),
                (10, "level", 0, 0),
                (11, "level", 0, 10),
            ],
            id="time running backwards refills nothing, not then and not later",
        ),
        pytest.param(
            10, 10, [(10, "reserve", 10, True), (5, "refund", 2, 2), (10, "level", 0, 2)],
            id="a change in the past does not move its clock back",
        ),
        pytest.param(10, 10, [(0, "wait", 11, inf)], id="more than its size never comes"),
        pytest.param(
            0, 10, [(0, "wait", 10, 0), (0, "reserve", 10, True), (9, "wait", 1, inf)],
            id="without refill it empties once",
        ),
        pytest.param(0, 0, [(0, "reserve", 1, False), (0, "reserve", 0, True)], id="of no size"),
    ],
)  # fmt: skip
def test_rows(rate: float, burst: float, rows: list[Row]) -> None:
    bucket = TokenBucket(rate, burst)
    for now, verb, n, expect in rows:
        match verb:
            case "reserve":
                assert bucket.reserve(n, now) is expect
            case "wait":
                assert bucket.wait(n, now) == pytest.approx(expect)
            case "settle":  # n used of 5 reserved
                bucket.settle(5, n, now)
                assert bucket.level(now) == pytest.approx(expect)
            case "refund":
                bucket.refund(n, now)
                assert bucket.level(now) == pytest.approx(expect)
            case _:
                assert bucket.level(now) == pytest.approx(expect)


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="rate=-1"):
        TokenBucket(-1, 5)


@given(
    rate=st.floats(0, 100),
    burst=st.floats(0, 1000),
    steps=st.lists(
        st.tuples(st.floats(0, 20), st.floats(0, 300), st.sampled_from(["keep", "refund"])),
        max_size=40,
    ),
)
def test_what_is_admitted_in_any_window_is_at_most_burst_plus_refill(
    rate: float, burst: float, steps: list[tuple[float, float, str]]
) -> None:
    bucket = TokenBucket(rate, burst)
    now = 0.0
    kept: list[tuple[float, float]] = []
    for step, n, then in steps:
        now += step
        if not bucket.reserve(n, now):
            assert bucket.wait(n, now) > 0
            continue
        if then == "refund":
            bucket.refund(n, now)
        else:
            kept.append((now, n))
        assert bucket.level(now) <= burst
    for first in range(len(kept)):
        admitted = 0.0
        for at, n in kept[first:]:
            admitted += n
            allowed = burst + rate * (at - kept[first][0])
            assert admitted <= allowed + 1e-6 * (1 + allowed)


@given(
    rate=st.floats(0.01, 1e5),
    burst=st.floats(1, 1e6),
    part=st.floats(0.01, 1),
    at=st.floats(0, 1e9),
)
def test_after_the_wait_it_says_a_reservation_succeeds(
    rate: float, burst: float, part: float, at: float
) -> None:
    bucket = TokenBucket(rate, burst)
    assert bucket.reserve(burst, at)
    n = burst * part
    wait = bucket.wait(n, at)
    if at + wait - at >= wait * (1 - 1e-9):  # the clock itself can tell the two times apart
        assert bucket.reserve(n, at + wait)
