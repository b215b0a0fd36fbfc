"""The page in a real browser: curves move, both themes, lost sources, any names, keyboard."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import chromium
from .pulse import NAMES, Pulse, Source, serve
from .running import dashboard

if chromium.EXECUTABLE is None:
    pytest.skip(
        "the page's tests need a browser: apt-get install chromium", allow_module_level=True
    )

PIXELS = "[...document.querySelectorAll('canvas')].map((c) => c.toDataURL()).join()"
SAMPLES = "Number(document.querySelector('main').dataset.samples)"
LIVE = f"{SAMPLES} >= 2 && document.querySelectorAll('canvas').length === 6"


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        chromium.browser(Path(profile)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    """A gateway in the middle of its pulse."""
    pulse = Pulse(begin=30, end=200)
    for _ in range(40):
        pulse.second()
    with serve(pulse) as listener:
        yield listener


@pytest.fixture(scope="module")
def address(source: Source) -> Iterator[str]:
    with dashboard("--source", source.address) as (_, found):
        yield found


@pytest.fixture
def page(browser: chromium.Browser, address: str) -> Iterator[chromium.Browser]:
    """A freshly opened page that lives; afterwards nothing may have gone wrong in it."""
    browser.problems.clear()
    browser.requested.clear()
    browser.screen(1280, 800)
    browser.open(address)
    browser.until(LIVE)
    yield browser
    browser.evaluate("localStorage.clear()")
    assert browser.problems == []
    assert [url for url in browser.requested if not url.startswith(address)] == []


def text(page: chromium.Browser, selector: str) -> Any:
    return page.evaluate(f"document.querySelector({selector!r}).innerText")


def background(page: chromium.Browser) -> Any:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def press(page: chromium.Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 else "")


def test_curves_and_numbers_move_while_the_source_answers(page: chromium.Browser) -> None:
    count, before = page.evaluate(SAMPLES), page.evaluate(PIXELS)
    page.until(f"{SAMPLES} >= {count + 2}")
    assert page.evaluate(PIXELS) != before
    assert page.evaluate("document.querySelector('#banner').hidden")
    tiles = text(page, "#tiles")
    assert "ready" in tiles
    assert page.evaluate("document.querySelectorAll('.tile').length") == 6


def test_the_dispersion_of_the_last_minutes_is_told(page: chromium.Browser) -> None:
    page.until("!document.querySelector('#burstiness').hidden")
    told = text(page, "#burstiness")
    assert told.startswith("Last ")
    assert "IDC" in told
    assert "(1 for Poisson)" in told
    assert page.evaluate("document.querySelector('#burstiness').title") != ""


def test_names_in_any_script_are_shown_as_they_are_and_run_nothing(page: chromium.Browser) -> None:
    page.until("document.querySelectorAll('#tenants li:not([hidden])').length === 7")
    shown = page.evaluate("[...document.querySelectorAll('#tenants bdi')].map((e) => e.innerText)")
    assert set(shown) <= {*NAMES, "others"}
    assert {"夜間バッチ", "🚀 launch"} <= set(shown)
    assert page.evaluate("document.querySelector('main img')") is None


def test_it_follows_the_systems_theme_and_remembers_another_choice(page: chromium.Browser) -> None:
    light = background(page)
    page.screen(1280, 800, dark=True)
    page.until(f"getComputedStyle(document.body).backgroundColor !== {light!r}")
    dark, painted = background(page), page.evaluate(PIXELS)
    page.evaluate("document.querySelector('#theme').click()")
    assert background(page) == light
    assert page.evaluate(PIXELS) != painted
    page.call("Page.reload")
    page.until(LIVE)
    assert background(page) == light
    press(page, "t")
    assert background(page) == dark
    assert page.evaluate("document.querySelector('#theme').getAttribute('aria-pressed')") == "true"


def test_text_stands_out_in_both_themes(page: chromium.Browser) -> None:
    contrast = """(() => {
      const rgb = (value) => {
        const probe = document.createElement("i");
        probe.style.color = value;
        document.body.append(probe);
        const found = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
        probe.remove();
        return found;
      };
      const light = (value) => {
        const [r, g, b] = rgb(`var(${value})`).map((c) => {
          c /= 255;
          return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => {
        const [x, y] = [light(a), light(b)].sort((m, n) => n - m);
        return (x + 0.05) / (y + 0.05);
      };
      const texts = ["--ink", "--ink-quiet", "--good", "--warn", "--bad"];
      const curves = [0, 1, 2, 3, 4, 5].map((slot) => `--series-${slot}`);
      return {
        text: Math.min(...texts.map((one) => ratio(one, "--card"))),
        curve: Math.min(...[...curves, "--others"].map((one) => ratio(one, "--card"))),
      };
    })()"""
    for dark in (False, True):
        page.screen(1280, 800, dark=dark)
        page.until(f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'")
        found = page.evaluate(contrast)
        assert found["text"] >= 4.5
        assert found["curve"] >= 3.0


def test_pause_stops_the_page_and_resume_catches_up(page: chromium.Browser) -> None:
    press(page, "p")
    page.until("document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
    still = page.evaluate(PIXELS)
    page.until("/\\([2-9] s behind/.test(document.querySelector('#pause').innerText)")
    assert page.evaluate(PIXELS) == still
    press(page, "p")
    assert text(page, "#pause") == "Pause"
    assert page.evaluate(PIXELS) != still


def test_charts_hold_still_under_the_pointer_while_numbers_go_on(page: chromium.Browser) -> None:
    box = page.evaluate(
        "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
        "(document.querySelector('#arrivals .plot').getBoundingClientRect())"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    page.until("document.querySelector('#moment').innerText.startsWith('at ')")
    count, still = page.evaluate(SAMPLES), page.evaluate(PIXELS)
    tiles = text(page, "#tiles")
    page.until(f"document.querySelector('#tiles').innerText !== {tiles!r}")
    assert page.evaluate(PIXELS) == still
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    page.until(f"{SAMPLES} > {count}")


def test_arrow_keys_read_a_chart_and_every_chart_says_what_it_shows(page: chromium.Browser) -> None:
    labels = page.evaluate(
        "[...document.querySelectorAll('.plot')].map((e) => e.getAttribute('aria-label'))"
    )
    assert [label.partition(",")[0] for label in labels] == [
        "Arrivals",
        "Time to first token",
        "Queue",
        "Replicas by state",
        "Refused and failed",
        "KV cache",
    ]
    assert all("now " in label or "serving" in label for label in labels)
    page.evaluate("document.querySelector('#queue .plot').focus()")
    page.call("Input.dispatchKeyEvent", type="rawKeyDown", key="ArrowLeft")
    page.until("document.querySelector('#moment').innerText.startsWith('at ')")


def test_a_tenant_can_be_hidden(page: chromium.Browser) -> None:
    button = "document.querySelector('#tenants button')"
    press(page, "p")
    before = page.evaluate(PIXELS)
    page.evaluate(f"{button}.click()")
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    assert page.evaluate(PIXELS) != before


def test_a_phone_scrolls_in_one_direction_only(page: chromium.Browser) -> None:
    page.screen(360, 740)
    page.until("document.querySelector('#kv canvas').clientWidth < 340")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_decisions_are_listed_newest_first_with_their_reasons(page: chromium.Browser) -> None:
    page.until("document.querySelectorAll('#decisions > li').length >= 3")
    first, *_, last = page.evaluate(
        "[...document.querySelectorAll('#decisions > li')].map((e) => e.innerText)"
    )
    assert "outlasts a cold start" in first
    assert "3 replicas" in last
    assert "ttft slope: 0.41 (threshold 0.3)" in text(page, "#decisions")


def test_a_tenant_keeps_its_colour_while_it_stays_on_top(page: chromium.Browser) -> None:
    slots = page.evaluate("""import("/static/store.js").then(({ Store }) => {
      const store = new Store();
      const second = (rates) => ({
        status: {}, decisions: [],
        samples: [{ t: 1, state: null, points: [], flows: { tenants: rates, reasons: [] } }],
      });
      const seen = [];
      store.reset(second([["a", 9], ["b", 8], ["c", 7], ["d", 6], ["e", 5], ["f", 3], ["g", 2]]));
      seen.push([...store.tenants]);
      store.append(second([["g", 50], ["f", 1]]));
      seen.push([...store.tenants]);
      store.append(second([["f", 5]]));
      seen.push([...store.tenants]);
      return seen;
    })""")
    assert slots == [list("abcdef"), list("abcdeg"), list("abcdfg")]


def test_a_lost_gateway_is_said_with_its_time_and_found_again(
    page: chromium.Browser, source: Source
) -> None:
    source.answer = (500, b"")
    page.until("!document.querySelector('#banner').hidden")
    banner = text(page, "#banner")
    assert banner.startswith("Gateway unreachable since ")
    assert "HTTP 500" in banner
    assert "unreachable" in text(page, "#tiles")
    source.answer = None
    page.until("document.querySelector('#banner').hidden")


def test_a_source_that_was_never_there_has_no_numbers_but_sentences(
    browser: chromium.Browser,
) -> None:
    browser.problems.clear()
    with dashboard("--source", "http://127.0.0.1:1") as (_, address):
        browser.open(address)
        browser.until("/^Gateway unreachable/.test(document.querySelector('#banner').innerText)")
        assert "http://127.0.0.1:1/observation: " in text(browser, "#banner")
        shown = text(browser, "main")
    assert "No request in the last 15 minutes." in shown
    assert "No replica is known to the gateway." in shown
    assert "Unknown while the gateway is unreachable." in shown
    browser.until("/own server has not answered/.test(document.querySelector('#banner').innerText)")
    browser.open("about:blank")
