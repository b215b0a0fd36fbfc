"""A child process that says READY: started, listened to, and ended by its process id.

Rule: on every way out nothing of it is left, and one that does not come up says why in one line:
after FAILED on its standard output, else the last of its standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Final

from surgetank.errors import SurgetankError

_ERROR_LINES: Final = 200
_FAILED: Final = b"FAILED "


class StartError(SurgetankError):
    """A program did not come up."""


class Child:
    """One program that prints `READY ADDRESS ...` once it serves. Times in seconds.

    It may print `FAILED REASON` instead. What it prints after READY is read and dropped, so that it
    never blocks on a full pipe; its last lines of standard error are kept.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, start_timeout: float, stop_timeout: float
    ) -> None:
        self._name = name
        self._command = tuple(command)
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._errors: deque[str] = deque(maxlen=_ERROR_LINES)

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def errors(self) -> str:
        """The last lines of its standard error."""
        return "\n".join(self._errors)

    def complaint(self, otherwise: str) -> str:
        """Return one line on why it did not come up: its own last words, if it had any."""
        return self._errors[-1] if self._errors else f"{self._name} {otherwise}"

    async def start(self) -> list[str]:
        """Spawn it; return the words after READY. Raises StartError, leaving nothing behind."""
        try:
            async with asyncio.timeout(self._start_timeout):
                return await self._spawn()
        except TimeoutError as error:
            await self.stop()
            raise StartError(
                self.complaint(f"said nothing in {self._start_timeout:g} s")
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL when it does not go. Does nothing when it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.returncode is None:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._stop_timeout):
                        await process.wait()
        finally:  # cancelled or too slow: it goes all the same
            if process.returncode is None:
                process.kill()
                await process.wait()
            readers, self._readers = self._readers, []
            await asyncio.gather(*readers)

    async def _spawn(self) -> list[str]:
        self._errors.clear()
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        assert process.stdout is not None  # noqa: S101  (asked for above)
        assert process.stderr is not None  # noqa: S101
        complaints = asyncio.create_task(_read(process.stderr, self._errors))
        self._readers.append(complaints)
        line = b""
        while not line.startswith(b"READY "):
            line = await process.stdout.readline()
            if line.startswith(_FAILED):
                raise StartError(line.removeprefix(_FAILED).decode(errors="replace").rstrip())
            if not line:
                await complaints
                raise StartError(self.complaint("ended without a word"))
        self._readers.append(asyncio.create_task(_read(process.stdout, deque(maxlen=0))))
        return line.decode().split()[1:]


async def _read(stream: asyncio.StreamReader, lines: deque[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode(errors="replace").rstrip())
