"""A gateway as a process of its own: started for one check, read, signalled and ended.

Rule: it leads a process group of its own, and on every way out nothing of that group is left. What
it prints is read to its end, so that it never blocks; the last lines are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from surgetank.adapters import procfs
from surgetank.adapters.http import FetchError, fetch
from surgetank.errors import InputError
from surgetank.studies.conformance.filling import Filled
from surgetank.studies.conformance.gauges import total
from surgetank.studies.conformance.targetfile import TargetFile

_ASK: Final = 0.05  # seconds between two looks at its readiness
_LINES: Final = 60
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class NotStarted(Exception):  # noqa: N818 - for some checks that is the right answer
    """It ended by itself, or was not ready in time; the message has its last words."""


def program(words: Sequence[str], folder: Path | None) -> tuple[str, ...]:
    """Find a command's program, in `folder` first, then on PATH. Raises InputError."""
    name = words[0]
    paths = os.environ.get("PATH", os.defpath)
    found = shutil.which(name, path=f"{folder}{os.pathsep}{paths}" if folder else paths)
    if found is None:
        where = f"{folder} or PATH" if folder else "PATH"
        raise InputError(f"{name}: there is no such program in {where}: install it, or name --bin")
    return (found, *words[1:])


class Process:
    """One start of a gateway. Times in seconds."""

    def __init__(self, target: TargetFile, filled: Filled, folder: Path, bin_: Path | None) -> None:
        self._target = target
        self._filled = filled
        self._folder = folder
        self._command = program(filled.command, bin_)
        self._bin = bin_
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=_LINES)

    async def start(self, replicas: int) -> None:
        """Start it and wait until it is ready, with all replicas where a gauge tells.

        Raises NotStarted, leaving nothing behind.
        """
        for name, text in self._filled.files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self._folder,
                env=_environment(self._filled.environment, self._bin),
                start_new_session=True,
            )
            assert self._process.stdout is not None  # noqa: S101 (asked for above)
            self._reading = asyncio.create_task(_read(self._process.stdout, self._said))
            await self._until_ready(replicas)
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    async def _until_ready(self, replicas: int) -> None:
        bound = self._target.ready_timeout
        try:
            async with asyncio.timeout(bound):
                while not await self._is_ready(replicas):
                    if self.exit_code is not None:
                        raise NotStarted(f"it ended with {self.exit_code}: {await self._words()}")
                    await asyncio.sleep(_ASK)
        except TimeoutError:
            raise NotStarted(f"not ready within {bound:g} s: {await self._words()}") from None

    async def readiness(self) -> int | None:
        """Ask whether it is ready; the status of its answer, None when it gives none."""
        try:
            return (await fetch(self._filled.ready, timeout=2.0)).status
        except FetchError:
            return None

    async def _is_ready(self, replicas: int) -> bool:
        if await self.readiness() != 200:
            return False
        ready = self._target.gauges.get("ready")
        return ready is None or (await self.gauge("ready") or 0) >= replicas

    async def gauge(self, name: str) -> float | None:
        """Read a gauge; None when the gateway does not tell it now."""
        try:
            answer = await fetch(self._filled.metrics, timeout=5.0)
        except FetchError:
            return None
        return total(answer.text, self._target.gauges[name]) if answer.status == 200 else None

    @property
    def pid(self) -> int:
        """The process id of the leader."""
        assert self._process is not None  # noqa: S101 (asked of a started one)
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None while it runs."""
        return None if self._process is None else self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Signal the leader."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self, seconds: float) -> int | None:
        """Wait until it has ended by itself; None when it has not."""
        assert self._process is not None  # noqa: S101 (asked of a started one)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return self._process.returncode

    def memory(self) -> int:
        """Bytes in memory (RSS) of the whole group."""
        return sum(_resident(pid) for pid in _group(self.pid))

    async def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL for whatever of its group is left."""
        process = self._process
        if process is None:
            return
        try:
            self.signal(signal.SIGTERM)
            await self.ended(self._target.stop_timeout)
        finally:
            for pid in _group(process.pid):
                with procfs.held(pid) as pidfd:
                    if pidfd is not None and pid in set(_group(process.pid)):
                        procfs.send(pidfd, signal.SIGKILL)
            await process.wait()
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.gather(self._reading, return_exceptions=True)

    async def _words(self) -> str:
        """Return its last words on one line."""
        if self._reading is not None and self.exit_code is not None:
            await asyncio.wait([self._reading], timeout=1.0)
        return " / ".join(list(self._said)[-3:])[-400:] or "it said nothing"


def _environment(more: Mapping[str, str], bin_: Path | None) -> dict[str, str]:
    environment = dict(os.environ)
    if bin_ is not None:
        environment["PATH"] = f"{bin_}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment | dict(more)


def _group(leader: int) -> list[int]:
    """Find the processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == leader:
                    found.append(int(entry.name))
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


async def _read(stream: asyncio.StreamReader, lines: deque[str]) -> None:
    """Read to the end; a line longer than the reader's bound is dropped, not waited for."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        lines.append(line.decode(errors="replace").rstrip())


async def said_by(command: Sequence[str], bin_: Path | None) -> str:
    """Run a short command and return the last line it prints; empty when it fails."""
    process = await asyncio.create_subprocess_exec(
        *program(command, bin_),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment({}, bin_),
    )
    try:
        async with asyncio.timeout(60.0):
            said, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:120] if lines and process.returncode == 0 else ""
