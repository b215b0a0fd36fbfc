"""Several processes send one schedule; what one of them would have said, they say together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter

import pytest
import uvloop

from surgetank.errors import InputError
from surgetank.loadtest import processes
from surgetank.loadtest.processes import processes_for, send
from surgetank.loadtest.shot import LoadResult, Shot, Tally
from surgetank.policy.retry import RetryRule
from tests.loadtest.scripted import STREAM, Engine, Exchange

REFUSED = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"


def shots(count: int, every: float = 0.005) -> list[Shot]:
    return [Shot(every * n, b"{}", tenant=f"t{n % 3}") for n in range(count)]


def test_three_processes_send_each_shot_once_and_in_time() -> None:
    told: list[Tally] = []

    async def run() -> tuple[LoadResult, int]:
        async with asyncio.timeout(30), Engine(REFUSED, STREAM) as engine:
            rule = RetryRule("quick", most=1, first=0.01)
            result = await send(
                engine.url, shots(120), rule=rule, processes=3, on_progress=told.append
            )
            return result, len(engine.requests)

    result, asked = uvloop.run(run())
    assert (result.processes, result.planned, len(result.lags)) == (3, 120, 120)
    assert [r.id for r in result.records] == [f"{n:06d}" for n in range(120)]
    assert Counter(r.outcome for r in result.records) == {"completed": 120}
    assert sum(r.attempts for r in result.records) == asked == 121
    due = [r.scheduled or 0.0 for r in result.records]
    assert [round(at - due[0], 6) for at in due] == [round(0.005 * n, 6) for n in range(120)]
    assert all((r.sent or 0) >= (r.scheduled or 0) for r in result.records)
    assert result.cpu > 0
    assert sum(r.output_tokens or 0 for r in result.records) == 3 * 120
    assert all(tally.ended <= tally.sent <= 120 for tally in told)


def test_stopping_reaches_every_process_and_keeps_what_was_done() -> None:
    async def run() -> LoadResult:
        stop = asyncio.Event()

        async def hang(exchange: Exchange) -> None:
            if len(engine.requests) == 8:
                stop.set()
            await exchange.gone()

        async with asyncio.timeout(30), Engine(STREAM, STREAM, hang) as engine:
            schedule = [*shots(8), Shot(600.0, b"{}"), Shot(600.0, b"{}")]
            return await send(engine.url, schedule, processes=2, stop=stop)

    result = uvloop.run(run())
    assert result.stopped
    assert Counter(r.outcome for r in result.records) == {"completed": 2, "abandoned": 6}
    assert (result.planned, len(result.lags)) == (10, 8)


def test_a_process_that_dies_makes_the_run_invalid_and_leaves_the_others_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew: list[asyncio.subprocess.Process] = []
    start = processes._start

    async def started() -> asyncio.subprocess.Process:
        process = await start()
        crew.append(process)
        return process

    monkeypatch.setattr(processes, "_start", started)

    async def run() -> LoadResult:
        async def kill_one(exchange: Exchange) -> None:
            if len(engine.requests) == 1:
                os.kill(crew[0].pid, signal.SIGKILL)
            await exchange.write(STREAM)

        async with asyncio.timeout(30), Engine(kill_one) as engine:
            return await send(engine.url, shots(20), processes=2)

    result = uvloop.run(run())
    assert result.lost == 10
    assert not result.valid
    assert result.invalid == "INVALID: a process of the sender died with 10 requests"
    assert len(result.records) == 10


def test_what_cannot_work_is_said_before_anything_is_sent() -> None:
    with pytest.raises(InputError, match="ftp://h: expected http"):
        uvloop.run(send("ftp://h", shots(2), processes=2))
    with pytest.raises(InputError, match="--processes 0: must be >= 1"):
        uvloop.run(send("http://h", shots(2), processes=0))


@pytest.mark.parametrize(
    ("rate", "tokens", "expected"),
    [(10, 16, 1), (999, 4, 1), (1001, 4, 2), (2500, 4, 3), (50, 1000, 5), (0, 16, 1)],
)
def test_processes_follow_the_busiest_second(
    rate: int, tokens: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    if sys.platform.startswith("linux"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    schedule = [Shot(5 + n / max(rate, 1), max_tokens=tokens) for n in range(rate)]
    quiet = [Shot(float(n), max_tokens=tokens) for n in range(5)]
    assert processes_for([*quiet, *schedule]) == expected
