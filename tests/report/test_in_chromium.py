"""The page in a real browser, from a file: drawn, zoomed, read, themed and printed."""

from __future__ import annotations

import base64
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surgetank.report import numbers
from surgetank.report.burstiness import charts as charts_of
from surgetank.report.burstiness.page import page as analysis_page
from surgetank.report.files import write_whole
from surgetank.report.page import html
from tests.dashboard import chromium

from . import streams
from .pages import BEGIN, NAMES, N, charts, whole

if chromium.EXECUTABLE is None:
    pytest.skip(
        "the report's tests need a browser: apt-get install chromium", allow_module_level=True
    )

DRAWN = len(charts()) - 1  # one has nothing to draw
READY = f"document.documentElement.dataset.charts === '{DRAWN}'"
PIXELS = "[...document.querySelectorAll('canvas')].map((c) => c.toDataURL()).join()"


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        chromium.browser(Path(profile)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "a report 夜.html"
    path.write_text(whole(), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: chromium.Browser, file: Path) -> Iterator[chromium.Browser]:
    """A freshly opened page; afterwards nothing may have gone wrong in it, or left it."""
    browser.problems.clear()
    browser.requested.clear()
    browser.screen(1280, 900)
    browser.open(file.as_uri())
    browser.until(READY)
    yield browser
    browser.evaluate("localStorage.clear()")
    assert browser.problems == []
    elsewhere = [u for u in browser.requested if u != file.as_uri() and not u.startswith("data:")]
    assert elsewhere == []


def drawn(page: chromium.Browser, name: str) -> Any:
    """How many pixels of a chart's canvas are not blank."""
    return page.evaluate(
        f"((c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
        ".filter((v, i) => i % 4 === 3 && v > 0).length)"
        f"(document.querySelector('#{name} canvas'))"
    )


def box(page: chromium.Browser, name: str) -> Any:
    """Left, top, width, height of a chart's drawing area."""
    page.evaluate(f"document.querySelector('#{name}').scrollIntoView({{block: 'center'}})")
    return page.evaluate(
        "(({x, y, width, height}) => [x, y, width, height])"
        f"(document.querySelector('#{name} .u-over').getBoundingClientRect())"
    )


def mouse(page: chromium.Browser, kind: str, x: float, y: float, clicks: int = 0) -> None:
    page.call(
        "Input.dispatchMouseEvent",
        type=kind,
        x=x,
        y=y,
        button="none" if kind == "mouseMoved" else "left",
        clickCount=clicks,
    )


def drag(page: chromium.Browser, name: str, start: float, end: float) -> None:
    left, top, width, height = box(page, name)
    y = top + height / 2
    mouse(page, "mouseMoved", left + start * width, y)
    mouse(page, "mousePressed", left + start * width, y, 1)
    mouse(page, "mouseMoved", left + (start + end) / 2 * width, y)
    mouse(page, "mouseMoved", left + end * width, y)
    mouse(page, "mouseReleased", left + end * width, y, 1)


def double_click(page: chromium.Browser, name: str) -> None:
    left, top, width, height = box(page, name)
    for clicks in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            mouse(page, kind, left + width / 2, top + height / 2, clicks)


def zoomed(page: chromium.Browser, name: str) -> Any:
    return page.evaluate(f"document.querySelector('#{name}').dataset.zoomed")


def press(page: chromium.Browser, key: str) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key)


def texts(page: chromium.Browser, selector: str) -> Any:
    return page.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.innerText)")


def tip(page: chromium.Browser, name: str) -> Any:
    return page.evaluate(f"document.querySelector('#{name} .tip').innerText")


@pytest.mark.parametrize("name", [chart.name for chart in charts() if not chart.is_empty])
def test_every_chart_is_drawn(page: chromium.Browser, name: str) -> None:
    assert drawn(page, name) > 1000


def test_a_chart_without_values_is_a_sentence(page: chromium.Browser) -> None:
    assert page.evaluate("document.querySelector('#none .plot').innerText") == "No request."


def test_names_in_any_script_are_shown_as_they_are_and_run_nothing(page: chromium.Browser) -> None:
    assert texts(page, "#tenants .legend bdi") == list(NAMES)
    assert texts(page, "main > section:last-child tbody th") == list(NAMES)
    assert page.evaluate("document.title") == "夜間バッチ report"
    second = "document.querySelector('#tenants .legend li:nth-child(2) bdi')"
    width = page.evaluate(f"{second}.getBoundingClientRect().width")
    assert width > 40  # five wide characters, not five narrow boxes


def test_dragging_zooms_charts_of_one_time_together_and_a_double_click_shows_all(
    page: chromium.Browser,
) -> None:
    before = page.evaluate(PIXELS)
    drag(page, "rate", 0.3, 0.5)
    page.until("document.querySelector('#rate').dataset.zoomed === 'true'")
    page.until("document.querySelector('#tenants').dataset.zoomed === 'true'")
    assert page.evaluate(PIXELS) != before
    assert zoomed(page, "idc") != "true"
    assert not page.evaluate("document.querySelector('#rate .reset').hidden")
    double_click(page, "rate")
    page.until("document.querySelector('#rate').dataset.zoomed === 'false'")
    page.until("document.querySelector('#tenants').dataset.zoomed === 'false'")
    assert page.evaluate("document.querySelector('#rate .reset').hidden")


def test_a_logarithmic_axis_zooms_and_the_button_shows_all(page: chromium.Browser) -> None:
    drag(page, "idc", 0.2, 0.8)
    page.until("document.querySelector('#idc').dataset.zoomed === 'true'")
    page.evaluate("document.querySelector('#idc .reset').click()")
    page.until("document.querySelector('#idc').dataset.zoomed === 'false'")


def test_the_pointer_reads_values_as_the_tables_write_them(page: chromium.Browser) -> None:
    left, top, width, height = box(page, "idc")
    mouse(page, "mouseMoved", left + width - 1, top + height / 2)
    page.until("!document.querySelector('#idc .tip').hidden")
    told = tip(page, "idc")
    assert "window: 10 min" in told
    assert re.search(r"requests\s+303", told)
    assert re.search(rf"tokens\s+{numbers.NONE}", told)
    assert re.search(r"Poisson\s+0.500 to 1.60", told)
    mouse(page, "mouseMoved", 2, 2)
    page.until("document.querySelector('#idc .tip').hidden")


def test_numbers_are_written_as_everywhere_else(page: chromium.Browser) -> None:
    """The tooltip and the table beside it are two writers of the same values."""
    page.evaluate("document.querySelector('#gaps .plot').focus()")
    table = page.evaluate(
        "[...document.querySelectorAll('#gaps tbody tr')]"
        ".map((r) => [...r.children].map((c) => c.textContent))"
    )
    told = {}
    for _ in range(40):
        press(page, "ArrowRight")
        x, y = page.evaluate(
            "[document.querySelector('#gaps .tip').firstChild.innerText,"
            " document.querySelector('#gaps .tip b').innerText]"
        )
        told[x.removeprefix("gap: ")] = y
    assert len(told) == 40
    assert table
    assert [(x, y) for x, y in table if told[x] != y] == []


def test_arrow_keys_read_and_plus_and_escape_zoom(page: chromium.Browser) -> None:
    page.evaluate("document.querySelector('#rate .plot').focus()")
    press(page, "ArrowRight")
    page.until("!document.querySelector('#rate .tip').hidden")
    assert tip(page, "rate").startswith(numbers.moment(BEGIN))
    press(page, "ArrowLeft")
    press(page, "+")
    page.until("document.querySelector('#rate').dataset.zoomed === 'true'")
    press(page, "Escape")
    page.until("document.querySelector('#rate').dataset.zoomed === 'false'")


def test_an_episode_is_named_where_it_is(page: chromium.Browser) -> None:
    left, top, width, height = box(page, "rate")
    mouse(page, "mouseMoved", left + 120 / (N - 1) * width, top + height / 2)
    page.until("document.querySelector('#rate .tip').innerText.includes('episode 1')")
    mouse(page, "mouseMoved", left + 300 / (N - 1) * width, top + height / 2)
    page.until("!document.querySelector('#rate .tip').innerText.includes('episode 1')")


def test_a_click_on_the_legend_hides_a_series(page: chromium.Browser) -> None:
    button = "document.querySelector('#tenants .legend button')"
    before = page.evaluate(PIXELS)
    page.evaluate(f"{button}.click()")
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    page.until(f"{PIXELS} !== {before!r}")
    page.evaluate(f"{button}.click()")
    page.until(f"{PIXELS} === {before!r}")


def test_it_follows_the_systems_theme_and_a_toggle(page: chromium.Browser) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    light, painted = page.evaluate(back), page.evaluate(PIXELS)
    page.screen(1280, 900, dark=True)
    page.until(f"{back} !== {light!r}")
    assert page.evaluate(PIXELS) != painted
    page.evaluate("document.querySelector('#theme').click()")
    assert page.evaluate(back) == light
    assert page.evaluate("document.querySelector('#theme').innerText") == "Dark"


@pytest.mark.parametrize("width", [360, 400, 1280])
def test_nothing_is_wider_than_the_screen(page: chromium.Browser, width: int) -> None:
    page.screen(width, 800)
    page.until(f"document.documentElement.scrollWidth <= {width}")
    assert page.evaluate("document.querySelector('#rate canvas').clientWidth") > 0.7 * width


def test_every_chart_has_a_text_for_those_who_do_not_see_it(page: chromium.Browser) -> None:
    labels = page.evaluate(
        "[...document.querySelectorAll('.plot')].map((e) => e.getAttribute('aria-label'))"
    )
    assert [label.partition(".")[0] for label in labels] == [c.title for c in charts()]
    assert page.evaluate("document.querySelectorAll('.chart details table').length") == DRAWN
    assert page.evaluate("[...document.querySelectorAll('.plot')].every((e) => e.tabIndex === 0)")


def test_paper_is_white_and_holds_every_chart(page: chromium.Browser) -> None:
    page.screen(1280, 900, dark=True)
    page.until("document.documentElement.dataset.theme === 'dark'")
    page.evaluate(
        "window.seen = []; addEventListener('beforeprint', () => window.seen.push("
        " document.documentElement.dataset.theme,"
        " document.querySelector('#rate canvas').clientWidth))"
    )
    answer = page.call("Page.printToPDF", printBackground=True)
    pdf = base64.b64decode(answer["data"])
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
    theme, width = page.evaluate("window.seen")
    assert theme == "light"
    assert width < 700  # a sheet is 180 mm wide between its margins
    page.until("document.documentElement.dataset.theme === 'dark'")
    page.until("document.querySelector('#rate canvas').clientWidth > 1000")


@pytest.mark.parametrize("name", streams.ALL)
def test_a_report_of_real_figures_opens_and_draws_what_there_is(
    browser: chromium.Browser, tmp_path: Path, name: str
) -> None:
    analysis = streams.ALL[name]()
    file = tmp_path / "report.html"
    write_whole(file, html(analysis_page(analysis)))
    browser.problems.clear()
    browser.requested.clear()
    browser.screen(1280, 900)
    browser.open(file.as_uri())
    browser.until("document.documentElement.dataset.charts")
    expected = (charts_of.rate(analysis), charts_of.dispersion(analysis), charts_of.gaps(analysis))
    for chart in expected:
        assert chart.is_empty or drawn(browser, chart.name) > 1000
    browser.screen(400, 800)
    browser.until("document.documentElement.scrollWidth <= 400")
    assert browser.problems == []
    assert {url for url in browser.requested if not url.startswith("data:")} == {file.as_uri()}
