"""The controllers of all pools on an event loop: observe, decide, act, wait.

Rule: no decision is made here. An error of one tick is logged, changes nothing in the fleet, and
does not end the loop: the data plane goes on with the replicas it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from surgetank.adapters.learned import Learned
from surgetank.autoscaler.controller import PoolController
from surgetank.autoscaler.spec import AutoscaleSpec

log = logging.getLogger("surgetank.autoscaler")


class Autoscaler:
    """Runs controllers. `learned`: where what they, and `also`, have learnt is kept."""

    def __init__(
        self,
        spec: AutoscaleSpec,
        controllers: Sequence[PoolController],
        *,
        learned: Learned | None = None,
        also: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.controllers = tuple(controllers)
        for controller in self.controllers:
            controller.changed = self._rearm
        self._spec = spec
        self._learned = learned
        self._also = also
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._saved = self._clock()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._held = False

    async def start(self) -> None:
        """Adopt what an earlier life left, and begin to tick."""
        for controller in self.controllers:
            if controller.fleet is not None:
                controller.adopt(await controller.fleet.adopt(controller))
        self._task = self._loop.create_task(self._run())

    @property
    def held(self) -> bool:
        """The sizes stay as they are, by an operator's word."""
        return self._held

    def hold(self, *, on: bool) -> None:
        """Let all pools keep to their last plan until further notice, or go on by themselves."""
        self._held = on
        for controller in self.controllers:
            controller.hold(on=on)
        log.warning("scaling is held by an operator" if on else "scaling goes on")

    async def stop(self) -> None:
        """Tick no more, keep what was learnt; end the replicas unless they are to be kept."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._save()
        fleets = [c.fleet for c in self.controllers if c.fleet is not None]
        await asyncio.gather(*(fleet.close(keep=self._spec.keep_replicas) for fleet in fleets))

    async def _run(self) -> None:
        due = self._clock()
        while True:
            now = self._clock()
            decided = [c for c in self.controllers if self._tried(c, c.decide, now)]
            for controller in decided:  # once all have said what they want of a budget
                self._tried(controller, controller.act, now)
            self._rearm()
            if now - self._saved >= self._spec.learned_interval:
                self._saved = now
                self._save()
            due = max(due + self._spec.interval, now)  # what was missed is not made up for
            await asyncio.sleep(due - now)

    @staticmethod
    def _tried(controller: PoolController, part: Callable[[float], object], now: float) -> bool:
        try:
            part(now)
        except Exception:
            log.exception("pool %s: this tick failed", controller.config.name)
            return False
        return True

    def _rearm(self) -> None:
        """One timer, at the nearest deadline of all pools; a tick may well come before it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = [d for c in self.controllers if (d := c.next_deadline()) is not None]
        if deadlines and not self._stopped:
            self._timer = self._loop.call_at(min(deadlines), self._on_timer, min(deadlines))

    def _on_timer(self, due: float) -> None:
        self._timer = None
        now = max(due, self._clock())  # timers may fire a clock tick early
        try:
            for controller in self.controllers:
                controller.advance(now)
        except Exception:  # the deadline may still stand: the next tick arms the timer again
            log.exception("a deadline failed")
        else:
            self._rearm()

    def _save(self) -> None:
        if self._learned is not None:
            pools = {f"pool {c.config.name}": c.learned() for c in self.controllers}
            self._learned.save(pools | self._also())
