"""Requests that belong together: an agent's turns, one after the other, some of them in parallel.

Rule: turns come on the schedule. The next one is due a think time after the one before it was due,
not after its answer: a slow target gets the same load as a fast one, and the lateness is seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.traffic.tokencounts import TokenCounts
from surgetank.traffic.trace import Counts, Seconds


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """How an agent works.

    `turns`: calls in a row, a mean of geometric counts. `think`: mean seconds (exponential) from
    one turn to the next. `fan_out`: calls of each turn at once. Each turn's prompt is what was said
    before, and what is new: prompts grow by the last answers and the new words.
    """

    turns: float
    think: float = 5.0
    fan_out: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.turns) and self.turns >= 1):
            raise InputError(f"turns = {self.turns}: must be >= 1")
        if not (math.isfinite(self.think) and self.think >= 0):
            raise InputError(f"think = {self.think}: must be >= 0 seconds")
        if self.fan_out < 1:
            raise InputError(f"fan_out = {self.fan_out}: must be >= 1 call")

    @property
    def calls(self) -> float:
        """Mean requests of a session."""
        return self.turns * self.fan_out

    def describe(self) -> dict[str, Any]:
        return {"turns": self.turns, "think": self.think, "fan_out": self.fan_out}


@dataclass(frozen=True, slots=True)
class Turns:
    """Requests of sessions: when each is due, in which session, and how long its prompt is.

    `shared`: tokens of the prompt that it has in common with its session's other requests.
    """

    at: Seconds
    session: NDArray[np.int32]
    prompt: Counts
    output: Counts
    shared: Counts


def unfold(  # noqa: PLR0917 - a drawing: generator, starts, and what is drawn
    rng: Generator,
    starts: Seconds,
    spec: SessionSpec,
    prompt: TokenCounts,
    output: TokenCounts,
    longest: int,
) -> Turns:
    """Make the requests of sessions that begin at `starts`, sorted by time.

    A session ends early when its prompt would be longer than `longest` tokens.
    """
    counts = rng.geometric(1.0 / spec.turns, len(starts))
    session = np.repeat(np.arange(len(starts), dtype=np.int32), counts)
    turn = np.arange(len(session)) - np.repeat(np.cumsum(counts) - counts, counts)
    gaps = np.where(turn == 0, 0.0, rng.exponential(spec.think, len(session)))
    at = starts[session] + _running(gaps, counts)
    new = prompt.draw(len(session), rng)
    answer = output.draw(len(session), rng)
    before = np.where(turn == 0, 0, np.concatenate([[0], answer[:-1]]))
    history = _running(new + before, counts).astype(np.int64)
    rows = np.repeat(np.flatnonzero(history <= longest), spec.fan_out)
    rows = rows[np.argsort(at[rows], kind="stable")]
    # A lone call continues its session's words to their end; parallel ones part at what is new.
    shared = history if spec.fan_out == 1 else history - new
    return Turns(at[rows], session[rows], history[rows], answer[rows], shared[rows])


def _running(values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Cumulated sums that begin anew with each session."""
    total = np.cumsum(values)
    ends = np.cumsum(counts)
    before = np.concatenate([[0], total[ends[:-1] - 1]]) if len(counts) else np.empty(0)
    return np.asarray(total - np.repeat(before, counts))
