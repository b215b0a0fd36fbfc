"""The page of log formats names each format that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from surgetank.traffic.formats.registry import FORMATS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "logs.md"


def test_the_page_names_every_format_and_no_other() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(named) == sorted(f.name for f in FORMATS)
