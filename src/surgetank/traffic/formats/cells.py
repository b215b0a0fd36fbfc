"""Cells of a log as columns of numbers and names: "12", 12.0, "", "NaN", "31.204s".

Rule: a gap is UNKNOWN (NaN for seconds); what is neither a value nor a gap makes its row a bad one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats.reading import TimeUnit
from surgetank.traffic.formats.stamps import PER_SECOND, Cell
from surgetank.traffic.trace import UNKNOWN, Counts, Ended, Labels, Seconds

Flags = NDArray[np.bool_]

MOST_TOKENS: Final = 10**12  # a larger count is no count
MOST_SECONDS: Final = 1e9  # 30 years: no request lasted longer
_GAPS: Final = frozenset({"", "-", "nan", "null", "none", "n/a", "na", "nil", "\\n"})
_WITH_UNIT: Final = re.compile(
    r"([0-9.]+(?:e[+-]?\d+)?) *(ns|us|µs|μs|ms|s|m)", re.ASCII | re.IGNORECASE
)
_UNIT_SECONDS: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0
}  # fmt: skip
_LONGEST: Final = 40  # characters of a number
_NAME: Final = 128  # characters of a name; what is longer, or has lines, is text and not kept

NON_TERMINAL: Final = frozenset(
    (
        "running",
        "pending",
        "queued",
        "waiting",
        "in_progress",
        "inprogress",
        "processing",
        "started",
        "streaming",
        "active",
        "created",
        "submitted",
        "accepted",
        "open",
    )
)
_WORDS: Final = {
    Ended.COMPLETED: "success successful succeeded ok completed complete done finished stop length"
    " end_turn eos tool_calls true default",
    Ended.REFUSED: "refused rejected shed throttled rate_limited ratelimited rate_limit overloaded",
    Ended.FAILED: "failed failure fail error errored timeout timed_out exception false",
    Ended.ABANDONED: "abandoned cancelled canceled aborted abort disconnected client_closed",
}
_ENDINGS: Final = {word: end for end, words in _WORDS.items() for word in words.split()}


def counts(cells: Sequence[Cell] | Seconds) -> tuple[Counts, Flags]:
    """Read whole numbers >= 0; the flags are the cells that are neither one nor a gap."""
    if isinstance(cells, np.ndarray):
        return _rounded(cells, np.zeros(len(cells), bool))
    try:
        found = np.fromiter(map(int, cells), np.int64, len(cells))  # type: ignore[arg-type] # None raises
    except (TypeError, ValueError, OverflowError):
        return _rounded(*_numbers(cells, {}))
    bad = (found < 0) | (found > MOST_TOKENS)
    if bad.any():
        bad &= found != UNKNOWN
        found = np.where(bad, UNKNOWN, found)
    return found, bad


def priorities(cells: Sequence[Cell] | Seconds) -> Counts:
    """Read whole numbers of either sign; a gap, or what is no number, is 0: the usual priority."""
    if not isinstance(cells, np.ndarray):
        found, bad = _numbers(cells, {})
        cells = np.where(bad, np.nan, found)
    known = np.where(np.isfinite(cells), cells, 0.0)
    return np.clip(np.trunc(known), -MOST_TOKENS, MOST_TOKENS).astype(np.int64)


def seconds(cells: Sequence[Cell] | Seconds, unit: TimeUnit | None) -> tuple[Seconds, Flags]:
    """Read durations in `unit` (None: seconds) or with their own; negative ones are gaps."""
    if isinstance(cells, np.ndarray):
        return _durations(cells, unit), np.zeros(len(cells), bool)
    try:
        found = np.fromiter(map(float, cells), np.float64, len(cells))  # type: ignore[arg-type] # None raises
        bad = np.zeros(len(cells), bool)
    except (TypeError, ValueError, OverflowError):
        found, bad = _numbers(
            cells, {k: v * PER_SECOND[unit or "s"] for k, v in _UNIT_SECONDS.items()}
        )
    return _durations(found, unit), bad


def _durations(found: Seconds, unit: TimeUnit | None) -> Seconds:
    found = found / PER_SECOND[unit or "s"]
    return np.where((found >= 0) & (found < MOST_SECONDS), found, np.nan)


def labels(cells: Sequence[object] | Labels) -> Labels:
    """Encode names; numbers are named as they are written, gaps and long text are UNKNOWN."""
    if isinstance(cells, Labels):
        return cells
    if not set(map(type, cells)) <= {str, type(None)}:
        cells = [_key(c) for c in cells]  # 1 and 1.0 are one key of a dict, but two names
    known: dict[object, int] = dict.fromkeys(cells, 0)
    names: dict[str, int] = {}
    for key in known:
        known[key] = _code(_key(key), names)
    codes = np.fromiter(map(known.__getitem__, cells), np.int32, len(cells))
    return Labels(codes, tuple(names))


def endings(cells: Sequence[Cell] | Labels | Seconds) -> tuple[NDArray[np.int8], int]:
    """Tell how requests ended from a status or an HTTP status; how many were not ended yet."""
    if isinstance(cells, Labels):
        return _endings_of(cells)
    if isinstance(cells, np.ndarray):
        numbers, at = np.unique(cells, return_inverse=True)
        return endings(numbers.tolist())[0][at], 0
    known: dict[Cell, tuple[int, bool]] = {}
    found = np.empty(len(cells), np.int8)
    running = 0
    for i, cell in enumerate(cells):
        key: Cell = cell if isinstance(cell, (int, float)) else None
        if isinstance(cell, str) and len(cell) <= _LONGEST:
            key = cell
        end = known.get(key)
        if end is None:
            end = ending(key)
            if len(known) < 4096:
                known[key] = end
        found[i] = end[0]
        running += end[1]
    return found, running


def _endings_of(labels: Labels) -> tuple[NDArray[np.int8], int]:
    known = [ending(name if len(name) <= _LONGEST else None) for name in labels.names]
    known.append((Ended.UNKNOWN, False))  # of gaps, whose code is -1
    ends = np.array([end for end, _ in known], np.int8)
    running = np.array([is_running for _, is_running in known])
    return ends[labels.codes], int(running[labels.codes].sum())


def ending(status: Cell) -> tuple[Ended, bool]:
    """Tell how one request ended, and whether its status says that it has not yet."""
    if isinstance(status, str):
        word = status.strip().lower().replace(" ", "_").replace("-", "_")
        if word in NON_TERMINAL:
            return Ended.UNKNOWN, True
        if word in _ENDINGS:
            return _ENDINGS[word], False
    number = _number(status, {})
    if number is None or not 100 <= number < 600:
        return Ended.UNKNOWN, False
    return http_ending(int(number)), False


def http_ending(status: int) -> Ended:
    """429 and 503 are refusals, 499 a client that left, other 4xx and 5xx failures."""
    if status in {429, 503}:
        return Ended.REFUSED
    if status == 499:
        return Ended.ABANDONED
    if status >= 400:
        return Ended.FAILED
    return Ended.COMPLETED if 200 <= status < 300 else Ended.UNKNOWN


def _key(cell: object) -> object:
    if isinstance(cell, str):
        return cell if len(cell) <= _NAME and "\n" not in cell else ""
    return str(cell) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else ""


def _code(key: object, names: dict[str, int]) -> int:
    text = str(key).strip().encode("utf-8", "replace").decode()  # no lone surrogates
    return UNKNOWN if text.lower() in _GAPS else names.setdefault(text, len(names))


def _rounded(found: Seconds, bad: Flags) -> tuple[Counts, Flags]:
    gap = ~np.isfinite(found) | bad
    value = np.where(gap, UNKNOWN, np.trunc(np.where(gap, 0.0, found)))
    wrong = (value < UNKNOWN) | (value > MOST_TOKENS)
    return np.where(wrong, UNKNOWN, value).astype(np.int64), bad | wrong


def _numbers(cells: Sequence[Cell], units: dict[str, float]) -> tuple[Seconds, Flags]:
    found = np.empty(len(cells))
    bad = np.zeros(len(cells), bool)
    for i, cell in enumerate(cells):
        value = _number(cell, units)
        bad[i] = value is None
        found[i] = np.nan if value is None else value
    return found, bad


def _number(cell: object, units: dict[str, float]) -> float | None:
    """One number; NaN for a gap, None for what is neither."""
    if cell is None:
        return np.nan
    if not isinstance(cell, (str, int, float)):
        return None
    try:
        return float(cell)  # as the fast paths do, so that neighbours do not change a row
    except (ValueError, OverflowError):
        if not isinstance(cell, str):
            return None
    text = cell.strip().lower()
    if text in _GAPS:
        return np.nan
    found = _WITH_UNIT.fullmatch(text) if units and len(text) <= _LONGEST else None
    try:
        return float(found[1]) * units[found[2]] if found else None
    except ValueError:
        return None


def is_number(cell: object) -> bool:
    """Tell whether a cell is a number and no gap."""
    value = _number(cell, {})
    return value is not None and np.isfinite(value)


def name(cell: object) -> str:
    """A name as `labels` keeps it; "" is a gap."""
    text = str(_key(cell)).strip().encode("utf-8", "replace").decode()
    return "" if text.lower() in _GAPS else text
