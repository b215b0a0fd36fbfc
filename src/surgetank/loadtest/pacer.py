"""Wake up at an absolute time, more exactly than an event loop's timers do.

Rule: it may wake late and never early. Linux's timerfd gives 0.1 ms where uvloop's own timers
count in whole milliseconds; elsewhere the loop's timers serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_CLOCK_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = 0o4000 | 0o2000000
_ABSOLUTE: Final = 1


class Pacer:
    """`await until(t)`, `t` on time.monotonic's clock; one waiter at a time.

    Another `clock` must be the loop's own: then the loop's timers serve.
    """

    def __init__(
        self,
        *,
        timerfd: bool = sys.platform.startswith("linux"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        timerfd = timerfd and clock is time.monotonic
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True) if timerfd else None
        self._waiter: asyncio.Future[None] | None = None
        self._file = -1
        if self._libc is not None:
            # Refused in a narrow sandbox: then -1, and the loop's timers serve.
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._expired)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    async def until(self, moment: float) -> None:
        """Return once the clock is at or past `moment`."""
        while (left := moment - self._clock()) > 0:
            if self._file < 0 or self._libc is None:
                await asyncio.sleep(left)
                continue
            self._waiter = self._loop.create_future()
            seconds = int(moment)
            nanoseconds = int((moment - seconds) * 1e9)
            setting = struct.pack("@qqqq", 0, 0, seconds, max(1, nanoseconds))
            self._libc.timerfd_settime(self._file, _ABSOLUTE, setting, None)
            await self._waiter

    def _expired(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
