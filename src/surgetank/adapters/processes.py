"""Replicas as processes of this machine, started from a command line.

Rule: what is started is marked in its environment and written down, so that a later life of the
controller finds every process again: healthy ones are adopted, the others ended, and a stranger
with a reused pid is left alone. The end of a process is an event of the kernel (pidfd), never the
answer to a poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from surgetank.adapters import procfs
from surgetank.adapters.engines import health
from surgetank.adapters.fleet import FleetEvents, Found
from surgetank.adapters.outputlog import OutputLog
from surgetank.adapters.statedir import StateDir
from surgetank.errors import ConfigError

log = logging.getLogger("surgetank.processes")

_HOST: Final = "127.0.0.1"
_FIRST_PAUSE: Final = 0.05  # seconds between two questions of health, growing
_LONGEST_PAUSE: Final = 1.0
_GROWTH: Final = 1.3
_TRIM_INTERVAL: Final = 5.0  # seconds between two looks at the sizes of the logs
_KILL_BOUND: Final = 10.0  # seconds for the kernel to end what was killed
_FLEET: Final = "SURGETANK_FLEET"  # marks in the environment of all that is started
_POOL: Final = "SURGETANK_POOL"
_REPLICA: Final = "SURGETANK_REPLICA"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """One variable of a replica's environment."""

    name: str  # such as CUDA_VISIBLE_DEVICES
    value: str = ""  # as it is; {port} and {replica} are filled in


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How a replica is started on this machine."""

    # quoted as in a shell, but run without one; {port} is a free port, {replica} the replica's id;
    command: str = ""  # such as `vllm serve MODEL --port {port}`; without one, none is started
    cwd: str | None = None  # directory it runs in; otherwise the server's own
    environment: tuple[VariableSpec, ...] = ()  # beside the server's own variables
    stop_timeout: float = 30.0  # from SIGTERM to SIGKILL; vLLM needs some seconds to free its GPUs
    health_timeout: float = 2.0  # for one answer to /health
    max_log_bytes: int = 8 << 20  # of each replica's output; the older half is cut off beyond it


@dataclass(slots=True)
class _Process:
    id: str
    port: int
    state: Literal["starting", "standby", "serving", "stopping"]
    output: OutputLog
    pid: int = 0
    ticks: int = -1
    pidfd: int = -1
    child: subprocess.Popen[bytes] | None = None  # None: adopted, so that its parent is another
    waiting: asyncio.Task[None] | None = None  # for its health
    kill_timer: asyncio.TimerHandle | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"


class Processes:
    """The Fleet of one pool on this machine. `name`: the pool's, unique in its state directory."""

    def __init__(self, spec: ProcessSpec, state: StateDir, name: str) -> None:
        """Raises ConfigError for a command that cannot be run."""
        self._spec = spec
        self._command = _command(spec)
        self._state = state
        self._name = name
        self._file = f"replicas-{quote(name, safe='')}.json"
        self._processes: dict[str, _Process] = {}
        self._used_ports: set[int] = set()
        self._events: FleetEvents | None = None
        self._trim_timer: asyncio.TimerHandle | None = None
        self._closed = False

    # The port.

    async def adopt(self, events: FleetEvents) -> Sequence[Found]:
        """Take over the healthy replicas of an earlier life, and end whatever else is left of it.

        Healthy: the process of that pid started when it is written, was ready then, runs the same
        command, and answers its health check now.
        """
        self._events = events
        kept = self._state.read(self._file)
        rows = kept.get("replicas") if kept.get("boot") == procfs.boot_id() else None
        same = kept.get("command") == self._spec.command
        rows = [row for row in rows if _is_row(row)] if isinstance(rows, list) else []
        taken = await asyncio.gather(*(self._take_over(row) for row in rows if same))
        adopted = [process for process in taken if process is not None]
        await self._end_the_rest(rows, {process.id for process in adopted})
        for process in adopted:
            log.info("replica %s (process %d) is adopted", process.id, process.pid)
            self._processes[process.id] = process
            self._watch(process, process.pidfd)  # last: its end is told after it was found
        self._save()
        self._trim()
        return [Found(p.id, p.url, serving=p.state == "serving") for p in adopted]

    def start(self, replica: str, *, as_standby: bool) -> None:
        """Start it; `as_standby` makes no difference to a process."""
        del as_standby
        port = self._free_port()
        output = OutputLog(self._log_path(replica), self._spec.max_log_bytes)
        process = _Process(replica, port, "starting", output)
        self._processes[replica] = process
        self._save()
        try:
            self._spawn(process)
        except (OSError, ValueError) as error:
            if process.child is not None:  # it runs, and could not be held on to
                process.child.kill()
                process.child.wait()
            self._forget(process)
            why = f"{self._command[0]}: cannot be started: {error}"
            asyncio.get_running_loop().call_soon(self._tell_failed, replica, why)
            return
        self._save()
        process.waiting = asyncio.get_running_loop().create_task(self._await_health(process))

    def attach(self, replica: str) -> None:
        self._note(replica, "serving")

    def detach(self, replica: str) -> None:
        self._note(replica, "standby")

    def stop(self, replica: str) -> None:
        """SIGTERM to the process, then SIGKILL to its group; a second call kills at once."""
        process = self._processes.get(replica)
        loop = asyncio.get_running_loop()
        if process is None:
            loop.call_soon(self._tell_stopped, replica)
        elif process.state == "stopping":
            self._kill(process)
        else:
            self._terminate(process)
            self._save()

    async def close(self, *, keep: bool) -> None:
        """Let go of the replicas, or end them; none is left then but those the kernel holds."""
        self._closed = True
        if self._trim_timer is not None:
            self._trim_timer.cancel()
        processes = list(self._processes.values())
        if keep:
            for process in processes:
                self._let_go(process)
            return
        for process in processes:
            if process.state != "stopping":
                self._terminate(process)
        self._save()
        bound = self._spec.stop_timeout + _KILL_BOUND
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound):
                await asyncio.gather(*(process.gone.wait() for process in processes))
        for process in self._processes.values():
            log.error("replica %s (process %d) did not end", process.id, process.pid)
            self._let_go(process)

    def pid(self, replica: str) -> int | None:
        """Return a replica's process id; None when it has none."""
        process = self._processes.get(replica)
        return process.pid if process is not None and process.pid else None

    # Starting.

    def _spawn(self, process: _Process) -> None:
        fill = partial(_fill, port=process.port, replica=process.id)
        added = {v.name: fill(v.value) for v in self._spec.environment}
        marks = {_FLEET: self._state.id, _POOL: self._name, _REPLICA: process.id}
        output = process.output.open()
        try:
            process.child = subprocess.Popen(  # noqa: S603 - the operator's own command, no shell
                [fill(word) for word in self._command],
                cwd=self._spec.cwd,
                env=os.environ | added | marks,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C of the server is not for it; one group to kill
            )
        finally:
            os.close(output)
        process.pid = process.child.pid
        process.ticks = procfs.start_ticks(process.pid) or -1  # there: nobody has waited for it
        self._watch(process, os.pidfd_open(process.pid))

    def _watch(self, process: _Process, pidfd: int) -> None:
        process.pidfd = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._ended, process)

    async def _await_health(self, process: _Process) -> None:
        pause = _FIRST_PAUSE
        while await health(process.url, self._spec.health_timeout) != "ready":
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * _GROWTH)
        process.waiting = None
        process.state = "standby"
        self._save()
        if self._events is not None and not self._closed:
            self._events.became_ready(process.id, process.url)

    def _free_port(self) -> int:
        """Find one that nobody listens on, and that was not just given to another replica."""
        in_use = {p.port for p in self._processes.values()} | self._used_ports
        for _ in range(100):
            with socket.socket() as probe:
                probe.bind((_HOST, 0))
                port: int = probe.getsockname()[1]
            if port not in in_use:
                break
        self._used_ports = {port}
        return port

    # Ending.

    def _terminate(self, process: _Process) -> None:
        process.state = "stopping"
        if process.waiting is not None:
            process.waiting.cancel()
            process.waiting = None
        procfs.send(process.pidfd, signal.SIGTERM)
        later = asyncio.get_running_loop().call_later
        process.kill_timer = later(self._spec.stop_timeout, self._kill, process)

    def _kill(self, process: _Process) -> None:
        log.warning("replica %s did not end on SIGTERM, and is killed", process.id)
        procfs.send(process.pidfd, signal.SIGKILL)

    def _ended(self, process: _Process) -> None:
        """Its pidfd says that it has ended: end what it started, then tell."""
        code = self._reap(process)
        state = process.state
        self._forget(process)
        words = process.output.last_words()
        why = f"ended with {code}" + (f": {words}" if words else "")
        if state == "stopping":
            self._tell_stopped(process.id)
        elif state == "starting":
            self._tell_failed(process.id, why)
        elif self._events is not None and not self._closed:
            self._events.crashed(process.id, why)

    def _reap(self, process: _Process) -> str:
        """End the rest of its group; return how it ended, in words."""
        if process.child is None:  # another parent has waited for it: the group may be no more ours
            for pid in self._of_replica(process.id):
                self._kill_marked(pid)
            return "an unknown status"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # a zombie still keeps the number from reuse
        code = process.child.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"

    def _forget(self, process: _Process) -> None:
        self._release(process)
        self._processes.pop(process.id, None)
        self._save()
        process.gone.set()

    def _release(self, process: _Process) -> None:
        for pending in (process.waiting, process.kill_timer):
            if pending is not None:
                pending.cancel()
        if process.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = -1

    def _let_go(self, process: _Process) -> None:
        self._release(process)
        if process.child is not None and process.child.returncode is None:
            process.child.returncode = 0  # else Popen warns that it still runs, which is meant

    # Finding again.

    async def _take_over(self, row: dict[str, Any]) -> _Process | None:
        """Adopt the replica of a row of the state file; None when it is not to be adopted."""
        if row["state"] not in {"standby", "serving"}:
            return None
        output = OutputLog(self._log_path(row["id"]), self._spec.max_log_bytes)
        process = _Process(row["id"], row["port"], row["state"], output, row["pid"], row["ticks"])
        with procfs.held(process.pid) as pidfd:
            if pidfd is None or not procfs.is_running(process.pid, process.ticks):
                return None
            if await health(process.url, self._spec.health_timeout) != "ready":
                log.warning("replica %s (process %d) is not healthy", process.id, process.pid)
                return None
            process.pidfd = os.dup(pidfd)
        return process

    async def _end_the_rest(self, rows: Iterable[dict[str, Any]], adopted: Collection[str]) -> None:
        written = {r["pid"]: r["ticks"] for r in rows if r["id"] not in adopted}
        leaders = [pid for pid, ticks in written.items() if procfs.is_running(pid, ticks)]
        bound = self._spec.stop_timeout
        await asyncio.gather(*(_end(pid, written[pid], bound) for pid in leaders))
        for pid, variables in list(procfs.marked(_FLEET, self._state.id)):
            if variables.get(_POOL) == self._name and variables.get(_REPLICA) not in adopted:
                self._kill_marked(pid)

    def _of_replica(self, replica: str) -> list[int]:
        found = procfs.marked(_FLEET, self._state.id)
        return [pid for pid, variables in found if variables.get(_REPLICA) == replica]

    def _kill_marked(self, pid: int) -> None:
        """Kill a process that bears our mark; looked at again once it is held."""
        with procfs.held(pid) as pidfd:
            if pidfd is not None and procfs.environment(pid).get(_FLEET) == self._state.id:
                log.warning("process %d was left behind by a replica, and is killed", pid)
                procfs.send(pidfd, signal.SIGKILL)

    # Writing down.

    def _note(self, replica: str, state: Literal["standby", "serving"]) -> None:
        process = self._processes.get(replica)
        if process is not None and process.state in {"standby", "serving"}:
            process.state = state
            self._save()

    def _save(self) -> None:
        rows = [
            {"id": p.id, "pid": p.pid, "ticks": p.ticks, "port": p.port, "state": p.state}
            for p in self._processes.values()
        ]
        value = {
            "v": _VERSION,
            "boot": procfs.boot_id(),
            "command": self._spec.command,
            "replicas": rows,
        }
        self._state.put(self._file, value)

    def _trim(self) -> None:
        for process in self._processes.values():
            process.output.trim()
        later = asyncio.get_running_loop().call_later
        self._trim_timer = later(_TRIM_INTERVAL, self._trim)

    def _log_path(self, replica: str) -> Path:
        return self._state.path / "logs" / f"{quote(replica, safe='')}.log"

    # Telling.

    def _tell_failed(self, replica: str, why: str) -> None:
        if self._events is not None and not self._closed:
            self._events.failed(replica, why)

    def _tell_stopped(self, replica: str) -> None:
        if self._events is not None and not self._closed:
            self._events.stopped(replica)


def end_other_pools(state: StateDir, pools: Collection[str]) -> None:
    """End at once the replicas of pools that the configuration has no more."""
    for pid, variables in list(procfs.marked(_FLEET, state.id)):
        if variables.get(_POOL) in pools:
            continue
        with procfs.held(pid) as pidfd:
            if pidfd is not None and procfs.environment(pid).get(_FLEET) == state.id:
                log.warning("process %d belongs to no pool any more, and is killed", pid)
                procfs.send(pidfd, signal.SIGKILL)


async def _end(pid: int, ticks: int, bound: float) -> None:
    """End a process of an earlier life: SIGTERM, then SIGKILL after `bound` seconds."""
    with procfs.held(pid) as pidfd:
        if pidfd is None or not procfs.is_running(pid, ticks):
            return
        log.warning("process %d of an earlier life is ended", pid)
        procfs.send(pidfd, signal.SIGTERM)
        if not await procfs.ended(pidfd, bound):
            procfs.send(pidfd, signal.SIGKILL)
            await procfs.ended(pidfd, _KILL_BOUND)


def _command(spec: ProcessSpec) -> list[str]:
    try:
        words = shlex.split(spec.command)
    except ValueError as error:
        raise ConfigError(f"command = {spec.command!r}: {error}") from None
    if not words:
        raise ConfigError("command: is missing: give the program that starts a replica")
    variables = [variable.value for variable in spec.environment]
    if not any("{port}" in text for text in [*words, *variables]):
        raise ConfigError(
            f"command = {spec.command!r}: must have {{port}} where the replica's port goes"
        )
    if spec.cwd is not None and not Path(spec.cwd).is_dir():
        raise ConfigError(f"cwd = {spec.cwd!r}: is not a directory")
    if shutil.which(words[0]) is None and not (Path(spec.cwd or ".") / words[0]).is_file():
        raise ConfigError(f"command = {spec.command!r}: there is no program {words[0]!r}")
    return words


def _fill(text: str, *, port: int, replica: str) -> str:
    # Not str.format: engines take JSON on their command lines.
    return text.replace("{port}", str(port)).replace("{replica}", replica)


_ROW: Final = {"id": str, "pid": int, "ticks": int, "port": int, "state": str}


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and all(type(row.get(k)) is kind for k, kind in _ROW.items())
