"""`surgetank.load(profile, request_func)`: rehearse a burst from a script or a notebook.

Rule: Ctrl-C ends the run early and returns what was done; a second one ends the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import uvloop

from surgetank.errors import InputError
from surgetank.loadtest.calm import calm
from surgetank.loadtest.client import Tls
from surgetank.loadtest.functions import RequestFunction
from surgetank.loadtest.processes import OnProgress, Processes, send, telling
from surgetank.loadtest.sender import drive
from surgetank.loadtest.shot import MAX_LAG, LoadResult, Shot, Tally
from surgetank.policy.retry import RULES, RetryRule


@runtime_checkable
class HasShots(Protocol):
    """A schedule: anything with the shots in it."""

    @property
    def shots(self) -> Iterable[Shot | float]: ...


Profile = HasShots | Iterable[Shot | float]
"""Shots, or a schedule that has them; a bare number is a time in seconds after the start."""


def load(
    profile: Profile,
    request_func: RequestFunction | str,
    *,
    retries: RetryRule | str = "none",
    seed: int = 0,
    processes: Processes = "auto",
    tls: Tls | None = None,
    max_lag: float = MAX_LAG,
    on_progress: OnProgress | None = None,
) -> LoadResult:
    """Make every request of `profile` at its time, open loop, and return their records.

    `request_func`: an async function or async generator function that gets the `Shot` (see
    `loadtest.functions` for what it may return, yield and raise), or a URL, to which the shots'
    bodies are sent. `retries` ("none", "sdk", "naive", "polite", or a rule), `seed`, `processes`
    and `tls` are for a URL (see `processes.send`); a function does all that itself, in this
    process. `on_progress` gets a `Tally` four times a second.

    The result's `lag` is the sender's own lateness in seconds: when its P99 is over `max_lag`,
    `valid` is False, since latencies then are the sender's. A function that blocks the event loop
    does that. In a notebook, whose loop is taken, it runs in a thread with a loop of its own.
    Raises InputError.
    """
    shots = shots_of(profile)
    rule = _rule(retries)

    async def run(stop: asyncio.Event) -> LoadResult:
        if isinstance(request_func, str):
            return await send(
                request_func,
                shots,
                rule=rule,
                seed=seed,
                processes=processes,
                tls=tls,
                stop=stop,
                max_lag=max_lag,
                on_progress=on_progress,
            )
        tally = Tally()
        with calm():
            async with telling(tally, on_progress):
                return await drive(request_func, shots, stop=stop, max_lag=max_lag, tally=tally)

    return run_until_stopped(run)


def shots_of(profile: Profile) -> list[Shot]:
    """List the shots of a profile, by time. Raises InputError for what is none."""
    items = profile.shots if isinstance(profile, HasShots) else profile
    shots: list[Shot] = []
    for item in items:
        shot = item if isinstance(item, Shot) else None
        if isinstance(item, float | int) and not isinstance(item, bool):
            shot = Shot(float(item))
        if shot is None or not (math.isfinite(shot.at) and shot.at >= 0):
            raise InputError(
                f"profile[{len(shots)}] = {item!r}: expected a Shot, or seconds after the start"
            )
        shots.append(shot)
    return sorted(shots, key=lambda shot: shot.at)


def run_until_stopped(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, LoadResult]],
) -> LoadResult:
    """Run `work(stop)` on a loop of its own; the first Ctrl-C sets `stop`, the second one kills."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return uvloop.run(_stoppable(work))
    with ThreadPoolExecutor(1, "surgetank-load") as pool:  # a notebook: its loop is taken
        return pool.submit(lambda: uvloop.run(_stoppable(work))).result()


async def _stoppable(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, LoadResult]],
) -> LoadResult:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    listens = threading.current_thread() is threading.main_thread()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if listens:
        loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        return await work(stop)
    finally:
        if listens:
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(signal.SIGINT)


def _rule(retries: RetryRule | str) -> RetryRule:
    if isinstance(retries, RetryRule):
        return retries
    found = RULES.get(retries)
    if found is None:
        raise InputError(f"retries = {retries!r}: expected one of {', '.join(RULES)}, or a rule")
    return found
