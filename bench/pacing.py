"""A periodic timer finer than the event loop's own 1 ms, from the kernel's timerfd.

Rule: the n-th tick is due at start + n x period, whatever happened before; ticks that could not be
served in time are told as a count, so that nothing drifts.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable

_MONOTONIC = 1
_NONBLOCK = 0o4000
_CLOEXEC = 0o2000000
_libc = ctypes.CDLL(None, use_errno=True)


class Ticker:
    """Calls `tick(count)` every `period` seconds; `count` > 1 when it was late."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, period: float, tick: Callable[[int], None]
    ) -> None:
        self._period = max(1, round(period * 1e9))
        self._tick = tick
        self._fd = _libc.timerfd_create(_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.running = False
        loop.add_reader(self._fd, self._due)

    def start(self) -> None:
        self._set(self._period)
        self.running = True

    def stop(self) -> None:
        self._set(0)
        self.running = False

    def _set(self, nanoseconds: int) -> None:
        seconds, rest = divmod(nanoseconds, 1_000_000_000)
        if _libc.timerfd_settime(self._fd, 0, struct.pack("qqqq", seconds, rest, seconds, rest), 0):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _due(self) -> None:
        try:
            count = int.from_bytes(os.read(self._fd, 8), "little")
        except BlockingIOError:  # stopped in between
            return
        self._tick(count)
