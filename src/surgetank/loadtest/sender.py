"""Send a schedule open loop: each request at its own absolute time, whatever became of the others.

Rule: a late sender is reported, never hidden. Every record carries `scheduled` beside `sent`, TTFT
counts from `scheduled`, and the send lag's P50 and P99 stand in the result: a run whose lag is not
small beside its latencies measured the sender.

Send lag: from when a request was due to when it was handed to a connection, or to when a user's
function began to run. The time of a connect is the server's, and lies between that and `sent`.
Retries are the client's, not the schedule's: they have no lag.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from surgetank.loadtest.attempts import Attempts, Habits
from surgetank.loadtest.client import Client
from surgetank.loadtest.connection import CLOCK, Exchange
from surgetank.loadtest.functions import FunctionCall, RequestFunction
from surgetank.loadtest.pacing import LEAD_IN, Outstanding, keep, unless
from surgetank.loadtest.recording import record_of, write_records
from surgetank.loadtest.shot import MAX_LAG, Lag, LoadResult, Shot, Tally
from surgetank.policy.record import RequestRecord
from surgetank.policy.retry import NO_RETRIES, RetryRule

__all__ = ["Lag", "LoadResult", "Shot", "drive", "fire", "write_records"]

OnEnd = Callable[[RequestRecord], None]
_LET_GO: Final = 5.0  # seconds


async def fire(
    client: Client,
    shots: Iterable[Shot],
    *,
    rule: RetryRule = NO_RETRIES,
    draws: random.Random | None = None,
    start: float | None = None,
    wall: float | None = None,
    stop: asyncio.Event | None = None,
    max_lag: float = MAX_LAG,
    on_end: OnEnd | None = None,
    tally: Tally | None = None,
) -> LoadResult:
    """Send every shot at its time and wait until each has ended.

    `rule`: how its clients try again, with `draws` for their jitter (seeded with 0 without).
    `start`: of the schedule, on time.monotonic's clock; as soon as may be without. `wall`: what
    turns that clock into Unix seconds, where several processes have to agree on it. `stop`: once it
    is set, nothing more is sent, what is in flight is hung up on, and what was done is returned.
    `on_end` is called as each ends, and `tally` counts, for progress. When cancelled, it hangs up
    on all of them.
    """
    habits = Habits(client, rule, (draws or random.Random(0)).random)

    def attempts(shot: Shot, index: int, due: float, ended: Callable[[_One], None]) -> _One:
        return Attempts(habits, shot, index, due, ended)

    run = _Run(attempts, shots, on_end=on_end, tally=tally, wall=wall)
    return await run(start=start, stop=stop, max_lag=max_lag)


async def drive(
    function: RequestFunction,
    shots: Iterable[Shot],
    *,
    start: float | None = None,
    stop: asyncio.Event | None = None,
    max_lag: float = MAX_LAG,
    on_end: OnEnd | None = None,
    tally: Tally | None = None,
    clock: Callable[[], float] = CLOCK,
) -> LoadResult:
    """Do as `fire` does, with calls of an async function of the user's own (see `functions`).

    `clock`: another one than time.monotonic has to be the running loop's, as in virtual time.
    """

    def call(shot: Shot, index: int, due: float, ended: Callable[[_One], None]) -> _One:
        return FunctionCall(function, shot, index, due, ended, clock=clock)

    run = _Run(call, shots, on_end=on_end, tally=tally, clock=clock, handed_over=False)
    return await run(start=start, stop=stop, max_lag=max_lag)


class _One(Protocol):
    """A request under way, by our client or by a user's function."""

    index: int
    due: float
    shot: Shot
    retries: int
    exchange: Exchange

    @property
    def sent(self) -> float | None: ...

    def begin(self) -> None: ...

    def stop(self) -> None: ...


class _Run:
    """One schedule on its way."""

    def __init__(
        self,
        make: Callable[[Shot, int, float, Callable[[_One], None]], _One],
        shots: Iterable[Shot],
        *,
        on_end: OnEnd | None,
        tally: Tally | None,
        wall: float | None = None,
        clock: Callable[[], float] = CLOCK,
        handed_over: bool = True,
    ) -> None:
        self._clock = clock
        # What `begin` hands to a connection is on its way; a function's task has yet to run.
        self._handed_over = handed_over
        self._make = make
        self._schedule: Sequence[Shot] = sorted(shots, key=_at)
        self._on_end = on_end
        self._tally = tally or Tally()
        self._wall = time.time() - clock() if wall is None else wall
        self._alive: dict[int, _One] = {}
        self._over: list[_One] = []
        self._records: dict[int, RequestRecord] = {}
        self._outstanding = Outstanding()
        self._lags = array("d")

    async def __call__(
        self, *, start: float | None, stop: asyncio.Event | None, max_lag: float
    ) -> LoadResult:
        cpu = time.process_time()
        start = self._clock() + LEAD_IN if start is None else start
        stopped = True
        times = [shot.at for shot in self._schedule]
        try:
            if await unless(stop, keep(times, self._begin, start, self._clock)):
                stopped = not await unless(stop, self._outstanding.none())
        finally:
            await self._hang_up()
        elapsed = self._clock() - start
        cpu = time.process_time() - cpu
        for one in self._over:
            self._records[one.index] = self._record(one)
        return LoadResult(
            [self._records[index] for index in sorted(self._records)],
            Lag.of(self._lags),
            elapsed,
            planned=len(self._schedule),
            cpu=cpu,
            stopped=stopped,
            max_lag=max_lag,
            lags=self._lags,
        )

    async def _hang_up(self) -> None:
        """End what is alive. A user's function that does not let go is not waited for."""
        if not self._alive:
            return
        for one in list(self._alive.values()):
            one.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LET_GO):
                await self._outstanding.none()

    def _begin(self, index: int, due: float) -> None:
        self._outstanding.began()
        self._tally.sent += 1
        one = self._alive[index] = self._make(self._schedule[index], index, due, self._ended)
        one.begin()
        if self._handed_over:
            self._lags.append(self._clock() - due)

    def _ended(self, one: _One) -> None:
        self._outstanding.ended()
        del self._alive[one.index]
        if not self._handed_over and one.sent is not None:
            self._lags.append(one.sent - one.due)
        self._tally.end(one.exchange.outcome, one.retries)
        if self._on_end is None:
            self._over.append(one)  # its record can wait until the schedule does not
            return
        record = self._records[one.index] = self._record(one)
        self._on_end(record)

    def _record(self, one: _One) -> RequestRecord:
        return record_of(
            one.shot,
            one.exchange,
            index=one.index,
            due=one.due,
            sent=one.sent,
            retries=one.retries,
            wall=self._wall,
        )


def _at(shot: Shot) -> float:
    return shot.at
