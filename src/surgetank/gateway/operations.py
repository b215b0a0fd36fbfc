"""What an operator asks of a running gateway, and what one may change by hand.

Rule: reading shows no prompt, no key and no secret; a change says what it did. A replica is drained
and put back, scaling is held and let go, the configuration is read anew: nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from surgetank.errors import SurgetankError
from surgetank.gateway.observation import SCHEMA
from surgetank.gateway.server import Gateway
from surgetank.gateway.telling import learned_rows, shadow_row
from surgetank.policy.flow import LevelBudget

_LIMITS: Final = (
    "weight",
    "requests_per_minute",
    "tokens_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "max_concurrent",
    "max_running",
    "max_queued",
    "max_queued_bytes",
    "max_sessions",
    "session_tokens_per_minute",
)

_MOST_SESSIONS: Final = 1000

Guard = Callable[[Callable[[Request], Awaitable[Response]]], Callable[..., Awaitable[Response]]]


@dataclass(frozen=True, slots=True)
class Controls:
    """What the process lends: the reading anew, the settings to show, the hold of its autoscaler.

    `reload` raises SurgetankError when the configuration is of no use; `status` and `config` give
    JSON-able values without secrets. `hold` None: no autoscaler runs here.
    """

    reload: Callable[[], Awaitable[dict[str, Any]]] | None = None
    status: Callable[[], dict[str, Any]] = dict
    config: Callable[[], dict[str, Any]] = dict
    hold: Callable[[bool], None] | None = None
    held: Callable[[], bool] = field(default=lambda: False)


class Operations:
    """The routes, over one gateway. `drained`: replicas drained by hand, and whether they are."""

    def __init__(self, gateway: Gateway, controls: Controls, drained: dict[str, bool]) -> None:
        self._gateway = gateway
        self._controls = controls
        self._drained = drained

    def routes(self, read: Guard, change: Guard) -> list[Route]:
        """`read` and `change` let in who may."""
        replica = "/replicas/{replica:path}"
        return [
            Route("/status", read(self._status)),
            Route("/config", read(self._config)),
            Route("/tenants", read(self._tenants)),
            Route("/queue", read(self._queue)),
            Route("/learned", read(self._learned)),
            Route("/shadow", read(self._shadow)),
            Route("/sessions", read(self._sessions)),
            Route(f"{replica}/drain", change(self._drain), methods=["POST"]),
            Route(f"{replica}/resume", change(self._resume), methods=["POST"]),
            Route("/hold", change(self._hold), methods=["POST"]),
            Route("/release", change(self._release), methods=["POST"]),
            Route("/reload", change(self._reload), methods=["POST"]),
        ]

    # Reading.

    async def _status(self, _: Request) -> Response:
        gateway = self._gateway
        unready = gateway.unready
        counts = gateway.driver.flow.counts()
        return self._answer(
            pid=os.getpid(),
            ready=not unready,
            state=unready or "ready",
            connections=len(gateway.clients),
            waiting=counts.queued,
            running=counts.running,
            held=self._controls.held() if self._controls.hold is not None else None,
            **self._controls.status(),
        )

    async def _config(self, _: Request) -> Response:
        return self._answer(config=self._controls.config())

    async def _tenants(self, _: Request) -> Response:
        flow, now = self._gateway.driver.flow, self._gateway.loop.time()
        rows = []
        for standing in flow.standings(now):
            tenant, counts = standing.tenant, flow.counts(standing.tenant.name)
            limits = {name: getattr(tenant, name) for name in _LIMITS}
            left = flow.budget(tenant.name, now)
            rows.append(
                {"tenant": tenant.name, "tier": standing.tier.name, **limits}
                | {"requests_left": left.remaining_requests, "tokens_left": left.remaining_tokens}
                | {"concurrent_left": left.remaining_concurrent}
                | asdict(counts)
                | {"levels": [_level_row(level) for level in flow.levels(tenant.name, now)]}
            )
        return self._answer(tenants=rows)

    async def _queue(self, _: Request) -> Response:
        flow, now = self._gateway.driver.flow, self._gateway.loop.time()
        rows = []
        for standing in flow.standings(now):
            row = asdict(standing)
            row["tenant"], row["tier"] = standing.tenant.name, standing.tier.name
            row["priority"] = standing.tier.priority
            row["oldest"] = round(standing.oldest, 3)
            rows.append(row)
        rows.sort(key=lambda row: (row["priority"], -row["waiting_tokens"], row["tenant"]))
        counts = flow.counts()
        return self._answer(waiting=counts.queued, running=counts.running, tenants=rows)

    async def _learned(self, _: Request) -> Response:
        return self._answer(models=learned_rows(self._gateway.driver))

    async def _shadow(self, _: Request) -> Response:
        row = shadow_row(self._gateway.driver)
        if row is None:
            return refused(404, "admission is on for everyone here: no tenant is in shadow")
        return self._answer(**row)

    async def _sessions(self, request: Request) -> Response:
        """The sessions that burn most, by a hash: what clients call them is theirs."""
        top = request.query_params.get("top", "20")
        if not top.isdigit() or not 0 < int(top[:6]) <= _MOST_SESSIONS:
            return refused(400, f"top must be a number of 1 to {_MOST_SESSIONS}")
        flow, now = self._gateway.driver.flow, self._gateway.loop.time()
        return self._answer(sessions=[asdict(view) for view in flow.sessions(now, int(top))])

    # Changing.

    async def _drain(self, request: Request) -> Response:
        replica = request.path_params["replica"]
        if self._gateway.fleet.target(replica) is None:
            return refused(404, f"no replica {replica} here: see GET /replicas")
        self._drained[replica] = False
        self._gateway.fleet.drain(replica, self._note_drained)
        return self._answer(replica=replica, drained=self._drained[replica])

    def _note_drained(self, replica: str) -> None:
        self._drained[replica] = True

    async def _resume(self, request: Request) -> Response:
        replica = request.path_params["replica"]
        target = self._gateway.fleet.target(replica)
        if target is None or target.leaving:
            return refused(404, f"no replica {replica} here: see GET /replicas")
        self._drained.pop(replica, None)
        self._gateway.fleet.attach(replica)
        return self._answer(replica=replica, ready=target.ready)

    async def _hold(self, _: Request) -> Response:
        return self._set_hold(on=True)

    async def _release(self, _: Request) -> Response:
        return self._set_hold(on=False)

    def _set_hold(self, *, on: bool) -> Response:
        if self._controls.hold is None:
            return refused(404, "no autoscaler runs in this process")
        self._controls.hold(on)
        return self._answer(held=self._controls.held())

    async def _reload(self, _: Request) -> Response:
        if self._controls.reload is None:
            return refused(404, "this gateway has no configuration file to read")
        try:
            status = await self._controls.reload()
        except SurgetankError as error:
            return refused(409, f"not taken, the configuration before stays: {error}")
        return self._answer(**status)

    def _answer(self, **members: Any) -> Response:
        return JSONResponse({"v": SCHEMA, "gateway": self._gateway.name, **members})


def _level_row(level: LevelBudget) -> dict[str, Any]:
    """What a tenant, one of its keys or a model of either has left; null where it has no limit."""
    left = level.budget
    return {
        "key": level.key or None,
        "model": level.model or None,
        "requests_left": left.remaining_requests,
        "tokens_left": left.remaining_tokens,
        "input_tokens_left": left.remaining_input_tokens,
        "output_tokens_left": left.remaining_output_tokens,
        "concurrent_left": left.remaining_concurrent,
    }


def refused(status: int, message: str) -> Response:
    """An error of the admin listener."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": {"message": message}}, status_code=status, headers=headers)
