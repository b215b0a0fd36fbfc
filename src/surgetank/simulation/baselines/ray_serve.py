"""Ray Serve's replica autoscaling.

Source: ray-project/ray, python/ray/serve/autoscaling_policy.py and AutoscalingConfig's defaults.
"""

from __future__ import annotations

import math
from typing import Final

from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.rule import Samples, current, ongoing

LOOK_BACK: Final = 30.0  # s
UP_DELAY: Final = 30.0
DOWN_DELAY: Final = 600.0
TARGET: Final = 2.0  # target_ongoing_requests


class RayServe:
    """ceil(mean ongoing / target), once that was more for 30 s, or less for 600 s on end."""

    def __init__(self, target: float = TARGET) -> None:
        self._target = target
        self._seen = Samples(LOOK_BACK)
        self._more_since: float | None = None
        self._less_since: float | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        value = ongoing(seen)
        if value is not None:
            self._seen.add(value, now)
        mean = self._seen.mean(now)
        replicas = current(seen)
        if mean is None:
            return replicas
        wanted = math.ceil(mean / self._target)
        if wanted > replicas:
            self._less_since = None
            self._more_since = now if self._more_since is None else self._more_since
            if now - self._more_since >= UP_DELAY:
                self._more_since = None
                return wanted
        elif wanted < replicas:
            self._more_since = None
            self._less_since = now if self._less_since is None else self._less_since
            if now - self._less_since >= DOWN_DELAY:
                self._less_since = None
                return wanted
        else:
            self._more_since = self._less_since = None
        return replicas
