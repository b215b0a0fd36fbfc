"""An analysis on a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from surgetank.report import numbers
from surgetank.report.burstiness import words
from surgetank.report.burstiness.screen import show
from surgetank.report.terminal import console
from surgetank.traffic.analysis import Analysis

from . import streams

SIZES = [(80, 24), (100, 30), (120, 40)]


def on_terminal(analysis: Analysis, width: int, height: int) -> str:
    out = io.StringIO()
    screen = Console(
        file=out, width=width, height=height, force_terminal=True, color_system=None, markup=False
    )
    show(analysis, screen, top=10)
    return out.getvalue()


def in_file(analysis: Analysis, width: int = 80) -> str:
    out = io.StringIO()
    show(analysis, console(out, width=width), top=10)
    return out.getvalue()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", streams.ALL)
def test_it_fits_the_screen(name: str, size: tuple[int, int]) -> None:
    width, height = size
    lines = on_terminal(streams.ALL[name](), width, height).splitlines()
    assert len(lines) < height  # the prompt has a line too
    assert max(map(cell_len, lines)) <= width


def test_the_smallest_screen_has_the_verdict_the_curve_and_the_dispersion() -> None:
    shown = on_terminal(streams.pulse(), 80, 24)
    analysis = streams.pulse()
    assert shown.splitlines()[0] == "夜間.log (nginx-json; arrival = stamp - duration)"
    assert "pulses" in shown
    assert "█" in shown
    for window in ("1", "10", "60"):
        assert numbers.number(analysis.idc.requests[window]) in shown
    assert "Bad rows: 7 of" in shown


@pytest.mark.parametrize("name", ["pulse", "trickle", "coarse", "week"])
def test_no_figure_is_cut_at_80_columns(name: str) -> None:
    _, _, tables = in_file(streams.ALL[name]()).partition("dispersion")
    dispersion, _, _ = tables.partition("\n\n")
    assert "Poisson, 99 %" in dispersion
    assert "…" not in dispersion


def test_a_larger_screen_shows_more() -> None:
    small, large = (on_terminal(streams.pulse(), 120, h).count("\n") for h in (24, 40))
    assert large > small + 5


def test_a_file_gets_everything_without_colour() -> None:
    shown = in_file(streams.pulse(), 120)
    assert "\x1b" not in shown
    assert shown.count("tenant-0") >= 4
    assert "line 2: no time in �[31m2" in shown
    assert "line 6:" in shown
    assert "arrivals are stamp - duration" in shown
    assert "Stamps are whole seconds." in shown
    assert "12 probe" in shown


def test_names_do_not_steer_the_terminal() -> None:
    shown = in_file(streams.pulse(), 120)
    assert not set(shown) & set("\x1b\u202e\r\x07")
    for name in ("<script>alert(1)</script>", "夜間バッチ", "مستأجر", "[red]x[/red]"):
        assert name in shown


def test_every_figure_is_the_analysis_own() -> None:
    analysis = streams.pulse()
    shown = in_file(analysis, 120)
    assert analysis.interarrival is not None
    assert analysis.tokens.prompt is not None
    for written in (
        numbers.count(analysis.requests),
        numbers.compact(analysis.rate.mean),
        numbers.compact(analysis.rate.p99),
        numbers.number(analysis.cv_1s),
        numbers.number(analysis.poisson_cv_1s),
        numbers.number(analysis.peak_to_mean["60"]),
        numbers.seconds(analysis.interarrival.mean),
        numbers.number(analysis.interarrival.p99_to_mean),
        numbers.compact(analysis.tokens.prompt.p99),
        numbers.percent(analysis.tenants[0].variance_share),
    ):
        assert written in shown


def test_a_fitted_pulse_is_told_in_words() -> None:
    pulse = streams.pulse().pulse
    assert pulse is not None
    told = words.pulse(streams.pulse())
    assert (
        f"from {numbers.number(pulse.base_rps)} to {numbers.number(pulse.peak_rps)} req/s" in told
    )
    assert f"of every {numbers.seconds(pulse.period_s)}" in told
    assert " ".join(told.split()[:6]) in " ".join(in_file(streams.pulse()).split())


def test_refused_figures_say_why() -> None:
    analysis = streams.coarse()
    assert analysis.interarrival_refused
    shown = " ".join(in_file(analysis).split())
    assert "gaps not given:" in shown
    assert " ".join(analysis.interarrival_refused.split()[:4]) in shown
    assert re.search(r"requests +– +– +[0-9]", shown)  # noqa: RUF001 - the dash of unknown figures


def test_two_requests_are_no_reason_to_draw() -> None:
    shown = in_file(streams.two_requests())
    assert "2 requests" in shown
    assert "undecided: " in shown
    assert "┤" not in shown
    assert "dispersion" not in shown


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("new capacity takes 60 s", "New capacity takes 60 s."),
        ("ttft is late.", "TTFT is late."),
        ("夜 is late", "夜 is late."),
        ("the first:", "The first:"),
    ],
)
def test_sentences_begin_and_end_as_such(given: str, told: str) -> None:
    assert words.sentence(given) == told


def test_a_long_path_is_cut_at_its_beginning() -> None:
    analysis = streams.pulse()
    source = replace(analysis.source, path="/深い" * 40 + "/access.log")
    first = on_terminal(replace(analysis, source=source), 80, 24).splitlines()[0]
    assert first.startswith("…")
    assert first.endswith("/access.log (nginx-json; arrival = stamp - duration)")
