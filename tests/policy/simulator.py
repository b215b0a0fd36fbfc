"""The smallest simulation: a heap of events around FlowControl, and a time that jumps."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol

from surgetank.policy.effect import Cancel, Dispatch, Effect
from surgetank.policy.request import Outcome, Request, Usage


class Flow(Protocol):
    """What is driven: a FlowControl, or a Journal around one."""

    def offer(self, request: Request, now: float) -> Sequence[Effect]: ...
    def first_token(self, request_id: str, now: float) -> Sequence[Effect]: ...
    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]: ...
    def advance(self, now: float) -> Sequence[Effect]: ...
    def next_deadline(self) -> float | None: ...


def simulate(
    flow: Flow,
    arrivals: Iterable[tuple[float, Request]],
    service_time: Callable[[Request], float],
    *,
    first_token_time: Callable[[Request], float] | None = None,
    usage: Callable[[Request], Usage | None] = lambda _: None,
) -> list[tuple[float, str, Outcome]]:
    """Run all arrivals to their end; returns (time, request id, outcome) in order of time.

    `service_time`: seconds from dispatch to the last byte; `first_token_time`: to the first.
    """
    order = count()
    events = [(at, next(order), "offer", request) for at, request in arrivals]
    heapq.heapify(events)
    ended: list[tuple[float, str, Outcome]] = []
    gone: set[str] = set()

    def carry_out(effects: Sequence[Effect], now: float) -> None:
        for effect in effects:
            request = effect.request
            if isinstance(effect, Dispatch):
                done = now + service_time(request)
                if first_token_time is not None:
                    first = now + first_token_time(request)
                    heapq.heappush(events, (first, next(order), "first_token", request))
                heapq.heappush(events, (done, next(order), "finish", request))
                continue
            ended.append((now, request.id, effect.outcome))
            if isinstance(effect, Cancel):
                gone.add(request.id)
                carry_out(flow.finish(request.id, effect.outcome, usage(request), now), now)

    while events or flow.next_deadline() is not None:
        deadline = flow.next_deadline()
        if deadline is not None and (not events or deadline <= events[0][0]):
            carry_out(flow.advance(deadline), deadline)
            continue
        now, _, kind, request = heapq.heappop(events)
        if kind == "offer":
            carry_out(flow.offer(request, now), now)
        elif request.id in gone:
            continue
        elif kind == "first_token":
            carry_out(flow.first_token(request.id, now), now)
        else:
            ended.append((now, request.id, Outcome.COMPLETED))
            done_usage = usage(request)
            carry_out(flow.finish(request.id, Outcome.COMPLETED, done_usage, now), now)
    return ended
