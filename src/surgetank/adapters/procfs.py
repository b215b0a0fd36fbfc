"""Which process a process id means: told by its start time, held on to by a pidfd.

Rule: a pid alone names nobody, since it is used again. Nothing is signalled before its identity was
read through /proc while a pidfd was already open, and then only through that pidfd.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_STATE: Final = 0  # fields 3 and 22 of proc_pid_stat(5), counted after the name
_START: Final = 19
_DEAD: Final = frozenset("ZX")


def boot_id() -> str:
    """Return the id of this boot of the machine: start times count from it."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone."""
    found = _stat(pid)
    return None if found is None else int(found[_START])


def is_running(pid: int, ticks: int) -> bool:
    """Tell whether the process that started then still runs; a zombie does not."""
    found = _stat(pid)
    return found is not None and int(found[_START]) == ticks and found[_STATE] not in _DEAD


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # its name, in brackets, may hold anything


def environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty when it may not be read."""
    try:
        data = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in data.decode("utf-8", "replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def marked(name: str, value: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Find the processes started with NAME=VALUE in their environment, and those of theirs."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            variables = environment(int(entry.name))
            if variables.get(name) == value:
                yield int(entry.name), variables


@contextmanager
def held(pid: int) -> Iterator[int | None]:
    """Hold on to whatever process has this pid now; gives its pidfd, None when there is none."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def send(pidfd: int, number: signal.Signals) -> None:
    """Signal exactly the process held; one that has ended is left alone."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


async def ended(pidfd: int, bound: float) -> bool:
    """Wait until the process held has ended, at most `bound` seconds; tell whether it has."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        async with asyncio.timeout(bound):
            await over.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True
