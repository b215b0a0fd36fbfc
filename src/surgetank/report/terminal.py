"""Reports on a terminal: tables, sparklines and small charts in block characters.

Rule: text from a log is data, never markup and never a control sequence. No colour where there is
no terminal; what colour says is also said in words.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from surgetank.report.charts import Values

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LEAST_WIDTH = 40
_MOST_WIDTH = 120
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # categories that could steer a terminal


def console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Give the console of a report: at most 120 columns; 80 and no colour without a terminal."""
    made = Console(file=file, highlight=False, markup=False, emoji=False, width=width)
    if width is None:
        made.width = max(_LEAST_WIDTH, min(_MOST_WIDTH, made.width))
    return made


def clean(text: str) -> str:
    """Replace every character that could steer a terminal or turn the line's direction."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _steers(c) else c for c in text)


def _steers(character: str) -> bool:
    # The joiners shape Arabic, Persian and Indian names, and move nothing.
    return unicodedata.category(character) in _HIDDEN and character not in "\u200c\u200d"


def fitted(text: str, width: int) -> str:
    """Cut a text to a width in columns (a Chinese character takes two), with an ellipsis."""
    text = clean(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def resampled(values: Values, width: int) -> list[float]:
    """Reduce values to `width` columns, each the highest of its part; NaN where there is none."""
    column = np.array([math.nan if v is None else v for v in values], float)
    if len(column) <= width:
        return [float(v) for v in column]
    edges = np.arange(width) * len(column) // width
    return [float(v) for v in np.fmax.reduceat(column, edges)]


def sparkline(values: Values, width: int, *, most: float | None = None) -> str:
    """Draw one line of blocks, from 0 to the highest value (or `most`); · where there is none."""
    return plot(values, width, 1, most=most)[0]


def plot(values: Values, width: int, height: int, *, most: float | None = None) -> list[str]:
    """Draw columns of blocks, `height` lines of at most `width` characters, the top line first.

    A value above 0 shows at least the lowest block, so that a lone request is seen.
    """
    columns = resampled(values, width)
    known = [v for v in columns if math.isfinite(v)]
    top = most if most is not None else max(known, default=0.0)
    steps = [_steps(v, top, height) for v in columns]
    lines = []
    for row in reversed(range(height)):
        marks = (
            ("·" if row == 0 else " ") if n is None else _BLOCKS[min(8, max(0, n - 8 * row))]
            for n in steps
        )
        lines.append("".join(marks))
    return lines


def _steps(value: float, top: float, height: int) -> int | None:
    if not math.isfinite(value):
        return None
    if value <= 0 or top <= 0:
        return 0
    return min(8 * height, max(1, round(8 * height * value / top)))


def with_axis(lines: Sequence[str], top: str, bottom: str = "0") -> list[str]:
    """Put a scale to the left of a plot: `top` beside its first line, `bottom` beside its last."""
    room = max(cell_len(top), cell_len(bottom))
    labels = [""] * len(lines)
    labels[-1] = bottom
    labels[0] = top
    return [f"{label:>{room}} ┤{line}" for label, line in zip(labels, lines, strict=True)]


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = (0,)
) -> Table:
    """Make a table; columns named in `words` are text and may be cut, the others are numbers."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
    for i, name in enumerate(head):
        if i in words:
            made.add_column(clean(name), overflow="ellipsis", no_wrap=True)
        else:
            made.add_column(clean(name), justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(clean(cell)) for cell in row))
    return made


def height_of(made: Console, part: RenderableType) -> int:
    """Count the lines that a part takes on this console."""
    return len(made.render_lines(part, pad=False))
