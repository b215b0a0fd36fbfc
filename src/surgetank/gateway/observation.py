"""What this gateway can tell of itself: to the autoscaler, to the live page, to another process.

Rule: running totals, so that a reader that misses one reading misses nothing; what is not known is
None, never 0; no request's content.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from surgetank.gateway.server import Gateway
from surgetank.policy.ingress import Ingress
from surgetank.policy.record import RequestRecord
from surgetank.policy.replica import Role

SCHEMA: Final = 1
_FIRST_TOKENS: Final = 500
_MOST_LESSONS: Final = 16  # models
_RECENT: Final = 30.0  # seconds of first tokens and of arrivals that are told
_SETTLED: Final = 2.0  # seconds after which no request of a second is still on its way in
_SECONDS_KEPT: Final = 900  # of ended requests' arrivals


class GatewayObserver:
    """Reads one gateway (see autoscaler.ports.Observer). Make it before requests come."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._ended: dict[str, int] = {}  # output tokens of requests that ended, by model
        self._told: dict[str, int] = {}  # the largest total told
        self._outcomes: dict[str, int] = {}
        self._first_tokens: deque[tuple[float, float, str]] = deque(maxlen=_FIRST_TOKENS)
        self._arrived: dict[int, list[int]] = {}  # by second: ended requests, prompt tokens
        gateway.ledger.observers.append(self._note)

    def _note(self, record: RequestRecord) -> None:
        self._outcomes[record.outcome] = self._outcomes.get(record.outcome, 0) + 1
        if record.output_tokens:
            known = self._ended.get(record.model, 0)
            self._ended[record.model] = known + record.output_tokens
        if record.first_token is not None:
            ttft = record.first_token - record.arrived
            self._first_tokens.append((record.first_token, ttft, record.tenant))
        counted = self._arrived.setdefault(int(record.arrived), [0, 0])
        counted[0] += 1
        counted[1] += record.prompt_tokens or 0
        if len(self._arrived) > _SECONDS_KEPT:
            self._arrived = self._since(self._arrived, max(self._arrived) - _RECENT)

    @staticmethod
    def _since(counts: dict[int, list[int]], begin: float) -> dict[int, list[int]]:
        return {second: counted for second, counted in counts.items() if second >= begin}

    def _arrivals(self, now: float, wall: float) -> list[tuple[int, int, int]]:
        """Requests and prompt tokens by the second they came in, over the last 30 s.

        A request is among those that ended or among those here, so a second's count stands from its
        end on; the last two are left out, since prompts may still be counted.
        """
        self._gateway.ledger.book()
        begin, end = int(now + wall - _RECENT), int(now + wall - _SETTLED)
        counts = {s: list(c) for s, c in self._since(self._arrived, begin).items()}
        for arrived, prompt in self._gateway.driver.flow.came_since(begin - wall):
            counted = counts.setdefault(int(arrived + wall), [0, 0])
            counted[0] += 1
            counted[1] += prompt
        return [(s, *counts[s]) for s in sorted(counts) if begin <= s < end]  # type: ignore[misc] # pairs

    def read(self, model: str, role: Role, now: float) -> Sequence[Ingress]:
        self._gateway.ledger.book()
        flow = self._gateway.driver.flow
        reading = flow.ingress(model, role, now, gateway=self._gateway.name)
        return [replace(reading, output_tokens=float(self._output_tokens(model)))]

    def _output_tokens(self, model: str) -> int:
        """Tokens generated so far, those of running streams included."""
        total = self._ended.get(model, 0) + self._gateway.output_of_running(model)
        # A stream's own count may exceed the usage it reports at its end: totals never fall.
        total = self._told[model] = max(total, self._told.get(model, 0))
        return total

    def snapshot(self) -> dict[str, Any]:
        """Everything at once, JSON-able; times are Unix seconds."""
        gateway = self._gateway
        gateway.ledger.book()
        now, wall = gateway.loop.time(), gateway.wall_offset
        flow = gateway.driver.flow
        since = now + wall - _RECENT
        tenants = {}
        for name in flow.tenants():
            counts = flow.counts(name)
            numbers = {f.name: getattr(counts, f.name) for f in fields(counts)}
            tenants[name] = {"tier": flow.tier(name).name, **numbers}
        return {
            "v": SCHEMA,
            "gateway": gateway.name,
            "now": now + wall,
            "ready": not gateway.unready,
            "draining": gateway.draining,
            "tenants": tenants,
            "outcomes": dict(self._outcomes),
            "arrivals": self._arrivals(now, wall),
            "ttft": [list(point) for point in self._first_tokens if point[0] >= since],
            "learned": [lesson.text() for lesson in flow.lessons()][:_MOST_LESSONS],
            "pools": [self._pool(model, role, now) for model, role in gateway.fleet.pools()],
        }

    def _pool(self, model: str, role: Role, now: float) -> dict[str, Any]:
        (reading,) = self.read(model, role, now)
        row = ingress_row(reading, self._gateway.wall_offset)
        held, waiting = reading.kv_held, reading.kv_to_be_held
        return row | {
            "model": model,
            "role": role.value,
            "kv_waiting": waiting if held is not None else None,
            "replicas": self._gateway.fleet.rows(model, role),
        }


def ingress_row(reading: Ingress, wall_offset: float) -> dict[str, Any]:
    """Write a reading as JSON: its monotonic times become Unix seconds."""
    row = {f.name: getattr(reading, f.name) for f in fields(reading)}
    row["as_of"] = reading.as_of + wall_offset
    row["first_tokens"] = [[at + wall_offset, ttft] for at, ttft in reading.first_tokens]
    row["paces"] = [[at + wall_offset, None if _infinite(p) else p] for at, p in reading.paces]
    return {name: None if _infinite(value) else value for name, value in row.items()}


def _infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
