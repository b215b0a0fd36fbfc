"""The chaos that takes no time: disks that hang or fill up, a clock that jumps, clients that go."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from surgetank.adapters.records import RecordWriter, read_records
from surgetank.policy.flow import FlowSpec
from tests.gateway.harness import (
    Connection,
    Engine,
    RawClient,
    Received,
    Running,
    ask,
    chat,
    delta,
    post,
    run,
    serving,
    stream_words,
    until,
)


async def burst(running: Running, number: int, *, at_once: int = 20) -> list[float]:
    """Send so many requests; returns the seconds that each took. All must end well."""
    left = iter(range(number))
    seconds: list[float] = []

    async def one_after_another() -> None:
        client = await RawClient.connect(running.port)
        for _ in left:
            began = time.monotonic()
            client.send(post(chat()))
            assert (await client.reply()).status == 200
            seconds.append(time.monotonic() - began)
        client.close()

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    return seconds


def at_rest(running: Running) -> None:
    """Nothing is left of any request."""
    gauges = running.gateway.gauges()
    assert sum(gauges.queued.values()) == sum(gauges.running.values()) == 0
    assert sum(r.in_flight + r.kv_reserved for r in gauges.replicas) == 0
    assert len(running.gateway.driver) == 0


def test_a_disk_that_hangs_delays_no_request(tmp_path: Path) -> None:
    """500 requests while nothing is written at all, beside 500 with a disk that works."""

    async def test() -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)  # nobody reads: 64 KB go in, then each write hangs
        stuck = RecordWriter(pipe, max_buffered=50)
        stuck._lines.extend("x" * 1000 for _ in range(100))
        stuck._wake.set()
        well = RecordWriter(tmp_path / "records.jsonl")
        async with serving(Engine()) as running:
            await burst(running, 100)
            medians = {}
            for name, writer in (("well", well), ("stuck", stuck), ("well again", well)):
                running.gateway.ledger.book()
                running.gateway.ledger._write = writer.write
                seconds = sorted(await burst(running, 500))
                medians[name] = seconds[len(seconds) // 2]
            running.gateway.ledger.book()
            assert medians["stuck"] < 3 * max(medians["well"], medians["well again"])
            assert stuck.dropped >= 400
            at_rest(running)
        assert not stuck.close(timeout=0.1)
        assert well.close()
        assert (well.written, well.dropped) == (1000, 0)
        with pipe.open("rb") as reader:  # the disk comes back, and the thread ends
            while stuck._thread.is_alive():
                reader.read1(1 << 16)
                stuck._thread.join(0.001)

    run(test)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_fills_up_costs_records_alone_and_is_used_again(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "records.jsonl"
        path.symlink_to("/dev/full")
        writer = RecordWriter(path)
        async with serving(Engine()) as running:
            running.gateway.ledger._write = writer.write
            await burst(running, 100)
            running.gateway.ledger.book()
            await until(lambda: writer.dropped == 100)
            path.unlink()
            writer.reopen()
            await until(path.is_file)
            await burst(running, 100)
            at_rest(running)
            running.gateway.ledger.book()
        assert writer.close() is False  # it had errors
        assert (writer.written, writer.dropped) == (100, 100)
        assert len(list(read_records(path))) == 100

    run(test)


@pytest.mark.parametrize("jump", [86_400.0 * 365, -86_400.0 * 365])
def test_a_wall_clock_that_jumps_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    async def test() -> None:
        async with serving(Engine(), flow=FlowSpec(max_in_flight=2)) as running:
            before = time.time()
            await burst(running, 40)
            real = time.time
            monkeypatch.setattr(time, "time", lambda: real() + jump)
            await burst(running, 40)
            monkeypatch.undo()
            assert {r.outcome for r in running.records} == {"completed"}
            for record in running.records:
                assert before - 1 <= record.arrived <= (record.ended or 0.0) <= before + 60
            at_rest(running)

    run(test)


def test_three_hundred_streams_that_are_hung_up_leave_nothing_behind() -> None:
    async def endless(request: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await connection.left()

    async def test() -> None:
        engine = Engine(default=endless)
        async with serving(engine, flow=FlowSpec(max_in_flight=64)) as running:

            async def hang_up() -> None:
                client = await RawClient.connect(running.port)
                client.send(post(chat(stream=True)))
                await client.reader.readuntil(b"word")
                client.close()

            for _ in range(6):
                await asyncio.gather(*(hang_up() for _ in range(50)))
            await until(lambda: len(running.gateway.driver) == 0)
            assert len(running.records) == 300
            assert {r.outcome for r in running.records} == {"abandoned"}
            at_rest(running)
            (target,) = running.gateway.fleet
            await until(lambda: not target.pool.open)

    run(test)


def test_a_replica_that_dies_in_a_burst_breaks_its_own_streams_alone() -> None:
    async def slow(request: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await asyncio.sleep(0.02)
        await connection.event("[DONE]")
        await connection.end()

    async def test() -> None:
        one, two = Engine(default=slow), Engine(default=slow)
        async with serving(one, two, flow=FlowSpec(max_in_flight=8)) as running:
            asked = [asyncio.ensure_future(ask(running.port, chat(stream=True))) for _ in range(80)]
            await until(lambda: len(running.records) >= 10)
            await one.kill()
            replies = await asyncio.gather(*asked)
            broken = [r for r in replies if "error" in r.body.decode()]
            assert [r.status for r in replies] == [200] * 80
            assert len(broken) <= 8
            outcomes = [r.outcome for r in running.records]
            assert len(outcomes) == 80
            assert outcomes.count("upstream_failed") == len(broken)
            at_rest(running)

    run(test)


def test_an_engine_that_writes_byte_by_byte_is_passed_on_whole() -> None:
    async def bytewise(request: Received, connection: Connection) -> None:
        class Bytes(Connection):
            async def send(self, data: bytes) -> None:
                for i in range(len(data)):
                    self.writer.write(data[i : i + 1])
                    await asyncio.sleep(0)

        await stream_words(Bytes(connection.reader, connection.writer), request)

    async def test() -> None:
        async with serving(Engine(default=bytewise)) as running:
            replies = await asyncio.gather(
                *(ask(running.port, chat(stream=True)) for _ in range(10))
            )
            assert {tuple(reply.events) for reply in replies} == {tuple(replies[0].events)}
            assert replies[0].events[-1] == "[DONE]"
            assert [json_of(event) for event in replies[0].events[1:3]] == ["a", "b"]
            at_rest(running)

    run(test)


def json_of(event: str) -> str:
    return str(json.loads(event)["choices"][0]["delta"]["content"])
