"""Health, metrics and the fleet's state on their own listener, so that tenants never reach them.

Rule: readiness is the truth: 503 while no replica is ready or the gateway is draining. What changes
the fleet needs the bearer token; with a token set, or beyond loopback, so does all but health and
metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from surgetank.errors import ConfigError
from surgetank.gateway.admin_connection import AdminConnection
from surgetank.gateway.observation import SCHEMA, GatewayObserver
from surgetank.gateway.operations import Controls, Operations, refused
from surgetank.gateway.server import Gateway
from surgetank.gateway.spec import AdminSpec

Decisions = Callable[[int], tuple[int, list[dict[str, Any]]]]
"""Lines after a number, and the next number (see GET /decisions)."""

_Handler = Callable[[Request], Awaitable[Response]]
_MAX_BODY: Final = 64 << 10
_MOST_EXPECTED: Final = 1000  # replicas that start at once
_DAY: Final = 86_400.0
_ACTIONS: Final = ("add", "attach", "detach", "drain", "remove")


class AdminServer:
    """The admin listener, started and stopped beside the data plane.

    `decisions`: the autoscaler of this process, None without one. `token`: None when none is set.
    """

    def __init__(
        self,
        gateway: Gateway,
        spec: AdminSpec,
        *,
        observer: GatewayObserver,
        decisions: Decisions | None = None,
        token: str | None = None,
        listener: socket.socket | None = None,
        controls: Controls = Controls(),  # noqa: B008 - frozen
    ) -> None:
        self._listener = listener
        self._gateway = gateway
        self._spec = spec
        self._observer = observer
        self._decisions = decisions
        self.token = token
        self._drained: dict[str, bool] = {}
        self._operations = Operations(gateway, controls, self._drained)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int | None:
        """Listen. Returns the port, None when it is off. Raises ConfigError when it cannot."""
        host, wanted = self._spec.host, self._spec.port
        if wanted is None:
            return None
        try:
            sock = self._listener or socket.create_server(
                (host, wanted), family=_family(host), backlog=128
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"admin.port = {wanted}: cannot listen on {host}: {reason}") from None
        config = uvicorn.Config(
            self._application(),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            http=AdminConnection,
            ws="none",
        )
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[sock]))
        port: int = sock.getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task

    def _application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/livez", self._live),
                Route("/readyz", self._ready),
                Route("/healthz", self._ready),
                Route("/metrics", self._metrics),
                Route("/observation", self._read(self._observation)),
                Route("/decisions", self._read(self._decided)),
                Route("/replicas", self._read(self._replicas)),
                Route("/replicas", self._guard(self._change), methods=["POST"]),
                *self._operations.routes(self._read, self._guard),
            ],
            exception_handlers={404: _no_route, 405: _no_route},
        )

    # Health and metrics: open to whoever reaches the listener.

    async def _live(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, _: Request) -> Response:
        gateway = self._gateway
        replicas = {t.id: "ready" if t.ready else "not ready" for t in gateway.fleet}
        unready = gateway.unready
        body = {"status": unready or "ready", "replicas": replicas}
        return JSONResponse(body, status_code=503 if unready else 200)

    async def _metrics(self, _: Request) -> Response:
        self._gateway.ledger.book()
        return Response(
            self._gateway.metrics.exposition(self._gateway.gauges()),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    # State: with the token, when there is one.

    def _read(self, handler: _Handler) -> _Handler:
        async def guarded(request: Request) -> Response:
            if self.token is None and not _is_loopback(self._spec.host):
                return refused(403, "set admin.token_file to show this beyond this machine")
            if self.token is not None and not self._has_token(request):
                return refused(401, "the admin token is needed: Authorization: Bearer TOKEN")
            return await handler(request)

        return guarded

    def _has_token(self, request: Request) -> bool:
        told = request.headers.getlist("authorization")
        scheme, _, given = (told[0] if len(told) == 1 else "").partition(" ")
        wanted = (self.token or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted)

    async def _observation(self, _: Request) -> Response:
        return JSONResponse(self._observer.snapshot())

    async def _decided(self, request: Request) -> Response:
        if self._decisions is None:
            return refused(404, "no autoscaler runs in this process")
        after = request.query_params.get("after", "0")
        if not after.isdigit() or len(after) > 15:
            return refused(400, "after must be a number, as `next` gave it")
        following, lines = self._decisions(int(after))
        return JSONResponse({"v": SCHEMA, "next": following, "lines": lines})

    async def _replicas(self, _: Request) -> Response:
        fleet = self._gateway.fleet
        rows = [
            row | {"model": model, "role": role.value, "drained": self._drained.get(row["id"])}
            for model, role in fleet.pools()
            for row in fleet.rows(model, role)
        ]
        return JSONResponse({"v": SCHEMA, "gateway": self._gateway.name, "replicas": rows})

    # Changes: never without the token.

    def _guard(self, handler: _Handler) -> _Handler:
        async def guarded(request: Request) -> Response:
            if self.token is None:
                return refused(403, "set admin.token_file to let anybody change anything here")
            if not self._has_token(request):
                return refused(401, "the admin token is needed: Authorization: Bearer TOKEN")
            size = request.headers.get("content-length", "0")
            if (
                not size.isdigit()
                or int(size) > _MAX_BODY
                or "transfer-encoding" in request.headers
            ):
                return refused(413, f"a body of {_MAX_BODY} bytes at most, with its Content-Length")
            return await handler(request)

        return guarded

    async def _change(self, request: Request) -> Response:
        body = await _object(request)
        replica, action = body.get("replica"), body.get("do")
        if action == "expect":
            return self._expect(body)
        if not isinstance(replica, str) or not 0 < len(replica) <= 256:
            return refused(400, "replica must be a name")
        if action not in _ACTIONS:
            return refused(400, f"do must be one of {', '.join(_ACTIONS)}, expect")
        fleet = self._gateway.fleet
        if action == "add":
            url, model = body.get("url"), body.get("model")
            if not isinstance(url, str) or not _is_address(url) or not isinstance(model, str):
                return refused(400, "add needs url (http(s)://HOST:PORT) and model")
            fleet.add(replica, url, model)
        elif action == "drain":
            self._drained[replica] = False
            fleet.drain(replica, self._note_drained)
        else:
            self._drained.pop(replica, None)
            {"attach": fleet.attach, "detach": fleet.detach, "remove": fleet.remove}[action](
                replica
            )
        return JSONResponse({"v": SCHEMA, "gateway": self._gateway.name})

    def _expect(self, body: Mapping[str, Any]) -> Response:
        """Take when replicas that start will likely serve."""
        model, seconds = body.get("model"), body.get("seconds")
        if (
            not isinstance(model, str)
            or not isinstance(seconds, list)
            or len(seconds) > _MOST_EXPECTED
            or not all(isinstance(s, int | float) and 0 <= s <= _DAY for s in seconds)
        ):
            return refused(400, "expect needs model and seconds, a list of times from now")
        self._gateway.fleet.expect(model, seconds)
        return JSONResponse({"v": SCHEMA, "gateway": self._gateway.name})

    def _note_drained(self, replica: str) -> None:
        self._drained[replica] = True


class _Server(uvicorn.Server):
    """Uvicorn inside a loop that handles its own signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _object(request: Request) -> dict[str, Any]:
    """Read a small JSON object; {} for anything else."""
    size = request.headers.get("content-length", "")
    if not size.isdigit() or int(size) > _MAX_BODY:
        return {}
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def _no_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    if status == 405:
        return refused(405, f"{request.url.path} does not take {request.method}")
    return refused(404, "no such route")
