"""Token counts of requests that no log gives: a distribution, as a user writes it.

    512                    always 512
    uniform:100,300        whole numbers from 100 to 300
    exponential:200        mean 200
    lognormal:500,0.8      median 500, sigma 0.8 of the logarithm
    lognormal:500,0.8,8000 the same, at most 8000

Rule: at least 1 token; the same generator gives the same counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from surgetank.errors import InputError
from surgetank.traffic.trace import Counts

_FORMS: Final = "N, uniform:LOW,HIGH, exponential:MEAN or lognormal:MEDIAN,SIGMA[,MOST]"
_KINDS: Final = {"fixed": 1, "uniform": 2, "exponential": 1, "lognormal": 2}


class TokenCounts(Protocol):
    """Token counts that can be drawn."""

    def draw(self, rows: int, rng: np.random.Generator) -> Counts:
        """Draw so many counts, each >= 1."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The counts of a log, drawn with replacement."""

    counts: Counts

    def draw(self, rows: int, rng: np.random.Generator) -> Counts:
        """Draw so many counts, each >= 1."""
        drawn: Counts = np.maximum(1, rng.choice(self.counts, rows))
        return drawn


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts."""

    kind: str
    a: float
    b: float = 0.0
    most: float = float("inf")

    def draw(self, rows: int, rng: np.random.Generator) -> Counts:
        """Draw so many counts, each >= 1."""
        if self.kind == "fixed":
            values = np.full(rows, self.a)
        elif self.kind == "uniform":
            values = rng.integers(int(self.a), int(self.b) + 1, rows).astype(np.float64)
        elif self.kind == "exponential":
            values = rng.exponential(self.a, rows)
        else:
            values = self.a * np.exp(self.b * rng.standard_normal(rows))
        counts: Counts = np.maximum(1, np.rint(np.minimum(values, self.most))).astype(np.int64)
        return counts

    @property
    def mean(self) -> float:
        """Expected tokens, of the distribution without its upper bound."""
        if self.kind == "uniform":
            return (self.a + self.b) / 2
        return self.a * float(np.exp(self.b**2 / 2)) if self.kind == "lognormal" else self.a


def parse_lengths(text: str, option: str) -> Lengths:
    """Read a distribution as written; `option` names it in errors (InputError)."""
    name, colon, rest = text.partition(":")
    kind = name if colon else "fixed"
    try:
        values = [float(part) for part in (rest if colon else name).split(",")]
    except ValueError:
        values = []
    needed = _KINDS.get(kind, 0)
    bounded = kind == "lognormal" and len(values) == needed + 1
    if not values or (len(values) != needed and not bounded) or not np.isfinite(values).all():
        raise InputError(f"{option} {text}: must be {_FORMS}")
    low = values[0]
    sigma = values[1] if len(values) > 1 else 0.0
    if low < 1 or sigma < 0 or (kind == "uniform" and sigma < low):
        raise InputError(f"{option} {text}: must be >= 1 token: {_FORMS}")
    return Lengths(kind, low, sigma, values[2] if bounded else float("inf"))
