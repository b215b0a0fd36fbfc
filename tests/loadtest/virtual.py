"""A loop in virtual time: where nothing is ready, the clock goes to the next timer at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual; there is nothing outside to wait for."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(test: Callable[[Callable[[], float]], Awaitable[T]]) -> T:
    """Run `test(clock)` in virtual time."""

    async def main() -> T:
        return await test(asyncio.get_running_loop().time)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
