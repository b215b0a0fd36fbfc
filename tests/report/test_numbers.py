"""How numbers are written."""

from __future__ import annotations

import math

import pytest

from surgetank.report import numbers


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (7, "7"),
        (0.01234, "0.0123"),
        (1.2345, "1.23"),
        (9.999, "10.0"),
        (12.345, "12.3"),
        (99.96, "100"),
        (1234.5, "1,235"),
        (12.25, "12.3"),
        (-2.5, "-2.50"),
        (0.00001234, "1.2e-5"),
        (3e18, "3.00e+18"),
        (None, numbers.NONE),
        (math.nan, numbers.NONE),
        (math.inf, numbers.NONE),
    ],
)
def test_three_digits_are_kept_and_whole_numbers_stay_whole(
    value: float | None, written: str
) -> None:
    assert numbers.number(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0 s"),
        (0.0000123, "12.3 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (45.67, "45.7 s"),
        (119, "119 s"),
        (600, "10 min"),
        (7199, "120 min"),
        (9000, "2.5 h"),
        (604800, "7 days"),
        (None, numbers.NONE),
    ],
)
def test_a_duration_has_the_unit_that_suits_its_size(value: float | None, written: str) -> None:
    assert numbers.seconds(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (950, "950"),
        (9999, "9,999"),
        (12_345, "12.3k"),
        (4_560_000, "4.56M"),
        (7.89e9, "7.89G"),
        (-20_000, "-20k"),
    ],
)
def test_large_numbers_are_written_short(value: float, written: str) -> None:
    assert numbers.compact(value) == written


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (0.997, 1.003, "0.997-1.003"),
        (0.939, 1.062, "0.94-1.06"),
        (0.038, 3.74, "0.0-3.7"),
        (12.4, 345.6, "12-346"),
        (1, 1, "1.000-1.000"),
        (None, 1, numbers.NONE),
        (0, math.inf, numbers.NONE),
    ],
)
def test_a_range_has_the_decimals_that_tell_its_ends_apart(
    low: float | None, high: float | None, written: str
) -> None:
    assert numbers.between(low, high) == written


def test_shares_counts_and_rates_carry_their_unit() -> None:
    assert numbers.percent(0.1234) == "12.3 %"
    assert numbers.percent(None) == numbers.NONE
    assert numbers.count(1234567) == "1,234,567"
    assert numbers.rate(20.25, "req") == "20.3 req/s"
    assert numbers.rate(None, "req") == numbers.NONE
    assert [numbers.plural(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


def test_a_moment_is_a_date_or_a_time_since_the_logs_origin() -> None:
    assert numbers.moment(1_764_460_800.9) == "2025-11-30 00:00:00"
    assert numbers.moment(0) == "0:00:00"
    assert numbers.moment(3661.5) == "1:01:01"
    assert numbers.moment(-90) == "-0:01:30"
    assert numbers.moment(183_600) == "2 d 03:00:00"
    assert numbers.moment(1e12) == "11,574,074 d 01:46:40"
    assert numbers.moment(math.nan) == numbers.NONE
