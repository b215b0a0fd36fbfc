"""Charts as data and as tables."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.report.charts import Axis, Band, Chart, Series, Values, data, script_json, table
from surgetank.report.numbers import NONE


def chart(values: Values, empty: str = "") -> Chart:
    x = [float(i) for i in range(len(values))]
    return Chart("c", "Title", x, (Series("a", values),), empty=empty)


@given(st.text())
def test_nothing_inside_a_script_element_can_end_it(text: str) -> None:
    written = script_json({"label": text})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"label": text}


def test_gaps_are_null_and_values_have_four_digits() -> None:
    made = data(chart([1.23456, None, math.nan, math.inf, 2.0]))
    assert made["series"][0]["values"] == [1.235, None, None, None, 2]
    json.dumps(made, allow_nan=False)


def test_evenly_spaced_places_are_told_by_start_and_step() -> None:
    stamps = [1_764_460_800.0 + 300 * i for i in range(2000)]
    made = data(Chart("c", "t", stamps, (Series("a", [0.0] * 2000),)))
    assert made["x"] == {"start": stamps[0], "step": 300.0, "n": 2000}
    assert made["calendar"] is True
    assert data(Chart("c", "t", [1, 2, 5], (Series("a", [0, 0, 0]),)))["x"] == [1, 2, 5]


def test_a_short_chart_is_told_in_full() -> None:
    told = table(
        Chart(
            "c",
            "t",
            [1, 10, 600],
            (Series("requests", [1.5, None, 303.2]),),
            x_axis=Axis("window", "log", "seconds"),
            bands=(Band("Poisson", [0.9, 0.8, 0.5], [1.1, 1.2, 1.6]),),
        )
    )
    assert told.head == ("window", "requests", "Poisson, from", "Poisson, to")
    assert told.rows == (
        ("1 s", "1.50", "0.900", "1.10"),
        ("10 s", NONE, "0.800", "1.20"),
        ("10 min", "303", "0.500", "1.60"),
    )
    assert told.note == ""


@given(st.lists(st.floats(0, 1000), min_size=25, max_size=100))
def test_a_long_chart_is_told_by_its_highest_moments(values: list[float]) -> None:
    told = table(chart(values))
    assert len(told.rows) == 24
    assert max(values) in [values[int(row[0].replace(",", ""))] for row in told.rows]
    assert told.note


def test_a_chart_without_values_says_so() -> None:
    assert data(chart([None, math.nan], empty="No gap."))["empty"] == "No gap."
    assert data(chart([], empty="No gap."))["empty"] == "No gap."
    assert data(chart([0.0]))["empty"] == ""


def test_series_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="chart c: 1 values for 2 places"):
        Chart("c", "t", [1, 2], (Series("a", [1]),))
