"""Kubernetes' HorizontalPodAutoscaler, and KEDA's queue-length trigger that feeds one.

Source: Kubernetes, pkg/controller/podautoscaler (replica_calculator.go, horizontal.go; autoscaling
v2 defaults) and KEDA's ScaledObject defaults (pollingInterval 30 s).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.rule import Every, Samples, current, ongoing

SYNC: Final = 15.0  # s, --horizontal-pod-autoscaler-sync-period
TOLERANCE: Final = 0.1  # --horizontal-pod-autoscaler-tolerance
UP_PODS: Final = 4  # at most max(100 %, 4 pods) more per 15 s
DOWN_WINDOW: Final = 300.0  # s, stabilisation of scale-down
SCRAPE: Final = 15.0  # s between two readings of the metric
KEDA_POLLING: Final = 30.0


class Hpa:
    """An external metric with an AverageValue: desired = ceil(sum / target).

    Nothing changes while |sum / (target x replicas) - 1| <= 0.1. Up at most to max(2 n, n + 4) per
    15 s; down to the most that was recommended within 300 s.
    """

    def __init__(
        self,
        target: float,
        *,
        metric: Callable[[Observation], float | None] = ongoing,
        scrape: float = SCRAPE,
    ) -> None:
        self._target = target
        self._metric = metric
        self._scrape = Every(scrape)
        self._sync = Every(SYNC)
        self._value: float | None = None
        self._recommended = Samples(DOWN_WINDOW)
        self._kept: int | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        if self._scrape.due(now):
            value = self._metric(seen)
            self._value = self._value if value is None else value
        replicas = current(seen)
        if self._kept is None:
            self._kept = replicas
        if self._value is None or not self._sync.due(now):
            return self._kept
        ratio = self._value / (self._target * max(1, replicas))
        wanted = math.ceil(self._value / self._target)
        if abs(ratio - 1) <= TOLERANCE:
            wanted = replicas
        self._recommended.add(wanted, now)
        most = self._recommended.most(now)
        if wanted < replicas and most is not None:
            wanted = min(replicas, int(most))
        self._kept = min(wanted, max(2 * replicas, replicas + UP_PODS))
        return self._kept


def keda(target: float) -> Hpa:
    """KEDA on the queue's length: an HPA whose metric is polled every 30 s.

    Its cooldown of 300 s only concerns the step from one replica to none.
    """
    return Hpa(target, metric=_waiting, scrape=KEDA_POLLING)


def _waiting(seen: Observation) -> float | None:
    return None if seen.queue_length is None else float(seen.queue_length)
