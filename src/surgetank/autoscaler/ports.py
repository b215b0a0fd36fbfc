"""What the autoscaler asks of the world beside its Fleet: what came in, and where requests go.

Rule: every call returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from surgetank.policy.ingress import Ingress
from surgetank.policy.replica import Role


class Observer(Protocol):
    """The gateways of the fleet: one in this process, or several over HTTP."""

    def read(self, model: str, role: Role, now: float) -> Sequence[Ingress]:
        """Give the latest reading of every gateway that has one; a late one as it is."""


class Routing(Protocol):
    """Where requests go. A replica is added when it is up, and removed before it is stopped."""

    def add(self, replica: str, url: str) -> None:
        """Get to know it, so that it can serve at once when it is attached."""

    def attach(self, replica: str) -> None:
        """Send it requests, also after `detach` or `drain` (which is then off)."""

    def detach(self, replica: str) -> None:
        """Send it no more; its streams go on."""

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        """Send it no more, and say so once its last stream has ended (at once if it has none)."""

    def expect(self, seconds: Sequence[float]) -> None:
        """So many replicas start, and will likely serve in so many seconds each."""

    def remove(self, replica: str) -> None:
        """Forget it; what still streams is cut by its end."""


class Ingresses(Protocol):
    """The part of FlowControl that an Observer in the same process reads."""

    def ingress(self, name: str, role: Role, now: float, *, gateway: str = "") -> Ingress: ...


class FlowObserver:
    """The Observer of the gateway in this process."""

    def __init__(self, flow: Ingresses, gateway: str = "this process") -> None:
        self._flow = flow
        self._gateway = gateway

    def read(self, model: str, role: Role, now: float) -> Sequence[Ingress]:
        return [self._flow.ingress(model, role, now, gateway=self._gateway)]
