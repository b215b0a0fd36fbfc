"""The page as a file: escaped, self-contained, small, with a text for every chart."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.report.charts import Axis, Chart, Series, Span
from surgetank.report.page import KeyFigure, Page, Section, Table, Text, html

EVIL = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "<!-- ",
    "]]>&amp;&lt;",
    "' autofocus onfocus='alert(1)",
    "夜間バッチ",
    "مستأجر",
]


def page_of(names: list[str]) -> Page:
    """Every place of a page that shows text, with these names in it."""
    x = [0.0, 1.0, 2.0]
    one = names[0]
    return Page(
        title=one,
        about=one,
        figures=tuple(KeyFigure(n, n, n) for n in names),
        sections=(
            Section(
                one,
                (
                    Text(tuple(names), "warn"),
                    Table((one, one), [(n, n) for n in names], one),
                    Chart(
                        "c",
                        one,
                        x,
                        tuple(Series(n, x, colour=i % 8) for i, n in enumerate(names)),
                        Axis(one),
                        Axis(one),
                        spans=(Span(0, 1, one),),
                        note=one,
                        says=one,
                    ),
                ),
                about=one,
            ),
        ),
        foot=one,
    )


class Seen(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.text = ""
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.text += data


def test_names_from_a_log_are_text_wherever_they_stand() -> None:
    seen, plain = Seen(html(page_of(EVIL))), Seen(html(page_of(["a"] * len(EVIL))))
    assert seen.tags == plain.tags
    assert seen.attributes.keys() == plain.attributes.keys()
    assert all(name in seen.text for name in EVIL)


@settings(max_examples=30)  # a whole page each
@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_no_text_changes_the_structure_of_a_page(names: list[str]) -> None:
    seen, plain = Seen(html(page_of(names))), Seen(html(page_of(["a"] * len(names))))
    assert seen.tags == plain.tags
    assert set(seen.attributes) == set(plain.attributes)


def test_the_page_names_no_other_place() -> None:
    text = html(page_of(["acme"]))
    seen = Seen(text)
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]", text)
    assert not {"src", "srcset", "action", "data", "poster", "style"} & set(seen.attributes)
    assert seen.attributes["href"] == ["data:,"]
    assert "@import" not in text
    assert not any("url(" in style for style in seen.styles)


def test_the_policy_allows_the_pages_own_scripts_and_styles_and_nothing_else() -> None:
    text = html(page_of(["acme"]))
    seen = Seen(text)
    policy = next(c for c in seen.attributes["content"] if c.startswith("default-src"))

    def digest(content: str) -> str:
        found = hashlib.sha256(content.encode()).digest()
        return f"'sha256-{base64.b64encode(found).decode()}'"

    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    run = [content for attributes, content in seen.scripts if "type" not in attributes]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [digest(content) for content in run]
    assert rules["style-src"].split() == [digest(content) for content in seen.styles]
    assert rules["img-src"] == "data:"


def test_the_chart_librarys_licence_travels_with_it() -> None:
    assert "Copyright (c) 2022 Leon Sorokin" in html(page_of(["acme"]))


def test_every_chart_has_a_name_a_sentence_and_a_table() -> None:
    x = list(np.arange(2000.0))
    chart = Chart("c", "Rate", x, (Series("all", x),), says="It grows to 1,999.")
    text = html(Page("t", "a", (), (Section("s", (chart,)),)))
    seen = Seen(text)
    assert "Rate. It grows to 1,999." in seen.attributes["aria-label"]
    assert seen.tags.count("details") == 1
    assert seen.tags.count("tr") == 25
    assert "1,999" in seen.text


def test_an_empty_chart_is_a_sentence() -> None:
    chart = Chart("c", "Rate", [], (Series("all", []),), empty="No request has a duration.")
    text = html(Page("t", "a", (), (Section("s", (chart,)),)))
    assert "<p>No request has a duration.</p>" in text


def test_the_kit_itself_leaves_room_for_the_charts() -> None:
    assert len(html(Page("t", "a", (), ())).encode()) < 100_000
