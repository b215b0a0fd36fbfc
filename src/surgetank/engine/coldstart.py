"""How long a replica takes from "start it" to "ready", and how it can fail.

A start goes through the profile's stages (node, image, process, weights, compile, graphs, kv,
register), each lognormal with its median and the sigma of its logarithm. A node that has held such
a replica before has the image on its disk, the weights in its page cache and the compiled graphs in
their cache: there a stage takes its `again_s`. A snapshot of a loaded process replaces all of it.

Rule: pure; randomness comes in. Reported whole starts range from 20 s to 439 s, so measure yours:
what is assumed here decides more of a burst than any policy does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from surgetank.engine.profile import EngineProfile, Stage

Ending = Literal["ready", "failed", "denied"]


@dataclass(frozen=True, slots=True)
class Start:
    """One start as drawn: how it ends, when, and what its stages took (up to its end)."""

    ending: Ending
    seconds: float
    stages: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Starts of one kind of replica. Times in seconds, probabilities 0..1."""

    stages: tuple[Stage, ...]  # none: it is ready at once
    failure: float = 0.0  # a start that fails, anywhere in its course
    denied: float = 0.0  # there is no machine for it (a GPU quota, a full zone)
    denied_s: float = 5.0  # until that is said
    wake_s: float = 0.0  # standby to serving: 0 when it is loaded and only not routed
    wake_sigma: float = 0.0
    snapshot_s: float | None = None  # restoring a snapshot of a loaded process, instead of stages
    snapshot_sigma: float = 0.2

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be."""
        for name in ("failure", "denied"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be in [0, 1]")
        for stage in self.stages:
            if stage.median_s < 0 or stage.sigma < 0 or (stage.again_s or 0.0) < 0:
                raise ValueError(f"stage {stage.name}: seconds and sigma must be >= 0")

    def course(self) -> tuple[Stage, ...]:
        """The stages it goes through: a snapshot's restoring is one."""
        if self.snapshot_s is None:
            return self.stages
        return (Stage("snapshot", self.snapshot_s, self.snapshot_sigma),)

    def draw(self, rng: np.random.Generator, *, warm_node: bool) -> Start:
        """Draw one start. The same draws are made however it ends, so that runs stay comparable."""
        fate, part = rng.random(2)
        taken = tuple((s.name, _seconds(s, rng, warm_node=warm_node)) for s in self.course())
        whole = math.fsum(seconds for _, seconds in taken)
        if fate < self.denied:
            return Start("denied", self.denied_s, ())
        if fate < self.denied + self.failure * (1 - self.denied):
            return Start("failed", whole * float(part), taken)
        return Start("ready", whole, taken)

    def wake(self, rng: np.random.Generator) -> float:
        """Seconds a standby takes to serve."""
        if not self.wake_s:
            return 0.0
        return self.wake_s * math.exp(self.wake_sigma * float(rng.standard_normal()))

    def p95(self) -> float:
        """P95 of whole starts on new nodes, seconds: a guess before any was measured.

        Fenton and Wilkinson: the sum of lognormals is taken for one of the same mean and variance.
        """
        stages = self.course()
        mean = sum(s.median_s * math.exp(s.sigma**2 / 2) for s in stages)
        if mean <= 0:
            return 0.0
        variance = sum(
            s.median_s**2 * math.exp(s.sigma**2) * (math.exp(s.sigma**2) - 1) for s in stages
        )
        sigma = math.sqrt(math.log1p(variance / mean**2))
        return mean * math.exp(1.645 * sigma - sigma**2 / 2)


def whole(mean_s: float, sigma: float = 0.2) -> ColdStart:
    """One stage with this mean: what you measured from outside."""
    return ColdStart((Stage("start", mean_s * math.exp(-(sigma**2) / 2), sigma),))


def of_profile(profile: EngineProfile) -> ColdStart:
    """Give the starts that a profile describes."""
    return ColdStart(profile.cold_start, wake_s=profile.wake_s, snapshot_s=profile.snapshot_s)


def _seconds(stage: Stage, rng: np.random.Generator, *, warm_node: bool) -> float:
    """Draw how long a stage takes."""
    median = stage.again_s if warm_node and stage.again_s is not None else stage.median_s
    return median * math.exp(stage.sigma * float(rng.standard_normal()))
