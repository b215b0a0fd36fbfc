"""The books of requests that have ended: counted, told to observers, and written as records.

Rule: what has ended is booked in batches, at most `_MOST` requests or `_SECONDS` later, and before
anybody reads. Counting and encoding one request between two others costs three times as much as in
a row, since each finds the processor's caches full of something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from surgetank.adapters.records import record_line, row_line, row_of
from surgetank.gateway.account import Account
from surgetank.gateway.metrics import Metrics
from surgetank.policy.bucket import TokenBucket
from surgetank.policy.flow import FlowControl
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome
from surgetank.policy.shadow import Shadow

_MOST: Final = 32  # booked in 0.1 ms: no stream waits for longer
_SECONDS: Final = 0.2  # a trickle of requests wakes the loop five times a second at most
_STRANGERS: Final = 10.0  # records a second of requests without a valid key; ten times in a burst


class Ledger:
    """Books ended requests into `metrics`, `observers` and `write` (None: no records).

    `known_model` gives the name under which a model is counted; `shadow` what knows how admission
    would have decided, None while it is on for all.
    """

    def __init__(
        self,
        flow: FlowControl,
        metrics: Metrics,
        known_model: Callable[[str], str],
        write: Callable[[str], None] | None,
        *,
        wall_offset: float,
    ) -> None:
        self.shadow: Callable[[], Shadow | None] = lambda: None
        self.observers: list[Callable[[RequestRecord], None]] = []
        self._flow = flow
        self._metrics = metrics
        self._known_model = known_model
        self._write = write
        self._wall_offset = wall_offset
        self._loop = asyncio.get_running_loop()
        self._ended: list[Account] = []
        self._timer: asyncio.TimerHandle | None = None
        self._strangers = TokenBucket(_STRANGERS, 10 * _STRANGERS)

    def add(self, account: Account) -> None:
        """A request has ended, and its account is closed."""
        ended = self._ended
        ended.append(account)
        if len(ended) >= _MOST:
            self.book()
        elif self._timer is None:
            self._timer = self._loop.call_later(_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        self.book()

    def book(self) -> None:
        """Book all that has ended by now."""
        ended, self._ended = self._ended, []
        service: dict[str, tuple[str, float]] = {}
        models: dict[str, str] = {}
        count, write, wall_offset = self._metrics.count, self._write, self._wall_offset
        shadow = self.shadow()
        for account in ended:
            tenant, model = account.request.tenant, account.request.model
            if tenant not in service:
                service[tenant] = self._flow.tier(tenant).name, self._flow.ttft_objective(tenant)
            if model not in models:
                models[model] = self._known_model(model)
            row = row_of(account.row(*service[tenant], wall_offset))
            verdict = None if shadow is None else shadow.verdict(account.request.id)
            if verdict is not None:
                row.shadow, row.shadow_wait = verdict.outcome, verdict.wait
                row.shadow_ttft = verdict.ttft
            count(row, models[model])
            if write is not None:
                write(row_line(row))
            for tell in self.observers:
                tell(row)

    def refuse(
        self, shown_id: bytes, tenant: str, route: str, outcome: Outcome, status: int
    ) -> None:
        """Book a request to a route that was refused before admission could see it.

        It is counted and recorded, but is no demand: observers are not told. Of those without a
        valid key ("" as their tenant) at most `_STRANGERS` a second are recorded: whoever has no
        key must not fill the disk, nor push out the records of those who have.
        """
        now = self._loop.time()
        at = now + self._wall_offset
        record = RequestRecord(
            shown_id.decode("ascii"),
            tenant=tenant,
            tier=self._flow.tier(tenant).name if tenant else "",
            route=route,
            arrived=at,
            ended=at,
            outcome=outcome.value,
            status=status,
        )
        self._metrics.count(record, "")
        if self._write is None:
            return
        if tenant or self._strangers.reserve(1, now):
            self._write(record_line(record))
        else:
            self._metrics.withheld += 1

    def close(self) -> None:
        """Book the last ones; nothing ends after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.book()
