"""The loop on a real event loop, with real replica processes behind a real FlowControl."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surgetank.adapters import procfs
from surgetank.adapters.learned import Learned
from surgetank.adapters.processes import Processes, ProcessSpec
from surgetank.adapters.statedir import StateDir
from surgetank.autoscaler.controller import PoolController, Sinks
from surgetank.autoscaler.loop import Autoscaler
from surgetank.autoscaler.ports import FlowObserver
from surgetank.autoscaler.spec import AutoscaleSpec, PoolConfig
from surgetank.policy.flow import FlowControl
from surgetank.policy.flowspec import FlowSpec
from surgetank.policy.ingress import Ingress
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.replica import Replica, Role

BOUND = 20.0  # seconds for what takes well under one on an idle machine
ENGINE = shlex.join([sys.executable, "-m", "surgetank", "engine", "--profile", "tiny-fast"])
POOL = PoolConfig(
    "tiny",
    max_replicas=3,
    base=2,
    process=ProcessSpec(command=f"{ENGINE} --cold-start 0.2 --port {{port}}", stop_timeout=5.0),
    scale=ScaleSpec(standbys=0, max_standbys=0),
)


class FlowRouting:
    """Routes by telling FlowControl, as the gateway does; its requests end at once."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        self.attached: dict[str, str] = {}
        self._urls: dict[str, str] = {}
        self._clock = asyncio.get_running_loop().time

    def add(self, replica: str, url: str) -> None:
        self._urls[replica] = url

    def attach(self, replica: str) -> None:
        self.attached[replica] = self._urls[replica]
        self._flow.join(Replica(replica, "tiny"), self._clock())

    def expect(self, seconds: Sequence[float]) -> None:
        now = self._clock()
        self._flow.expect("tiny", [now + s for s in seconds], now)

    def detach(self, replica: str) -> None:
        self.attached.pop(replica, None)
        self._flow.leave(replica, self._clock())

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        self.detach(replica)
        drained(replica)

    def remove(self, replica: str) -> None:
        self.detach(replica)
        self._urls.pop(replica, None)


class Life:
    """One life of a server's autoscaler."""

    def __init__(self, state: StateDir, spec: AutoscaleSpec) -> None:
        self.pool = spec.pools[0]
        self.learned = Learned(state)
        self.lines: list[dict[str, Any]] = []
        self.flow = self.learned.use(
            "flow", lambda kept: FlowControl(FlowSpec(), models=["tiny"], learned=kept)
        )
        self.routing = FlowRouting(self.flow)
        self.fleet = Processes(self.pool.process, state, self.pool.name)
        controller = self.learned.use(f"pool {self.pool.name}", self.controller)
        self.autoscaler = Autoscaler(
            spec,
            [controller],
            learned=self.learned,
            also=lambda: {"flow": self.flow.learned()},
        )

    def controller(self, kept: Any) -> PoolController:
        return PoolController(
            self.pool,
            observer=FlowObserver(self.flow),
            routing=self.routing,
            fleet=self.fleet,
            clock=asyncio.get_running_loop().time,
            sinks=Sinks(decision=lambda line: self.lines.append(json.loads(line))),
            draw=lambda: 0.0,
            learned=kept,
        )

    async def until(self, condition: Callable[[], bool], bound: float = BOUND) -> None:
        async with asyncio.timeout(bound):
            while not condition():  # noqa: ASYNC110 - other processes bring it about
                await asyncio.sleep(0.01)

    def pids(self) -> list[int]:
        return [self.fleet.pid(replica) or 0 for replica in sorted(self.routing.attached)]


@asynccontextmanager
async def life(path: Path, *, pool: PoolConfig = POOL, keep: bool = False) -> AsyncIterator[Life]:
    state = StateDir(path)
    try:
        spec = AutoscaleSpec((pool,), interval=0.05, state_dir=str(path), keep_replicas=keep)
        now = Life(state, spec)
        await now.autoscaler.start()
        try:
            yield now
        finally:
            await now.autoscaler.stop()
    finally:
        state.close()


def ended(pid: int) -> bool:
    ticks = procfs.start_ticks(pid)
    return ticks is None or not procfs.is_running(pid, ticks)


def test_the_base_serves_a_crash_is_seen_within_a_second_and_replaced(tmp_path: Path) -> None:
    pids: list[int] = []

    async def body() -> None:
        async with life(tmp_path) as now:
            attached = now.routing.attached
            await now.until(lambda: len(attached) == 2)
            pids.extend(now.pids())
            os.kill(pids[0], signal.SIGKILL)
            await now.until(lambda: sorted(attached) == ["tiny-both-2"], bound=1.0)
            await now.until(lambda: sorted(attached) == ["tiny-both-2", "tiny-both-3"])
            pids.extend(now.pids())
        kinds = [line["event"] for line in now.lines if "event" in line]
        assert kinds.count("crashed") == 1
        assert kinds.count("became_ready") == 3

    asyncio.run(body())
    assert all(ended(pid) for pid in pids)
    learned = json.loads((tmp_path / "learned.json").read_text(encoding="utf-8"))
    starts = learned["parts"]["pool tiny/both"]["starts"]
    assert len(starts) == 3
    assert all(0.2 <= seconds < BOUND for seconds in starts)
    assert set(learned["parts"]["flow"]) == {"prompts", "outputs", "models"}


def test_the_next_life_goes_on_with_the_replicas_and_with_what_was_learnt(tmp_path: Path) -> None:
    async def first() -> list[int]:
        async with life(tmp_path, keep=True) as now:
            await now.until(lambda: len(now.routing.attached) == 2)
            return now.pids()

    async def second(pids: list[int]) -> None:
        async with life(tmp_path) as now:
            assert now.pids() == pids
            await now.until(lambda: len([x for x in now.lines if "plan" in x]) >= 3)
            seen = next(x["observation"] for x in now.lines if "plan" in x)
            assert seen["serving"] == 2
            assert seen["start_time"] >= 0.2
            assert [x["event"] for x in now.lines if "event" in x] == ["adopted", "adopted"]
            assert not any(x["effects"] for x in now.lines)

    pids = asyncio.run(first())
    try:
        assert not any(ended(pid) for pid in pids)
        asyncio.run(second(pids))
        assert all(ended(pid) for pid in pids)
    finally:
        for pid in pids:
            if not ended(pid):
                os.kill(pid, signal.SIGKILL)


def test_starts_that_fail_are_backed_off_and_leave_nothing(tmp_path: Path) -> None:
    failing = ProcessSpec(command="sh -c 'echo no GPU; exit 3' {port}")
    pool = replace(POOL, base=1, process=failing)

    def failures(now: Life) -> list[dict[str, Any]]:
        return [line for line in now.lines if line.get("event") == "failed"]

    async def body() -> None:
        async with life(tmp_path, pool=pool) as now:
            await now.until(lambda: len(failures(now)) == 3)
        lines = failures(now)
        assert {line["why"] for line in lines} == {"ended with status 3: no GPU"}
        first, second, third = (line["now"] for line in lines)
        assert second - first >= 0.49  # the first delay is 1 s, half of it drawn, here 0
        assert third - second >= 0.99
        assert now.fleet.pid("tiny-both-3") is None

    asyncio.run(body())
    assert json.loads((tmp_path / "replicas-tiny%2Fboth.json").read_text())["replicas"] == []


class Broken:
    """An Observer that fails once, at its first reading."""

    def __init__(self) -> None:
        self.asked = 0

    def read(self, model: str, role: Role, now: float) -> Sequence[Ingress]:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("no answer")
        return []


def test_a_tick_that_fails_is_logged_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> int:
        observer = Broken()
        controller = PoolController(
            POOL,
            observer=observer,
            routing=FlowRouting(FlowControl(FlowSpec())),
            fleet=None,
            clock=asyncio.get_running_loop().time,
        )
        autoscaler = Autoscaler(AutoscaleSpec(interval=0.01), [controller])
        await autoscaler.start()
        async with asyncio.timeout(BOUND):
            while observer.asked < 3:  # noqa: ASYNC110 - the loop under test runs beside this
                await asyncio.sleep(0.005)
        await autoscaler.stop()
        return observer.asked

    assert asyncio.run(body()) >= 3
    assert [r.getMessage() for r in caplog.records] == ["pool tiny/both: this tick failed"]
