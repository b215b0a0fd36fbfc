"""Start the live page as a child process, and learn its address.

Rule: the child ends with its parent, however the parent ends: it watches a pipe that only the
parent holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Final

from surgetank.errors import SurgetankError

_READY_BOUND: Final = 20.0  # seconds; a start takes about half of one on an idle machine
_STOP_BOUND: Final = 5.0  # seconds until a child that does not end is killed


class DashboardError(SurgetankError):
    """The page did not start."""


class Dashboard:
    """A running page. `address`: http://HOST:PORT."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def stop(self) -> None:
        """End the child, and wait for it; harmless when it has ended already."""
        await _end(self._process)


async def start(
    source: str,
    *,
    token_file: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Dashboard:
    """Start the page of the gateway whose admin listener is `source`; port 0 takes a free one.

    Returns when it serves. Raises DashboardError, after the child has said why on standard error.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "surgetank.dashboard", "--with-parent", "--source", source),
        *("--host", host, "--port", str(port)),
        *(() if token_file is None else ("--token-file", str(token_file))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None  # noqa: S101 - asked for above
    try:
        async with asyncio.timeout(_READY_BOUND):
            line = (await process.stdout.readline()).decode()
    except BaseException as error:
        await _end(process)
        if isinstance(error, TimeoutError):
            raise DashboardError(f"the live page said nothing for {_READY_BOUND:g} s") from None
        raise
    word, _, address = line.strip().partition(" ")
    if word != "READY":
        await _end(process)
        raise DashboardError(f"the live page ended with exit code {process.returncode}")
    return Dashboard(process, address)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_BOUND):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    if process.stdin is not None:
        process.stdin.close()
