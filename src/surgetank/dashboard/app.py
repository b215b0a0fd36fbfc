"""The page's own HTTP side: static files, one event stream, and strict headers on all of it.

Rule: the page runs only what is served here: no inline script, no other host. On loopback it
answers only to loopback names, so that no web site can read it by giving this machine another name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surgetank.dashboard.board import Board

STATIC: Final = Path(__file__).parent / "static"
_SHARED: Final = ("surgetank.report", "static")  # chart library, palette, theme: as in reports
_VIEWERS: Final = 100  # open pages at once

SECURITY: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def application(board: Board, *, loopback: bool) -> ASGIApp:
    """The ASGI application that shows `board`. `loopback`: answer to this machine's names only."""
    viewers = 0

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def stream(_: Request) -> Response:
        if viewers >= _VIEWERS:
            return PlainTextResponse(f"{_VIEWERS} pages are open already\n", status_code=503)
        return StreamingResponse(watched(), media_type="text/event-stream")

    async def watched() -> AsyncIterator[bytes]:
        nonlocal viewers
        viewers += 1
        try:
            async for event in board.events():
                yield event
        finally:
            viewers -= 1

    return _Guard(
        Starlette(
            routes=[
                Route("/", page),
                Route("/stream", stream),
                Mount("/static", StaticFiles(directory=STATIC, packages=[_SHARED])),
            ]
        ),
        loopback=loopback,
    )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on, or a Host header's name, means this machine only."""
    name = host.removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Guard:
    """Sets SECURITY on every answer, and refuses foreign Host headers."""

    def __init__(self, app: ASGIApp, *, loopback: bool) -> None:
        self._app = app
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY)
            await send(message)

        app = self._app
        if scope["type"] == "http" and self._loopback and not _local(Headers(scope=scope)):
            app = PlainTextResponse("this page answers to localhost only\n", status_code=421)
        await app(scope, receive, guarded)


def _local(headers: Headers) -> bool:
    host = headers.get("host", "")
    name, _, port = host.rpartition(":")
    return is_loopback(name if name and port.isdigit() else host)
