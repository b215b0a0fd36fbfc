"""The open-loop sender: it keeps its schedule whatever the server does, and admits its lateness."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path

import pytest
import uvloop

from surgetank.loadtest.client import Client
from surgetank.loadtest.pacer import Pacer
from surgetank.loadtest.sender import Lag, LoadResult, Shot, fire, write_records
from surgetank.policy.record import RequestRecord
from tests.loadtest.scripted import STREAM, Engine, Exchange


def shots(*times: float) -> list[Shot]:
    return [Shot(at, b"{}", tenant="t", id=f"r{n}") for n, at in enumerate(times)]


async def load(engine: Engine, schedule: list[Shot]) -> LoadResult:
    async with engine:
        client = Client(engine.url)
        try:
            async with asyncio.timeout(10):
                return await fire(client, schedule)
        finally:
            await client.close()


def test_requests_are_scheduled_exactly_and_never_sent_early() -> None:
    result = uvloop.run(load(Engine(STREAM), shots(0.0, 0.013, 0.0131, 0.05)))
    due = [r.scheduled for r in result.records]
    assert [round(d - due[0], 6) for d in due if d and due[0]] == [0, 0.013, 0.0131, 0.05]
    for record in result.records:
        assert record.outcome == "completed"
        assert record.scheduled is not None
        assert record.sent is not None
        assert record.sent >= record.scheduled
        assert record.arrived == record.scheduled
    assert abs(time.time() - (due[0] or 0)) < 10  # Unix seconds


def test_requests_go_out_though_none_before_them_was_answered() -> None:
    async def run() -> LoadResult:
        everyone = asyncio.Event()

        async def answer_when_all_are_here(exchange: Exchange) -> None:
            if len(engine.requests) == 40:
                everyone.set()
            await everyone.wait()
            await exchange.write(STREAM)

        engine = Engine(answer_when_all_are_here)
        return await load(engine, shots(*(0.001 * n for n in range(40))))

    result = uvloop.run(run())
    assert [r.outcome for r in result.records] == ["completed"] * 40


def test_a_late_sender_is_reported_and_its_lateness_counts_as_latency() -> None:
    async def run() -> LoadResult:
        # The loop stands still from just after the first shot until long after the second is due.
        asyncio.get_running_loop().call_later(0.06, time.sleep, 0.3)
        return await load(Engine(STREAM), shots(0.0, 0.1))

    result = uvloop.run(run())
    first, second = result.records
    assert result.lag.max > 0.15
    assert result.lag.p99 == result.lag.max >= result.lag.p50
    assert second.ttft is not None
    assert second.sent is not None
    assert second.scheduled is not None
    assert second.sent - second.scheduled > 0.15
    assert second.ttft >= second.sent - second.scheduled
    assert first.scheduled is not None
    assert round(second.scheduled - first.scheduled, 6) == 0.1


def test_a_connect_that_takes_long_is_not_the_senders_lag() -> None:
    result = uvloop.run(load(Engine(STREAM), shots(0.0)))
    (record,) = result.records
    assert record.sent is not None
    assert record.scheduled is not None
    assert result.lag.max <= record.sent - record.scheduled


def test_cancelling_hangs_up_on_every_request() -> None:
    async def run() -> int:
        here = asyncio.Event()
        gone = 0

        async def hold(exchange: Exchange) -> None:
            nonlocal gone
            if len(engine.requests) == 3:
                here.set()
            await exchange.gone()
            gone += 1

        async with Engine(hold) as engine:
            client = Client(engine.url)
            firing = asyncio.create_task(fire(client, [*shots(0, 0, 0), Shot(60.0, b"{}")]))
            await here.wait()
            firing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await firing
            await client.close()
            async with asyncio.timeout(5):
                while gone < 3:  # noqa: ASYNC110 (the sockets' other ends have no event)
                    await asyncio.sleep(0)
            return gone

    assert uvloop.run(run()) == 3


def test_each_end_is_told_once_and_no_schedule_is_no_load() -> None:
    async def run() -> tuple[list[str], LoadResult]:
        told: list[str] = []
        async with Engine(STREAM) as engine:
            client = Client(engine.url)
            await fire(client, shots(0, 0.01), on_end=lambda record: told.append(record.id))
            nothing = await fire(client, [])
            await client.close()
        return told, nothing

    told, nothing = uvloop.run(run())
    assert sorted(told) == ["r0", "r1"]
    assert nothing.records == []
    assert nothing.lag == Lag(0.0, 0.0, 0.0)


@pytest.mark.parametrize("timerfd", [True, False])
@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_the_pacer_never_wakes_early_and_not_at_all_late_for_the_past(
    runner: object, *, timerfd: bool
) -> None:
    async def run() -> list[float]:
        late: list[float] = []
        with Pacer(timerfd=timerfd) as pacer:
            for ahead in (-1.0, 0.0, 0.0004, 0.01, 0.02):
                moment = time.monotonic() + ahead
                async with asyncio.timeout(5):
                    await pacer.until(moment)
                late.append(time.monotonic() - moment)
        return late

    assert callable(runner)
    late = runner(run())
    assert min(late) >= 0
    assert late[0] < 1.5


def test_records_are_kept_for_their_owner_alone_and_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("older")
    path.chmod(0o644)
    records = [RequestRecord("a", outcome="completed", sent=1.5), RequestRecord("b")]
    write_records(path, records)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [RequestRecord.from_line(line) for line in path.read_text().splitlines()] == records
    assert [p.name for p in tmp_path.iterdir()] == ["run.jsonl"]
