"""The Fleet port: what a Pool's effects become in the world, and what the world says back.

Rule: a call returns at once and never raises for what a replica does; what became of it comes as
an event. Requests are routed by others: `attach` and `detach` only note what a replica is for, so
that it is found again as the same after a restart of the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """A replica of an earlier life of the controller, still healthy."""

    replica: str
    url: str  # http://HOST:PORT
    serving: bool  # it was attached; otherwise a standby


class FleetEvents(Protocol):
    """Who is told. Each start ends in `became_ready` or `failed`; `stopped` answers `stop`."""

    def became_ready(self, replica: str, url: str) -> None:
        """It can serve, at `url`."""

    def failed(self, replica: str, why: str) -> None:
        """It never came up, and nothing of it is left. `why`: one line."""

    def crashed(self, replica: str, why: str) -> None:
        """It was up, and is gone without having been asked to."""

    def stopped(self, replica: str) -> None:
        """It is gone, as asked."""


class Fleet(Protocol):
    """The replicas of one pool."""

    async def adopt(self, events: FleetEvents) -> Sequence[Found]:
        """Come up, once, before all else: find what an earlier life left, end what is of no use."""

    def start(self, replica: str, *, as_standby: bool) -> None:
        """Start it. `as_standby`: it is meant to be kept warm (a scheduler may prefer others)."""

    def attach(self, replica: str) -> None:
        """Note that it serves."""

    def detach(self, replica: str) -> None:
        """Note that it serves no more: a standby, or on its way out."""

    def stop(self, replica: str) -> None:
        """End it; asking again hurries it. One that is unknown is reported as stopped."""

    async def close(self, *, keep: bool) -> None:
        """Send no more events. Replicas go on when `keep` (the next life adopts them), else end."""
