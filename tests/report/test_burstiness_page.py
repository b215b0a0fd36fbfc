"""An analysis as a page: complete, within 500 KB, the same numbers, and whole in a browser."""

from __future__ import annotations

import re
from html import unescape

import pytest

from surgetank.report import numbers
from surgetank.report.burstiness import charts, words
from surgetank.report.burstiness.page import page
from surgetank.report.page import html

from . import streams
from .test_page import Seen

LARGEST = 500_000  # bytes


@pytest.mark.parametrize("name", streams.ALL)
def test_every_page_is_within_500_kb_and_names_no_other_place(name: str) -> None:
    text = html(page(streams.ALL[name](), top=50, made_by="surgetank"))
    assert len(text.encode()) <= LARGEST
    assert not re.search(r"https?:", text)


def test_a_week_of_fifty_tenants_is_the_largest() -> None:
    analysis = streams.week()
    assert len(analysis.tenants) == 50
    assert len(charts.rate(analysis).x) > 1500
    assert 150_000 < len(html(page(analysis, top=50)).encode()) <= LARGEST


def test_names_from_a_log_are_text() -> None:
    seen = Seen(html(page(streams.pulse())))
    assert seen.tags.count("script") == 3 + 5  # theme, library, ours; one data block a chart
    assert "<script>alert(1)</script>" in seen.text
    assert "夜間バッチ" in seen.text
    assert "مستأجر" in seen.text


def test_its_numbers_are_the_analysis_own() -> None:
    analysis = streams.pulse()
    text = Seen(html(page(analysis))).text
    assert analysis.interarrival is not None
    for value in (*analysis.idc.requests.values(), *analysis.peak_to_mean.values(), analysis.cv_1s):
        assert numbers.number(value) in text
    for tenant in analysis.tenants[:10]:
        assert numbers.count(tenant.requests) in text
    assert numbers.seconds(analysis.interarrival.p99) in text
    assert "arrivals are stamp - duration" in text
    assert "line 2: no time in" in text


def test_episodes_are_marked_in_the_rate() -> None:
    analysis = streams.pulse()
    chart = charts.rate(analysis)
    assert len(chart.spans) == len(analysis.episodes) > 5
    assert [s.label.partition(",")[0] for s in chart.series] == [
        "over 1 s",
        "over 10 s",
        "over 60 s",
    ]


def test_the_dispersion_stands_beside_its_poisson_band() -> None:
    chart = charts.dispersion(streams.trickle())
    values, band = chart.series[0].values, chart.bands[0]
    inside = [
        low <= value <= high
        for value, low, high in zip(values, band.low, band.high, strict=True)
        if value is not None and low is not None and high is not None
    ]
    assert len(inside) >= 6
    assert sum(inside) >= len(inside) - 1  # 99 % of a Poisson stream's


def test_refused_figures_say_why_in_place_of_the_chart() -> None:
    analysis = streams.coarse()
    text = unescape(html(page(analysis)))
    assert analysis.interarrival_refused is not None
    assert words.sentence(analysis.interarrival_refused) in text
    assert charts.gaps(analysis).is_empty
