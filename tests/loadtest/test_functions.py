"""A user's own function at the schedule's times: stamps, outcomes, and the rate that is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from surgetank.loadtest.functions import RequestFunction
from surgetank.loadtest.sender import LoadResult, Shot, drive
from surgetank.policy.gaps import gap_quantile, merged
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Usage
from tests.loadtest.virtual import run

PULSE = [n / 20 for n in range(200)] + [10 + n / 80 for n in range(800)]
"""Seconds: 20 a second for 10 s, then 80 a second for 10 s."""


def one(function: RequestFunction, **fields: Any) -> RequestRecord:
    async def test(clock: Callable[[], float]) -> LoadResult:
        return await drive(function, [Shot(0.0, **fields)], clock=clock)

    (record,) = run(test).records
    return record


@pytest.mark.parametrize("latency", [0.1, 0.5, 2.0])
def test_the_schedule_is_kept_at_any_latency_where_a_closed_loop_sends_what_it_can(
    latency: float,
) -> None:
    async def ours(clock: Callable[[], float]) -> tuple[int, int]:
        async def ask(shot: Shot) -> None:
            await asyncio.sleep(latency)

        result = await drive(ask, [Shot(at) for at in PULSE], clock=clock)
        start = result.records[0].scheduled or 0.0
        sent = [(r.sent or 0.0) - start for r in result.records]
        return sum(at < 10 - 1e-6 for at in sent), sum(at >= 10 - 1e-6 for at in sent)

    async def closed(clock: Callable[[], float]) -> tuple[int, int]:
        """Send, wait for the answer, sleep 1/rate: what sample profiles do."""
        start, base, peak = clock(), 0, 0
        while (now := clock() - start) < 20:
            base, peak = base + (now < 10), peak + (now >= 10)
            await asyncio.sleep(latency)
            await asyncio.sleep(1 / 20 if now < 10 else 1 / 80)
        return base, peak

    base, peak = run(ours)
    assert base == pytest.approx(200, rel=0.01)
    assert peak == pytest.approx(800, rel=0.01)
    base, peak = run(closed)
    assert base < 0.35 * 200
    assert peak < 0.12 * 800


def test_a_coroutine_is_answered_when_it_returns() -> None:
    async def ask(shot: Shot) -> int:
        await asyncio.sleep(0.25)
        return 7

    record = one(ask, tenant="a", model="m")
    assert (record.outcome, record.output_tokens, record.tenant) == ("completed", 7, "a")
    assert record.ttft == pytest.approx(0.25, abs=1e-4)
    assert record.ended == record.first_token


def test_a_generators_items_are_tokens_with_their_gaps() -> None:
    async def ask(shot: Shot) -> AsyncIterator[str | Usage]:
        await asyncio.sleep(0.1)
        yield ""
        await asyncio.sleep(0.1)
        for _ in range(5):
            yield "word"
            await asyncio.sleep(0.02)
        yield Usage(11, 5)

    record = one(ask)
    assert record.ttft == pytest.approx(0.2, abs=1e-4)
    assert record.first_byte == pytest.approx((record.scheduled or 0) + 0.1, abs=1e-4)
    assert (record.output_tokens, record.prompt_tokens) == (5, 11)
    gaps = merged([record.token_gaps])
    assert sum(gaps.values()) == 4
    assert gap_quantile(gaps, 0.5) == pytest.approx(0.02, rel=0.045)


def test_a_stream_that_is_returned_is_listened_to() -> None:
    async def words() -> AsyncIterator[str]:
        for _ in range(3):
            await asyncio.sleep(0.1)
            yield "word"

    async def ask(shot: Shot) -> AsyncIterator[str]:
        return words()

    record = one(ask)
    assert record.ttft == pytest.approx(0.1, abs=1e-4)
    assert record.output_tokens == 3


def test_a_function_that_is_not_async_is_told_so() -> None:
    def ask(shot: Shot) -> Any:
        return 7

    record = one(ask)
    assert (record.outcome, record.reason) == ("upstream_failed", "NotAsyncError")


class _StatusError(Exception):
    status_code = 429
    body = {"code": "queue_full", "message": "secret prompt"}  # noqa: RUF012 - as an SDK's error is


@pytest.mark.parametrize(
    ("error", "outcome", "reason", "status"),
    [
        (_StatusError("secret"), "queue_full", "429 queue_full", 429),
        (TimeoutError("secret"), "request_timeout", "client timeout: no answer", 0),
        (ValueError("secret"), "upstream_failed", "ValueError", 0),
    ],
)
def test_what_it_raises_is_the_outcome_and_no_message_is_kept(
    error: Exception, outcome: str, reason: str, status: int
) -> None:
    async def ask(shot: Shot) -> None:
        raise error

    record = one(ask)
    assert (record.outcome, record.reason, record.status) == (outcome, reason, status)
    assert record.first_token is None


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"timeout": 0.5}, "request_timeout"),
        ({"timeout": 5.0, "abandon_after": 0.5}, "abandoned"),
    ],
)
def test_it_is_cancelled_when_its_time_is_over(fields: dict[str, Any], outcome: str) -> None:
    async def ask(shot: Shot) -> AsyncIterator[str]:
        yield "one"
        await asyncio.sleep(1e6)

    record = one(ask, **fields)
    assert record.outcome == outcome
    assert (record.ended or 0) - (record.sent or 0) == pytest.approx(0.5, abs=1e-4)
    assert record.output_tokens == 1


def test_stopping_cancels_what_runs_and_keeps_what_was_done() -> None:
    async def test(clock: Callable[[], float]) -> LoadResult:
        stop = asyncio.Event()

        async def ask(shot: Shot) -> None:
            if shot.at == 1.0:
                stop.set()
                await asyncio.sleep(1e6)

        return await drive(ask, [Shot(float(n)) for n in range(9)], stop=stop, clock=clock)

    result = run(test)
    assert result.stopped
    assert result.planned == 9
    assert [r.outcome for r in result.records] == ["completed", "abandoned"]
    assert result.records[1].reason == "run stopped"


def test_a_function_that_will_not_let_go_is_not_waited_for() -> None:
    async def test(clock: Callable[[], float]) -> tuple[LoadResult, float]:
        stop = asyncio.Event()
        released = asyncio.Event()

        async def ask(shot: Shot) -> None:
            stop.set()
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue

        result = await drive(ask, [Shot(0.0)], stop=stop, clock=clock)
        waited = result.elapsed
        released.set()
        await asyncio.sleep(0)
        return result, waited

    result, waited = run(test)
    assert result.stopped
    assert waited == pytest.approx(5.0, abs=0.1)
    assert result.records == []


def test_a_function_that_blocks_the_loop_makes_the_run_invalid() -> None:
    async def ask(shot: Shot) -> None:
        time.sleep(0.03)  # noqa: ASYNC251 - the mistake this is about

    result = uvloop.run(drive(ask, [Shot(n / 1000) for n in range(10)]))
    assert not result.valid
    assert result.lag.p99 > 0.1
    assert result.invalid.startswith("INVALID: the sender was late, lag P99")
    assert result.sender_json()["valid"] is False
