"""Knative's pod autoscaler on concurrency: a stable and a panic window.

Source: Knative Serving, pkg/autoscaler/scaling/autoscaler.go and config-autoscaler's defaults.
"""

from __future__ import annotations

import math
from typing import Final

from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.rule import Every, Samples, current, ongoing

TICK: Final = 2.0  # s
STABLE: Final = 60.0
PANIC: Final = 6.0
TARGET_SHARE: Final = 0.7  # container-concurrency-target-percentage
PANIC_THRESHOLD: Final = 2.0  # desired of the panic window / ready
MAX_UP: Final = 1000.0
MAX_DOWN: Final = 2.0


class Kpa:
    """desired = ceil(mean concurrency / (0.7 x limit)), within [ready / 2, 1000 x ready].

    Panics when the 6-s window wants twice what is ready: then it never goes down, until a whole
    stable window has passed below that. It starts in panic, as after a restart.
    """

    def __init__(self, limit: float) -> None:
        self._target = TARGET_SHARE * limit
        self._seen = Samples(STABLE)
        self._clock = Every(TICK)
        self._panic_at: float | None = None
        self._most_in_panic = 0
        self._begun = False
        self._kept: int | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        value = ongoing(seen)
        if value is not None:
            self._seen.add(value, now)
        if self._kept is None:
            self._kept = current(seen)
        stable, panic = self._seen.mean(now), self._seen.mean(now, PANIC)
        if stable is None or panic is None or not self._clock.due(now):
            return self._kept
        ready = max(1, seen.serving)
        if not self._begun:
            self._begun, self._panic_at, self._most_in_panic = True, now, ready
        floor, top = math.floor(ready / MAX_DOWN), math.ceil(MAX_UP * ready)
        by_panic = math.ceil(panic / self._target)
        wanted = min(max(math.ceil(stable / self._target), floor), top)
        in_panic = min(max(by_panic, floor), top)
        if by_panic / ready >= PANIC_THRESHOLD:
            self._panic_at = now
        elif self._panic_at is not None and self._panic_at + STABLE < now:
            self._panic_at, self._most_in_panic = None, 0
        if self._panic_at is not None:
            self._most_in_panic = max(self._most_in_panic, wanted, in_panic)
            wanted = self._most_in_panic
        self._kept = wanted
        return wanted
