"""The processes of a benchmark: their cores, what they say, and what they cost.

Rule: what is measured has a core to itself where there are two; what makes the load has the others.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxies import HERE, CannotRunError

_TICK = os.sysconf("SC_CLK_TCK")


class Peer:
    """The client or the upstream: a process of ours that speaks lines."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._name = script
        self._said = b""

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, timeout: float) -> str:
        """Return the next line; raises CannotRunError when none comes within `timeout` seconds."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._said:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                raise CannotRunError(f"{self._name} said nothing for {timeout:g} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise CannotRunError(f"{self._name} ended early; its error stands above")
            self._said += data
        line, self._said = self._said.split(b"\n", 1)
        return line.decode()

    def expect(self, event: str, timeout: float) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.hear(timeout))
        if said["event"] != event:
            raise CannotRunError(f"{self._name}: {said.get('message', said)}")
        return said


@contextmanager
def peer(script: str, *arguments: str) -> Iterator[Peer]:
    """Run a script of this folder until the block ends."""
    one = Peer(script, *arguments)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None:
                pipe.close()


def divide_cores() -> set[int]:
    """Leave the first core to what is measured, and return it; all cores where there is but one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return set(cores)
    os.sched_setaffinity(0, cores[1:])  # inherited by whatever is started from now on
    return {cores[0]}


def tree(pid: int) -> list[int]:
    """List a process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in _tasks(parent):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def cpu_seconds(pid: int) -> float:
    """Add up user and system time of a process and its descendants.

    utime + stime come in ticks of 10 ms; schedstat has the same in nanoseconds, but loses what
    threads that have ended used: the larger one is right to a tick in any case.
    """
    total = 0.0
    for one in tree(pid):
        user, system = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13]
        exact = sum(int((task / "schedstat").read_text().split()[0]) for task in _tasks(one))
        total += max((int(user) + int(system)) / _TICK, exact / 1e9)
    return total


def memory_mb(pid: int) -> float:
    """Add up the proportional set size of a process and its descendants, in MB."""
    total = 0
    for one in tree(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1000
