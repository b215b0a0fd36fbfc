"""Terminal output: blocks, widths, and names that must not steer it."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from surgetank.report.terminal import (
    clean,
    console,
    fitted,
    height_of,
    plot,
    resampled,
    sparkline,
    table,
    with_axis,
)


def test_a_sparkline_runs_from_nothing_to_a_full_block() -> None:
    assert sparkline([0, 1, 2, 4, 8], 10) == " ▁▂▄█"
    assert sparkline([], 10) == ""
    assert sparkline([0, 0], 10) == "  "


def test_a_lone_request_is_seen_and_a_gap_is_a_dot() -> None:
    assert sparkline([0.001, None, math.nan, 100], 10) == "▁··█"


def test_a_scale_can_be_shared() -> None:
    assert sparkline([1, 2], 10, most=4) == "▂▄"
    assert sparkline([9], 10, most=4) == "█"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=500), st.integers(1, 60))
def test_resampling_keeps_the_highest_value(values: list[float], width: int) -> None:
    columns = resampled(values, width)
    assert len(columns) == min(width, len(values))
    assert max(columns) == max(values)


def test_a_plot_stands_on_its_last_line() -> None:
    assert plot([1, 2, 3], 10, 3) == ["  █", " ██", "███"]
    assert with_axis(plot([1, 2], 10, 2), "200") == ["200 ┤ █", "  0 ┤██"]


@pytest.mark.parametrize(
    "name", ["\x1b[31mred", "a\nb", "\x07", "a\u202eb", "\u2066x", "\x9b2J", "\ud800", "a\rb"]
)
def test_a_name_cannot_steer_the_terminal(name: str) -> None:
    shown = clean(name)
    assert "\N{REPLACEMENT CHARACTER}" in shown
    out = io.StringIO()
    console(out, width=80).print(table(["tenant"], [[name]]))
    assert not set("\x1b\x07\x9b\r\u202e\u2066") & set(out.getvalue())


def test_names_of_any_script_stay_what_they_are() -> None:
    for name in ("夜間バッチ", "مستأجر", "क्‍ष", "[red]x[/red]", ":smile:"):
        assert clean(name) == name
    out = io.StringIO()
    console(out, width=80).print(table(["tenant"], [["[red]x[/red]"], [":smile:"]]))
    assert "[red]x[/red]" in out.getvalue()
    assert ":smile:" in out.getvalue()


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.integers(1, 30))
def test_a_fitted_text_takes_no_more_than_its_room(text: str, width: int) -> None:
    assert cell_len(fitted(text, width)) <= width


def test_wide_characters_count_twice() -> None:
    assert fitted("夜間バッチ", 10) == "夜間バッチ"
    assert fitted("夜間バッチ", 9) == "夜間バッ…"


def test_without_a_terminal_there_is_no_colour_and_the_height_is_known() -> None:
    out = io.StringIO()
    made = console(out, width=80)
    made.print("x", style="bold red")
    assert out.getvalue() == "x\n"
    assert height_of(made, table(["a", "b"], [["1", "2"], ["3", "4"]])) == 4
