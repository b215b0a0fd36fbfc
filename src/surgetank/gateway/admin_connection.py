"""One connection of the admin listener, with the bounds that uvicorn's own does not have.

Rule: at most MOST_ADMIN are open, and each makes progress: no head, body or answer that dribbles,
and no silence, holds a descriptor for long.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from surgetank.gateway.room import MOST_ADMIN

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

PATIENCE: Final = 10.0  # seconds; a connection is looked at so often, and closed the second time


class AdminConnection(H11Protocol):
    """Closed when the same request, or none, is under way at two looks in a row."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looked_at: RequestResponseCycle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        super().connection_made(transport)
        if len(self.connections) > MOST_ADMIN:
            transport.abort()
            return
        self._timer = self.loop.call_later(PATIENCE, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle is self._looked_at:
            self.transport.abort()
            return
        self._looked_at = self.cycle
        self._timer = self.loop.call_later(PATIENCE, self._look)
