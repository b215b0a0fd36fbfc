"""Whole traces through one engine, or a fleet of alike ones, in machine code.

The same batcher as `engine.replica`, fed from columns: a run costs no Python per request, and
about 40 bytes of memory besides the columns given, and 150 for each request in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import arrays
from surgetank.engine.skipping import fleet as kernel
from surgetank.engine.skipping.compiled import compiled

Routing = Literal["round_robin", "least_outstanding", "random"]

_ROWS: Final = 1 << 16  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What became of each request, in rows as given. Seconds on the clock of `arrived`.

    A request that was shed or aborted has NaN for what it did not live to see.
    """

    arrived: NDArray[np.float64]
    first_token_at: NDArray[np.float64]
    finished_at: NDArray[np.float64]
    preempted: NDArray[np.int32]  # times
    replica: NDArray[np.int32]  # -1: shed, or rejected
    steps: int  # of all engines

    @property
    def ttft(self) -> NDArray[np.float64]:
        """Seconds from arrival to the first token."""
        return self.first_token_at - self.arrived

    @property
    def shed(self) -> NDArray[np.bool_]:
        """Tell which requests found the engine full (`max_queued`), or were rejected."""
        return self.replica < 0

    @property
    def preemptions(self) -> int:
        """Preemptions of all requests."""
        return int(self.preempted.sum())


def run_trace(
    profile: EngineProfile,
    arrived: ArrayLike,
    prompt: ArrayLike,
    output: ArrayLike,
    *,
    priority: ArrayLike | None = None,
    cached: ArrayLike | None = None,
    abort_at: ArrayLike | None = None,
) -> Results:
    """Run a trace on one engine: `run_fleet` with one replica."""
    return run_fleet(
        profile,
        arrived,
        prompt,
        output,
        replicas=1,
        priority=priority,
        cached=cached,
        abort_at=abort_at,
    )


def run_fleet(
    profile: EngineProfile,
    arrived: ArrayLike,
    prompt: ArrayLike,
    output: ArrayLike,
    *,
    replicas: int,
    routing: Routing = "round_robin",
    seed: int = 0,
    priority: ArrayLike | None = None,
    cached: ArrayLike | None = None,
    abort_at: ArrayLike | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """Run a trace on `replicas` engines, each request on the one that `routing` sends it to.

    Columns of one length n: `arrived` seconds, rising; `prompt` and `output` tokens; `priority`,
    lower goes first; `cached` tokens of the prompt; `abort_at` seconds, NaN for who stays (at one
    time arrivals come before aborts). An `output` of 0: its engine rejects it, and it only takes a
    turn. "least_outstanding" counts requests in flight; ties go to who was chosen longest ago.
    `seed` is that of "random". `progress` gets the count of rows sent. Raises
    ValueError for columns that are no trace, or requests no engine could take.
    """
    asked = _asked(profile, arrived, prompt, output, priority, cached, abort_at)
    if replicas < 1:
        raise ValueError(f"replicas = {replicas}: must be >= 1")
    count = len(asked.arrived)
    told = kernel.Told(
        first_token_at=np.full(count, np.nan),
        finished_at=np.full(count, np.nan),
        preempted=np.zeros(count, np.int32),
        replica=np.empty(count, np.int32),
        slot=np.zeros(count if len(asked.leavers) else 0, np.int32),
        leaving=len(asked.leavers),
    )
    engines, heaps, phases, events = arrays.engines(profile, replicas)
    fleet = kernel.Fleet(engines, arrays.slots(min(count, _ROWS)), heaps, phases, events)
    trees = _trees(replicas if routing == "least_outstanding" else 0)
    rng = np.random.default_rng(seed)
    feed = compiled(kernel).feed
    left = 0
    routes = np.empty(0, np.int32)
    for first in range(0, count, _ROWS):
        last = min(first + _ROWS, count)
        routes = _routes(routing, replicas, first, last, rng)
        flying = int(engines["running"].sum() + engines["waiting"].sum())
        short = last - first - (len(fleet.slots) - 1 - flying)
        if short > 0:
            arrays.grow(fleet.slots, max(short, len(fleet.slots) // 8))
        left = feed(fleet, trees, asked, told, routes, first, last, left, -np.inf)
        if progress is not None:
            progress(last)
    feed(fleet, trees, asked, told, routes, count, count, left, np.inf)
    return Results(
        arrived=asked.arrived,
        first_token_at=told.first_token_at,
        finished_at=told.finished_at,
        preempted=told.preempted,
        replica=told.replica,
        steps=int(engines["done"].sum()),
    )


def _routes(
    routing: Routing, replicas: int, first: int, last: int, rng: np.random.Generator
) -> NDArray[np.int32]:
    if routing == "round_robin":
        return (np.arange(first, last) % replicas).astype(np.int32)
    if routing == "random":
        return rng.integers(replicas, size=last - first, dtype=np.int32)
    if routing == "least_outstanding":
        return np.empty(0, np.int32)
    raise ValueError(f"routing = {routing!r}: must be round_robin, least_outstanding or random")


def _trees(count: int) -> kernel.Trees:
    """Plant the winner trees: leaves from half on, 1 the root; idle engines tie, so 0 wins."""
    leaves = 1
    while leaves < count:
        leaves *= 2
    tree = np.full(2 * leaves if count else 0, -1, np.int64)
    tree[leaves : leaves + count] = np.arange(count)
    for node in range(leaves - 1, 0, -1) if count else ():
        tree[node] = tree[2 * node]
    return kernel.Trees(tree, tree.copy())


def _asked(  # noqa: PLR0917 - the columns in their order
    profile: EngineProfile,
    arrived: ArrayLike,
    prompt: ArrayLike,
    output: ArrayLike,
    priority: ArrayLike | None,
    cached: ArrayLike | None,
    abort_at: ArrayLike | None,
) -> kernel.Asked:
    times = np.ascontiguousarray(arrived, np.float64)
    count = len(times)
    leaves = _column("abort_at", abort_at, np.float64, count)
    asked = kernel.Asked(
        arrived=times,
        prompt=_column("prompt", prompt, np.int32, count),
        output=_column("output", output, np.int32, count),
        priority=_column("priority", priority, np.int64, count),
        cached=_column("cached", cached, np.int32, count),
        abort_at=leaves,
        leavers=np.argsort(leaves, kind="stable")[: np.count_nonzero(~np.isnan(leaves))],
    )
    _check("arrived", times, np.isfinite(times), "finite")
    _check("arrived", times[1:], times[1:] >= times[:-1], "rising")
    _check("prompt", asked.prompt, asked.prompt >= 1, ">= 1")
    _check("output", asked.output, asked.output >= 0, ">= 1, or 0 for what the engine rejects")
    total = np.where(asked.output > 0, asked.prompt.astype(np.int64) + asked.output, 0)
    limit = profile.max_model_len
    _check("prompt + output", total, total <= limit, f"<= max_model_len = {limit}")
    _check("cached", asked.cached, asked.cached >= 0, ">= 0")
    if len(leaves):
        _check("abort_at", leaves, ~(leaves < times), "at arrival or later")
    return asked


def _column(name: str, values: ArrayLike | None, kind: Any, count: int) -> NDArray[Any]:
    column = np.ascontiguousarray(() if values is None else values, kind)
    if values is not None and column.shape != (count,):
        raise ValueError(f"{name} has shape {column.shape}: must be ({count},) as arrived")
    return column


def _check(name: str, column: NDArray[Any], fine: NDArray[np.bool_], right: str) -> None:
    if not fine.all():
        row = int(np.argmin(fine))
        raise ValueError(f"{name}: {column[row]} (row {row} of what was compared): must be {right}")
