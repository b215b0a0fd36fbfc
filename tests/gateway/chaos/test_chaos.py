"""What must hold whatever is done to the fleet: by name, since each takes up to minutes.

`pytest -m heavy tests/gateway/chaos`; figures are printed with -s.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import uvloop

from tests.gateway.chaos.world import PATIENCE, World, world
from tests.gateway.harness import Connection, Engine, Received, delta
from tests.gateway.processes import mock_engine

pytestmark = pytest.mark.heavy


def tell(name: str, here: World, **figures: object) -> None:
    """Print what a reader wants to see of a run."""
    words = ", ".join(f"{key} {value}" for key, value in figures.items())
    print(f"\n{name}: {here.sent} requests, {dict(here.ended)}{', ' if words else ''}{words}")  # noqa: T201 - for who runs it by name


def kill(here: World, number: int) -> None:
    pid = here.engines[number][1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_half_the_replicas_are_killed_in_the_middle_of_a_burst_and_come_back(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with world(tmp_path, (), (), (), (), profile="tiny") as here:
            burst = asyncio.ensure_future(here.burst(1200, at_once=100, max_tokens=12))
            await here.wait(lambda: _at_least(here, 200))
            ports = [here.engines[number][0].rsplit(":", 1)[1] for number in (0, 1)]
            kill(here, 0)
            kill(here, 1)
            await here.wait(lambda: _at_least(here, 600))
            async with (
                mock_engine("--profile", "tiny", "--port", ports[0]),
                mock_engine("--profile", "tiny", "--port", ports[1]),
            ):
                await burst
                await here.served.ready(4)
                await here.burst(200, at_once=50)
                records = await here.settled()
            tell("killed replicas", here, replayed=sum(r.attempts > 1 for r in records))
            # Only streams that ran on the killed ones may be broken off: 64 each at most.
            assert here.ended["completed"] >= 1400 - 2 * 64
            assert {r.outcome for r in records} <= {"completed", "upstream_failed"}
            late = {r.replica for r in records[-150:]}
            assert len(late) == 4

    uvloop.run(test())


async def _at_least(here: World, number: int) -> bool:
    return here.sent >= number


def test_a_replica_that_hangs_costs_its_own_requests_and_no_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(
            tmp_path, (), (), profile="tiny", flow={"request_timeout": 8, "max_queued": 5000}
        ) as here:
            await here.fault(0, kind="hang", after=2, times=20)
            await here.burst(400, at_once=60)
            records = await here.settled()
            tell("hanging replica", here)
            hung = [r for r in records if r.outcome != "completed"]
            assert 4 <= len(hung) <= 20  # its first slots; it gets no more while they hang
            assert {r.outcome for r in hung} == {"request_timeout"}
            assert all(8.0 <= r.ended - r.arrived < 12.0 for r in hung if r.ended is not None)

    uvloop.run(test())


def test_answers_byte_by_byte_arrive_whole(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, ("--fault", "trickle"), ("--fault", "trickle")) as here:
            answers = await here.burst(200, at_once=20)
            await here.settled()
            tell("one byte at a time", here)
            assert here.ended == {"completed": 200}
            assert {answer.tokens for answer in answers} == {4}

    uvloop.run(test())


@pytest.mark.parametrize(
    "fault",
    [
        "metrics-drop",
        "metrics-error:status=500",
        "metrics-lie:running=0,waiting=0,kv=0",
        "metrics-lie:running=9999,waiting=9999,kv=1",
    ],
)
def test_metrics_that_are_dead_or_lie_stop_nothing(tmp_path: Path, fault: str) -> None:
    async def test() -> None:
        async with world(tmp_path, ("--fault", fault), ("--fault", fault)) as here:
            await here.burst(600, at_once=80)
            await here.settled()
            tell(fault, here)
            assert here.ended == {"completed": 600}

    uvloop.run(test())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, (), records={"path": "/dev/full"}) as here:
            await here.burst(2000, at_once=60)
            await here.wait(lambda: _lost(here, 2000))
            tell(
                "full disk", here, lost=await here.served.metric("surgetank_records_dropped_total")
            )
            assert here.ended == {"completed": 2000}
            assert here.served.child.errors.count("No space left") <= 3

    uvloop.run(test())


async def _lost(here: World, number: int) -> bool:
    return await here.served.metric("surgetank_records_dropped_total") == number


def test_a_term_signal_under_load_leaves_each_request_with_an_ending(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, (), (), profile="tiny", drain_timeout=20) as here:
            burst = asyncio.ensure_future(here.burst(1500, at_once=100, max_tokens=20))
            await here.wait(lambda: _at_least(here, 300))
            process = here.served.child._process
            assert process is not None
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), PATIENCE)
            await burst
            records = here.served.records()
            refused = sum(n for name, n in here.ended.items() if name.startswith("503"))
            tell("term signal", here, records=len(records), status=process.returncode)
            assert process.returncode == 0
            answered = here.ended["completed"] + refused
            # Each that was answered has its record; the rest found nobody listening any more.
            assert len(records) == answered
            unheard = {n for n in here.ended if n != "completed" and not n.startswith("503")}
            assert {name.split()[0] for name in unheard} <= {"0"}

    uvloop.run(test())


class Paced:
    """Streams of as many words as are asked for, one each `interval` seconds, without any limit.

    After the first word each waits until `flow` is set.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.flow = asyncio.Event()
        self.running = self.most = 0

    async def __call__(self, request: Received, connection: Connection) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        gone = asyncio.ensure_future(connection.reader.read(1))  # nothing comes until it hangs up
        try:
            await connection.head()
            for _ in range(request.json["max_tokens"]):
                await connection.event(delta("word"))
                await self.flow.wait()
                if (await asyncio.wait([gone], timeout=self.interval))[0]:
                    return
            await connection.event("[DONE]")
            await connection.end()
        except ConnectionError:
            return
        finally:
            self.running -= 1
            gone.cancel()


def test_ten_thousand_streams_that_are_hung_up_leave_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        script = Paced(5.0)
        script.flow.set()
        flow = {"max_in_flight": 200, "max_queued": 1000}
        async with world(
            tmp_path,
            scripted=[Engine(default=script)],
            flow=flow,
            every_replica={"slots": 200},
        ) as here:
            await here.burst(2000, at_once=100, max_tokens=9, abandon_after=0.5)
            before = here.rss()
            await here.burst(8000, at_once=100, max_tokens=9, abandon_after=0.5)
            records = await here.settled(unread=100)
            growth = here.rss() / before - 1
            gone = sum(r.outcome == "abandoned" for r in records)
            tell("hung up", here, abandoned=gone, most=script.most, growth=f"{growth:.1%}")
            assert gone == len(records) >= 9900
            assert growth < 0.05
            await here.wait(lambda: _none_left(script))  # nor at the engine

    uvloop.run(test())


async def _none_left(script: Paced) -> bool:
    return script.running == 0


def test_two_thousand_streams_at_once_all_end_well(tmp_path: Path) -> None:
    flow = {"max_in_flight": 2500, "max_queued": 5000, "request_timeout": 600, "queue_timeout": 300}

    async def test() -> None:
        script = Paced(1.0)
        async with world(
            tmp_path,
            scripted=[Engine(default=script)],
            flow=flow,
            every_replica={"slots": 2500},
        ) as here:
            empty = here.rss()
            burst = asyncio.ensure_future(here.burst(2000, at_once=2000, max_tokens=8))
            await here.wait(lambda: _running(script, 2000))
            grown = here.rss() - empty
            running = await here.served.metric("surgetank_running")
            script.flow.set()
            await burst
            await here.settled()
            tell("2,000 streams", here, running=running, grown=f"{grown / 1e6:.0f} MB")
            assert here.ended == {"completed": 2000}
            assert running == script.most == 2000

    uvloop.run(test())


async def _running(script: Paced, number: int) -> bool:
    return script.most >= number


def test_memory_does_not_grow_from_ten_to_a_hundred_thousand_requests(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, (), ()) as here:
            await here.burst(10_000, at_once=32, max_tokens=1)
            await here.wait(here._at_rest)
            before = here.rss()
            await here.burst(90_000, at_once=32, max_tokens=1)
            await here.settled()
            after = here.rss()
            growth = after / before - 1
            tell("memory", here, before=f"{before / 1e6:.1f} MB", growth=f"{growth:.2%}")
            assert here.ended == {"completed": 100_000}
            assert growth <= 0.05

    uvloop.run(test())
