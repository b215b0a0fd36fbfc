"""A report as one HTML file: readable in twenty years, offline, on paper, in light and dark.

Rule: the file asks nobody for anything. Scripts and styles stand in it and are allowed by their
digests alone; every text is escaped here and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

from surgetank.report import charts
from surgetank.report.charts import Chart

STATIC: Final = Path(__file__).parent / "static"
_STYLES: Final = ("uplot/uPlot.min.css", "palette.css", "report.css")
_FIRST: Final = ("theme.js",)  # before anything is painted
_LIBRARY: Final = "uplot/uPlot.iife.min.js"
_LAST: Final = (_LIBRARY, "report.js")

Tone = Literal["", "good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number that is read first."""

    name: str
    value: str
    more: str = ""  # what to compare it with
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs."""

    paragraphs: tuple[str, ...]
    tone: Tone = ""  # others than "" stand in a box


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column is the rows' head, the others are numbers unless told."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""
    words: tuple[int, ...] = ()  # columns that are words, beside the first


Block = Text | Table | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]
    about: str = ""  # one line under the heading


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    about: str  # one line: what was looked at
    figures: tuple[KeyFigure, ...]
    sections: tuple[Section, ...]
    foot: str = ""  # made by what, when, from what


def html(page: Page) -> str:
    """Write the page as one HTML document."""
    return "".join(f"{line}\n" for line in _lines(page))


def _lines(page: Page) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield f'<meta http-equiv="content-security-policy" content="{_policy()}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="referrer" content="no-referrer">'
    yield '<meta name="generator" content="surgetank">'
    yield f"<title>{escape(page.title)}</title>"
    yield '<link rel="icon" href="data:,">'
    for name in _STYLES:
        yield f"<style>{_asset(name)}</style>"
    for name in _FIRST:
        yield f"<script>{_asset(name)}</script>"
    yield "</head>"
    yield "<body>"
    yield "<header>"
    yield f"<h1>{escape(page.title)}</h1>"
    yield f'<p class="quiet"><bdi>{escape(page.about)}</bdi></p>'
    yield (
        '<button type="button" id="theme" aria-pressed="false" hidden'
        ' title="Light or dark (key t)">Dark</button>'
    )
    yield "</header>"
    yield "<main>"
    if page.figures:
        yield '<dl class="tiles">'
        yield from map(_key_figure, page.figures)
        yield "</dl>"
    for section in page.sections:
        yield from _section(section)
    yield "</main>"
    yield "<noscript><p class='quiet'>Charts need JavaScript; their figures are in the tables.</p>"
    yield "</noscript>"
    if page.foot:
        yield f"<footer>{escape(page.foot)}</footer>"
    for name in _LAST:
        yield f"<script>{_asset(name)}</script>"
    yield "</body>"
    yield "</html>"


@cache
def _asset(name: str) -> str:
    text = (STATIC / name).read_text(encoding="utf-8").strip()
    if name == _LIBRARY:  # its licence travels with it, in place of the line with its address
        licence = (STATIC / name).with_name("LICENSE").read_text(encoding="utf-8").strip()
        text = f"/*! uPlot 1.6.32\n{licence}\n*/\n{text.partition('*/')[2].strip()}"
    if "</script" in text or "</style" in text:
        raise ValueError(f"{name} cannot stand inside a page")
    return text


@cache
def _policy() -> str:
    scripts = " ".join(_digest(name) for name in (*_FIRST, *_LAST))
    styles = " ".join(_digest(name) for name in _STYLES)
    return escape(
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(name: str) -> str:
    digest = hashlib.sha256(_asset(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _key_figure(figure: KeyFigure) -> str:
    more = f'<dd class="more">{escape(figure.more)}</dd>' if figure.more else ""
    return (
        f'<div class="{_class("tile", figure.tone)}"><dt>{escape(figure.name)}</dt>'
        f'<dd class="value">{escape(figure.value)}</dd>{more}</div>'
    )


def _class(*names: str) -> str:
    return " ".join(name for name in names if name)


def _section(section: Section) -> Iterator[str]:
    yield "<section>"
    yield f"<h2>{escape(section.title)}</h2>"
    if section.about:
        yield f'<p class="quiet">{escape(section.about)}</p>'
    for kind, blocks in groupby(section.blocks, _group):
        if kind:
            yield f'<div class="{kind}">'
        for block in blocks:
            yield from _block(block)
        if kind:
            yield "</div>"
    yield "</section>"


def _group(block: Block) -> str:
    """Charts stand in a grid, tables beside each other, texts by themselves."""
    return {Chart: "charts", Table: "tables"}.get(type(block), "")


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        yield f'<div class="{_class("text", block.tone)}">'
        yield from (f"<p>{escape(p)}</p>" for p in block.paragraphs)
        yield "</div>"
    elif isinstance(block, Table):
        yield from _table(block)
    else:
        yield from _chart(block)


def _table(table: Table) -> Iterator[str]:
    yield '<div class="scroll" tabindex="0"><table>'
    if table.caption:
        yield f"<caption>{escape(table.caption)}</caption>"
    yield f"<thead><tr>{''.join(_cells('th', table.head, table.words))}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield f"<tr>{''.join(_cells('td', row, table.words))}</tr>"
    yield "</tbody></table></div>"


def _cells(tag: str, row: Sequence[str], words: tuple[int, ...]) -> Iterator[str]:
    for i, cell in enumerate(row):
        kind = ' class="word"' if i == 0 or i in words else ""
        name = "th" if i == 0 else tag
        scope = f' scope="{"col" if tag == "th" else "row"}"' if name == "th" else ""
        yield f"<{name}{scope}{kind}><bdi>{escape(cell)}</bdi></{name}>"


def _chart(chart: Chart) -> Iterator[str]:
    told = charts.table(chart)
    label = ". ".join(filter(None, (chart.title, chart.says or chart.note)))
    kind = _class("chart", "wide" if chart.wide else "")
    yield f'<figure class="{kind}" id="{escape(chart.name)}">'
    yield f"<figcaption><h3>{escape(chart.title)}</h3>"
    if chart.note:
        yield f'<p class="quiet">{escape(chart.note)}</p>'
    yield "</figcaption>"
    yield '<ul class="legend"></ul>'
    yield f'<div class="plot" role="img" tabindex="0" aria-label="{escape(label)}"></div>'
    yield f'<script type="application/json">{charts.script_json(charts.data(chart))}</script>'
    yield "<details><summary>Figures</summary>"
    if chart.is_empty:
        yield f"<p>{escape(chart.empty)}</p>"
    else:
        yield from _table(Table(told.head, told.rows, told.note))
    yield "</details>"
    yield "</figure>"
