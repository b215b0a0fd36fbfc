"""Start each item of a schedule at its own absolute time, whatever became of the others.

Rule: nothing that is started is waited for. An end that is asked for early comes early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from surgetank.loadtest.connection import CLOCK
from surgetank.loadtest.pacer import Pacer

LEAD_IN: Final = 0.05  # seconds before the first start: the schedule's own start is never late
_BATCH: Final = 16  # overdue starts before the loop may read answers: their stamps must not wait


class Outstanding:
    """What was started and has not ended."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def began(self) -> None:
        self._count += 1
        self._none.clear()

    def ended(self) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def none(self) -> None:
        """Return when all have ended."""
        await self._none.wait()


async def keep(
    times: Sequence[float],
    begin: Callable[[int, float], None],
    start: float,
    clock: Callable[[], float] = CLOCK,
) -> None:
    """Call `begin(index, due)` at start + times[index] (ascending, on `clock`)."""
    overdue = 0
    with Pacer(clock=clock) as pacer:
        for index, at in enumerate(times):
            due = start + at
            if clock() < due:
                await pacer.until(due)
                overdue = 0
            elif (overdue := overdue + 1) % _BATCH == 0:
                await asyncio.sleep(0)
            begin(index, due)


async def unless(stop: asyncio.Event | None, work: Awaitable[None]) -> bool:
    """Wait for `work`; False when `stop` came before its end, and then it is cancelled."""
    task = asyncio.ensure_future(work)
    if stop is None:
        await task
        return True
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return True
        return False
    finally:
        for one in (task, stopping):
            one.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
