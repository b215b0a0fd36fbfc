"""One figure out of a gateway's metrics page: the sum of named samples.

Rule: a page without any of them gives None, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from surgetank.adapters.exposition import samples
from surgetank.errors import InputError

_SAMPLE: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?")
_LABEL: Final = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"([^"]*)"\s*')


def total(text: str, named: Sequence[str]) -> float | None:
    """Sum the samples that are `NAME` or `NAME{label="value",...}`; None when there is none."""
    found: list[float] = []
    for given in named:
        name, labels = _read(given)
        found += [
            sample.value
            for sample in samples(text, frozenset({name}))
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]
    known = [value for value in found if not math.isnan(value)]
    return sum(known) if known else None


def _read(given: str) -> tuple[str, Mapping[str, str]]:
    match = _SAMPLE.fullmatch(given.strip())
    parts = [] if match is None or not match["labels"] else match["labels"].split(",")
    pairs = [_LABEL.fullmatch(part) for part in parts]
    if match is None or None in pairs:
        raise InputError(f'gauge {given!r}: must be NAME or NAME{{label="value"}}')
    return match["name"], {pair[1]: pair[2] for pair in pairs if pair is not None}
