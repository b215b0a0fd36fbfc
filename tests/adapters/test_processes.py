"""Replica processes: real ones, of this program's own simulated engine, and of the shell."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from surgetank.adapters import procfs
from surgetank.adapters.engines import health, probe
from surgetank.adapters.llamacpp.model import write_tiny_gguf
from surgetank.adapters.processes import Processes, ProcessSpec, VariableSpec, end_other_pools
from surgetank.adapters.statedir import StateDir
from surgetank.errors import ConfigError

BOUND = 20.0  # seconds for what takes well under one on an idle machine
ENGINE = f"{shlex.quote(sys.executable)} -m surgetank engine --profile tiny-fast --port {{port}}"
SPEC = ProcessSpec(command=ENGINE, stop_timeout=5.0)


class Events:
    """Keeps what a fleet tells, with the time it was told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()

    def became_ready(self, replica: str, url: str) -> None:
        self.told.put_nowait(("became_ready", replica, url))

    def failed(self, replica: str, why: str) -> None:
        self.told.put_nowait(("failed", replica, why))

    def crashed(self, replica: str, why: str) -> None:
        self.told.put_nowait(("crashed", replica, why))

    def stopped(self, replica: str) -> None:
        self.told.put_nowait(("stopped", replica, ""))

    async def next(self) -> tuple[str, str, str]:
        async with asyncio.timeout(BOUND):
            return await self.told.get()


class Life:
    """One life of a controller: a fleet that has come up, and what it told."""

    def __init__(self, fleet: Processes, events: Events) -> None:
        self.fleet = fleet
        self.events = events
        self.found: list[tuple[str, str, bool]] = []

    def pid(self, replica: str) -> int:
        pid = self.fleet.pid(replica)
        assert pid is not None
        return pid

    async def ready(self, replica: str) -> str:
        self.fleet.start(replica, as_standby=False)
        event, name, url = await self.events.next()
        assert (event, name) == ("became_ready", replica), url
        return url


@asynccontextmanager
async def life(
    path: Path, spec: ProcessSpec = SPEC, *, name: str = "chat", keep: bool = False
) -> AsyncIterator[Life]:
    """A life that ends its replicas, or leaves them to the next one (`keep`)."""
    state = StateDir(path)
    try:
        fleet = Processes(spec, state, name)
        now = Life(fleet, Events())
        found = await fleet.adopt(now.events)
        now.found = [(f.replica, f.url, f.serving) for f in found]
        try:
            yield now
        finally:
            await fleet.close(keep=keep)
    finally:
        state.close()


def gone(pid: int) -> bool:
    ticks = procfs.start_ticks(pid)
    return ticks is None or not procfs.is_running(pid, ticks)


def wait_until_gone(pid: int) -> None:
    with procfs.held(pid) as pidfd:
        if pidfd is not None:
            assert asyncio.run(procfs.ended(pidfd, BOUND)), f"process {pid} still runs"


@contextmanager
def ending(*pids: int) -> Iterator[None]:
    """Whatever happens, these end."""
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def run(body: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 3 * BOUND))


def test_a_started_replica_becomes_ready_serves_and_stops(tmp_path: Path) -> None:
    async def body() -> None:
        async with life(tmp_path) as now:
            url = await now.ready("m-both-1")
            pid = now.pid("m-both-1")
            assert await health(url, 2.0) == "ready"
            assert os.getsid(pid) == pid  # a Ctrl-C of ours is not for it
            now.fleet.stop("m-both-1")
            assert await now.events.next() == ("stopped", "m-both-1", "")
            assert gone(pid)
            assert now.fleet.pid("m-both-1") is None

    run(body)


def test_closing_ends_every_replica_also_one_that_is_starting(tmp_path: Path) -> None:
    pids: list[int] = []

    async def body() -> None:
        async with life(tmp_path) as now:
            await now.ready("m-both-1")
            now.fleet.start("m-both-2", as_standby=True)
            pids.extend([now.pid("m-both-1"), now.pid("m-both-2")])

    run(body)
    assert [gone(pid) for pid in pids] == [True, True]


def test_a_crash_is_told_within_a_second_with_its_signal(tmp_path: Path) -> None:
    async def body() -> None:
        async with life(tmp_path) as now:
            await now.ready("m-both-1")
            at = time.monotonic()
            os.kill(now.pid("m-both-1"), signal.SIGKILL)
            event, replica, why = await now.events.next()
            assert time.monotonic() - at < 1.0
            assert (event, replica) == ("crashed", "m-both-1")
            assert why.startswith("ended with signal SIGKILL")

    run(body)


def test_uvloop_tells_the_same(tmp_path: Path) -> None:
    async def body() -> None:
        async with life(tmp_path) as now:
            await now.ready("m-both-1")
            await now.ready("m-both-2")
            os.kill(now.pid("m-both-1"), signal.SIGKILL)
            assert (await now.events.next())[:2] == ("crashed", "m-both-1")
            now.fleet.stop("m-both-2")
            assert await now.events.next() == ("stopped", "m-both-2", "")

    uvloop.run(body())


def test_a_start_that_fails_tells_its_status_and_last_words(tmp_path: Path) -> None:
    spec = ProcessSpec(command="sh -c 'echo one; echo no GPU on port {port} >&2; exit 3'")

    async def body() -> None:
        async with life(tmp_path, spec) as now:
            now.fleet.start("m-both-1", as_standby=False)
            event, _, why = await now.events.next()
            assert event == "failed"
            assert why.startswith("ended with status 3: no GPU on port ")
            now.fleet.start("m-both-1", as_standby=False)  # the name is free again
            assert (await now.events.next())[0] == "failed"

    run(body)


def test_last_words_are_of_this_life_only(tmp_path: Path) -> None:
    loud = ProcessSpec(command="sh -c 'echo an old complaint {port}; exit 1'")
    mute = ProcessSpec(command="sh -c 'exit 4' {port}")

    async def body(spec: ProcessSpec) -> str:
        async with life(tmp_path, spec) as now:
            now.fleet.start("m-both-1", as_standby=False)
            return (await now.events.next())[2]

    assert "an old complaint" in asyncio.run(body(loud))
    assert asyncio.run(body(mute)) == "ended with status 4"


def test_a_replica_that_ignores_sigterm_is_killed_after_its_bound(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    words = [sys.executable, "-c", stubborn + "signal.pause()", "{port}"]
    command = shlex.join(words)
    spec = ProcessSpec(command=command, stop_timeout=0.3)

    async def body() -> None:
        async with life(tmp_path, spec) as now:
            now.fleet.start("m-both-1", as_standby=False)
            pid = now.pid("m-both-1")
            log = tmp_path / "logs" / "m-both-1.log"
            await until(lambda: log.read_text() == "1\n")
            now.fleet.stop("m-both-1")
            assert await now.events.next() == ("stopped", "m-both-1", "")
            assert gone(pid)

    run(body)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 - of another process: nothing to wait on
            await asyncio.sleep(0.01)


def test_children_of_a_replica_end_with_it(tmp_path: Path) -> None:
    spec = ProcessSpec(command="sh -c 'sleep 600 & echo $! {port}; wait'", stop_timeout=5.0)

    async def body() -> None:
        async with life(tmp_path, spec) as now:
            now.fleet.start("m-both-1", as_standby=False)
            log = tmp_path / "logs" / "m-both-1.log"
            await until(lambda: log.read_text().endswith("\n"))
            worker = int(log.read_text().split()[0])
            with ending(worker):
                os.kill(now.pid("m-both-1"), signal.SIGKILL)
                assert (await now.events.next())[0] == "failed"
                await until(lambda: gone(worker))

    run(body)


def test_stopping_one_that_is_unknown_says_stopped(tmp_path: Path) -> None:
    async def body() -> None:
        async with life(tmp_path) as now:
            now.fleet.stop("never")
            assert await now.events.next() == ("stopped", "never", "")

    run(body)


def test_environment_and_words_are_filled_in(tmp_path: Path) -> None:
    command = "sh -c 'echo $AT $NAME $0 \"$1\"; exit 1' {replica} '{\"json\": 1}'"
    variables = (VariableSpec("AT", "{port}"), VariableSpec("NAME", "x y"))
    spec = ProcessSpec(command=command, environment=variables)

    async def body() -> None:
        async with life(tmp_path, spec) as now:
            now.fleet.start("m/8b-both-1", as_standby=False)
            _, _, why = await now.events.next()
            words = why.removeprefix("ended with status 1: ")
            assert words.partition(" ")[2] == 'x y m/8b-both-1 {"json": 1}'
            assert 1024 <= int(words.split()[0]) < 65536

    run(body)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (ProcessSpec(), "command: is missing"),
        (ProcessSpec(command="sh -c true"), r"must have \{port\}"),
        (ProcessSpec(command="sh 'unclosed {port}"), "No closing quotation"),
        (ProcessSpec(command="no-such-engine --port {port}"), "no program 'no-such-engine'"),
        (ProcessSpec(command="sh {port}", cwd="/nowhere"), "is not a directory"),
    ],
)
def test_a_command_that_cannot_run_is_refused_at_once(
    tmp_path: Path, spec: ProcessSpec, says: str
) -> None:
    state = StateDir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        Processes(spec, state, "chat")
    state.close()


# Another life.


def test_replicas_kept_are_adopted_as_what_they_were(tmp_path: Path) -> None:
    async def first() -> tuple[list[int], list[str]]:
        async with life(tmp_path, keep=True) as now:
            urls = [await now.ready("m-both-1"), await now.ready("m-both-2")]
            now.fleet.attach("m-both-2")
            return [now.pid("m-both-1"), now.pid("m-both-2")], urls

    async def second(pids: list[int], urls: list[str]) -> None:
        async with life(tmp_path) as now:
            assert sorted(now.found) == [
                ("m-both-1", urls[0], False),
                ("m-both-2", urls[1], True),
            ]
            assert [now.pid("m-both-1"), now.pid("m-both-2")] == pids
            os.kill(pids[0], signal.SIGKILL)  # one adopted is watched as one started
            event, replica, _ = await now.events.next()
            assert (event, replica) == ("crashed", "m-both-1")

    pids, urls = asyncio.run(first())
    with ending(*pids):
        run(lambda: second(pids, urls))
        assert [gone(pid) for pid in pids] == [True, True]


def test_one_that_ends_while_the_others_are_adopted_is_told_after_it_was_found(
    tmp_path: Path,
) -> None:
    async def first() -> list[int]:
        async with life(tmp_path, keep=True) as now:
            await now.ready("m-both-1")
            await now.ready("m-both-2")
            return [now.pid("m-both-1"), now.pid("m-both-2")]

    async def second(pids: list[int]) -> None:
        state = StateDir(tmp_path)
        fleet, events = Processes(SPEC, state, "chat"), Events()
        adopting = asyncio.create_task(fleet.adopt(events))
        with ending(*pids):
            await asyncio.sleep(0)  # it has begun: health is being asked
            os.kill(pids[0], signal.SIGKILL)
            found = [f.replica for f in await adopting]
            assert events.told.empty()
            assert "m-both-2" in found
            if "m-both-1" in found:
                assert (await events.next())[:2] == ("crashed", "m-both-1")
            await fleet.close(keep=False)
        state.close()

    pids = asyncio.run(first())
    with ending(*pids):
        asyncio.run(second(pids))
        assert [gone(pid) for pid in pids] == [True, True]


def test_a_replica_that_no_longer_answers_is_ended_not_adopted(tmp_path: Path) -> None:
    async def first() -> int:
        async with life(tmp_path, keep=True) as now:
            await now.ready("m-both-1")
            return now.pid("m-both-1")

    async def second() -> None:
        spec = replace(SPEC, health_timeout=0.3, stop_timeout=0.3)
        async with life(tmp_path, spec) as now:
            assert now.found == []

    pid = asyncio.run(first())
    with ending(pid):
        os.kill(pid, signal.SIGSTOP)  # alive, and silent; SIGTERM waits as well
        run(second)
        assert gone(pid)


def test_a_replica_of_another_command_is_ended(tmp_path: Path) -> None:
    async def one(spec: ProcessSpec, *, keep: bool) -> tuple[int, list[Any]]:
        async with life(tmp_path, spec, keep=keep) as now:
            if keep:
                await now.ready("m-both-1")
            return now.fleet.pid("m-both-1") or 0, now.found

    pid, _ = asyncio.run(one(SPEC, keep=True))
    with ending(pid):
        other = replace(SPEC, command=ENGINE + " --seed 1")
        assert asyncio.run(one(other, keep=False)) == (0, [])
        assert gone(pid)


def test_a_stranger_with_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger, ending(stranger.pid):
        ticks = procfs.start_ticks(stranger.pid)
        assert ticks is not None
        row = {"id": "m-both-1", "pid": stranger.pid, "port": 1, "state": "serving"}
        value = {
            "boot": procfs.boot_id(),
            "command": SPEC.command,
            "replicas": [row | {"ticks": ticks - 1}],
        }
        (tmp_path / "replicas-chat.json").write_text(json.dumps(value))

        async def body() -> None:
            async with life(tmp_path) as now:
                assert now.found == []

        run(body)
        assert stranger.poll() is None


def test_a_replica_whose_file_was_lost_is_found_by_its_mark_and_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def first() -> int:
        async with life(tmp_path, keep=True) as now:
            await now.ready("m-both-1")
            return now.pid("m-both-1")

    async def second() -> None:
        async with life(tmp_path) as now:
            assert now.found == []

    pid = asyncio.run(first())
    with ending(pid):
        (tmp_path / "replicas-chat.json").write_text("{torn")
        run(second)
        wait_until_gone(pid)
    said = [r.getMessage() for r in caplog.records if "not used" in r.getMessage()]
    assert len(said) == 1
    assert "replicas-chat.json" in said[0]


def test_replicas_of_a_pool_that_is_no_more_are_ended(tmp_path: Path) -> None:
    async def first() -> int:
        async with life(tmp_path, name="gone", keep=True) as now:
            await now.ready("m-both-1")
            return now.pid("m-both-1")

    pid = asyncio.run(first())
    with ending(pid):
        state = StateDir(tmp_path)
        end_other_pools(state, {"gone"})
        assert not gone(pid)
        end_other_pools(state, {"chat"})
        wait_until_gone(pid)
        state.close()


def test_a_second_server_on_one_state_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    first = StateDir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        StateDir(tmp_path)
    assert f"in use by another surgetank (process {os.getpid()})" in str(caught.value)
    assert "\n" not in str(caught.value)
    first.close()
    StateDir(tmp_path).close()


def test_the_state_is_its_owners_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with life(tmp_path / "state") as now:
            await now.ready("m-both-1")

    run(body)
    state = tmp_path / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    files = [path for path in state.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.name for path in files} == {
        "id",
        "lock",
        "replicas-chat.json",
        "m-both-1.log",
    }


# The controller's sudden end, with a process of its own.

SUPERVISOR = """
import asyncio, sys
from surgetank.adapters.processes import Processes, ProcessSpec
from surgetank.adapters.statedir import StateDir

class Events:
    def became_ready(self, replica, url):
        fleet.attach(replica)
        state.flush()  # it is written from a thread: what was not yet is lost to a kill
        print(fleet.pid(replica), url, flush=True)

async def main():
    global fleet, state
    state = StateDir(sys.argv[1])
    fleet = Processes(ProcessSpec(command=sys.argv[2]), state, "chat")
    await fleet.adopt(Events())
    fleet.start("m-both-1", as_standby=False)
    fleet.start("m-both-2", as_standby=False)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_after_kill_9_of_the_controller_its_replicas_are_adopted(tmp_path: Path) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(tmp_path), ENGINE],
            stdout=subprocess.PIPE,
            text=True,
        ) as supervisor,
        ending(supervisor.pid),
    ):
        assert supervisor.stdout is not None
        lines = [supervisor.stdout.readline().split() for _ in range(2)]
    pids = [int(pid) for pid, _ in lines]
    with ending(*pids):
        assert not any(gone(pid) for pid in pids)

        async def body() -> None:
            async with life(tmp_path) as now:
                assert sorted(url for _, url, _ in now.found) == sorted(url for _, url in lines)
                assert [serving for _, _, serving in now.found] == [True, True]
                for _, url in lines:
                    assert await health(url, 2.0) == "ready"

        run(body)
        assert all(gone(pid) for pid in pids)


def test_replicas_that_were_starting_at_a_kill_9_are_ended(tmp_path: Path) -> None:
    slow = ENGINE + " --cold-start 600"
    say = "print(fleet.pid('m-both-1'), fleet.pid('m-both-2'), flush=True)"
    text = SUPERVISOR.replace("    await asyncio.Event", f"    {say}\n    await asyncio.Event")
    with (
        subprocess.Popen(
            [sys.executable, "-c", text, str(tmp_path), slow], stdout=subprocess.PIPE, text=True
        ) as supervisor,
        ending(supervisor.pid),
    ):
        assert supervisor.stdout is not None
        pids = [int(pid) for pid in supervisor.stdout.readline().split()]
    with ending(*pids):

        async def body() -> None:
            async with life(tmp_path, replace(SPEC, command=slow)) as now:
                assert now.found == []

        run(body)
        assert [gone(pid) for pid in pids] == [True, True]


def test_a_llama_cpp_server_is_a_replica_as_any_other(tmp_path: Path) -> None:
    for module in ("xllamacpp", "gguf", "numpy"):
        pytest.importorskip(module, reason="the demo extra is not installed")
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)
    words = [sys.executable, "-m", "surgetank.adapters.llamacpp.server", str(model)]
    spec = ProcessSpec(command=shlex.join(words) + " --port {port}", stop_timeout=5.0)

    async def first() -> int:
        async with life(tmp_path / "state", spec, keep=True) as now:
            url = await now.ready("tiny-both-1")
            facts = await probe(url, timeout=5.0)
            assert facts.dialect == "llamacpp"
            now.fleet.attach("tiny-both-1")
            return now.pid("tiny-both-1")

    async def second() -> None:
        async with life(tmp_path / "state", spec) as now:
            assert [(name, serving) for name, _, serving in now.found] == [("tiny-both-1", True)]
            assert now.pid("tiny-both-1") == pid
            now.fleet.stop("tiny-both-1")
            assert await now.events.next() == ("stopped", "tiny-both-1", "")

    pid = asyncio.run(first())
    with ending(pid):
        run(second)
        assert gone(pid)
