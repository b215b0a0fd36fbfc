"""A log in the form of the Azure LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens.

Rule: exactly this form. Times are `2023-11-16 18:17:03.9799600`, seven digits of a second, without
a zone; CRLF and a missing last newline are fine; a row that cannot be read is counted, and a log
with more than a few of them is refused.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from surgetank.errors import InputError
from surgetank.studies.fleet_demo.pulse import Logged

_HEADER: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_MOST_BAD: Final = 0.01  # part of the rows: more is another form, not a torn line
_TIME: Final = "%Y-%m-%d %H:%M:%S"


def read_azure(path: Path) -> list[Logged]:
    """Read a log's requests in order of time, the first at 0 s. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot be read: {reason}") from None
    if not lines or [word.strip() for word in lines[0].split(",")] != _HEADER:
        raise InputError(f"{path} line 1: expected {','.join(_HEADER)}")
    rows: list[tuple[float, int, int]] = []
    bad = first_bad = 0
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(_row(line))
        except ValueError:
            bad += bool(line.strip())
            first_bad = first_bad or number
    if bad > _MOST_BAD * len(lines) or not rows:
        raise InputError(f"{path} line {first_bad or 1}: expected {','.join(_HEADER)}")
    rows.sort()
    return [Logged(at - rows[0][0], prompt, output) for at, prompt, output in rows]


def _row(line: str) -> tuple[float, int, int]:
    time, prompt, output = line.split(",")
    whole, _, part = time.strip().partition(".")
    second = datetime.strptime(whole, _TIME).replace(tzinfo=UTC).timestamp()
    if int(prompt) < 0 or int(output) < 0 or not (part or "0").isdecimal():
        raise ValueError
    return second + float(f"0.{part or 0}"), int(prompt), int(output)
