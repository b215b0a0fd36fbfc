"""Send a schedule open loop: each request at its own absolute time, whatever became of the others.

Rule: a late sender is reported, never hidden. Every record carries `scheduled` beside `sent`, TTFT
counts from `scheduled`, and the send lag's P50 and P99 stand in the result: a run whose lag is not
small beside its latencies measured the sender.

Send lag: from when a request was due to when it was handed to a connection. The time of a connect
is the server's, and lies between that and `sent`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from surgetank.loadtest.client import CHAT, Call, Client, Exchange
from surgetank.loadtest.pacer import Pacer
from surgetank.loadtest.summary import nearest_rank
from surgetank.policy.record import RequestRecord

_LEAD_IN: Final = 0.05  # seconds before the first shot: the schedule's own start is never late
_BATCH: Final = (
    16  # overdue shots sent before the loop may read answers: their stamps must not wait
)


@dataclass(frozen=True, slots=True)
class Shot:
    """One request of a schedule. `at`: seconds after its start; other times in seconds.

    Key and body are kept out of its repr. `body` is sent as it is; `stream`, `max_tokens` and
    `model` say what is in it, for the record.
    """

    at: float
    body: bytes = field(repr=False)
    tenant: str = ""
    key: str = field(default="", repr=False)
    id: str = ""
    model: str = ""
    route: str = CHAT
    session: str = ""
    stream: bool = True
    max_tokens: int | None = None
    timeout: float = 120.0
    abandon_after: float | None = None
    ttft_objective: float | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The sender's own lateness, in seconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Records in the order of the schedule, the send lag, and the seconds from start to end."""

    records: list[RequestRecord]
    lag: Lag
    elapsed: float


async def fire(
    client: Client,
    shots: Iterable[Shot],
    *,
    on_end: Callable[[RequestRecord], None] | None = None,
) -> LoadResult:
    """Send every shot at its time and wait until each has ended.

    `on_end` is called as each ends, for progress. When cancelled, it hangs up on all of them.
    """
    schedule = sorted(shots, key=lambda shot: shot.at)
    wall = time.time() - time.monotonic()
    start = time.monotonic() + _LEAD_IN
    flights: list[asyncio.Future[Exchange]] = []
    records: dict[int, RequestRecord] = {}
    lags: list[float] = []

    def ended(index: int, future: asyncio.Future[Exchange]) -> None:
        if future.cancelled():
            return
        shot, exchange = schedule[index], future.result()
        records[index] = record = _record(shot, index, exchange, start + shot.at, wall)
        if on_end is not None:
            on_end(record)

    try:
        with Pacer() as pacer:
            overdue = 0
            for index, shot in enumerate(schedule):
                due = start + shot.at
                if time.monotonic() < due:
                    await pacer.until(due)
                    overdue = 0
                elif (overdue := overdue + 1) % _BATCH == 0:
                    await asyncio.sleep(0)
                lags.append(time.monotonic() - due)
                flight = client.begin(_call(shot))
                flight.add_done_callback(partial(ended, index))
                flights.append(flight)
        await asyncio.gather(*flights)
    finally:
        for flight in flights:
            flight.cancel()
    return LoadResult(
        [records[index] for index in range(len(schedule))], _lag(lags), time.monotonic() - start
    )


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write JSON lines, readable by their owner alone; an older file is replaced."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(record.to_line() + "\n" for record in records)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _call(shot: Shot) -> Call:
    return Call(
        shot.body,
        key=shot.key,
        route=shot.route,
        timeout=shot.timeout,
        abandon_after=shot.abandon_after,
    )


def _record(shot: Shot, index: int, exchange: Exchange, due: float, wall: float) -> RequestRecord:
    """Make the one record; one offset for the whole run turns its times into Unix seconds."""

    def unix(moment: float | None) -> float | None:
        return None if moment is None else moment + wall

    usage = exchange.usage
    return RequestRecord(
        id=shot.id or f"{index:06d}",
        tenant=shot.tenant,
        model=shot.model,
        route=shot.route,
        session=shot.session,
        stream=shot.stream,
        arrived=due + wall,
        scheduled=due + wall,
        sent=unix(exchange.sent),
        first_byte=unix(exchange.first_byte),
        first_token=unix(exchange.first_token),
        ended=unix(exchange.ended),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        output_tokens=exchange.tokens,
        max_tokens=shot.max_tokens,
        ttft_objective=shot.ttft_objective,
        outcome="" if exchange.outcome is None else exchange.outcome.value,
        reason=exchange.reason,
        status=exchange.status,
        attempts=exchange.attempts,
    )


def _lag(lags: Sequence[float]) -> Lag:
    ordered = sorted(lags)
    if not ordered:
        return Lag(0.0, 0.0, 0.0)
    return Lag(nearest_rank(ordered, 0.50), nearest_rank(ordered, 0.99), ordered[-1])
