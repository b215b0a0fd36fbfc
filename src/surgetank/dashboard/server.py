"""The dashboard process: poll the source, serve the page, end on a signal or with the parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn

from surgetank.dashboard.app import application, is_loopback
from surgetank.dashboard.board import Board
from surgetank.dashboard.poll import Poll
from surgetank.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DashboardSpec:
    """Where the page reads and listens."""

    source: str  # http://HOST:PORT of a gateway's admin listener
    token: str | None = None  # sent to the source as a bearer token
    host: str = "127.0.0.1"  # the page has no login of its own
    port: int = 0  # 0 takes a free one
    with_parent: bool = False  # end when standard input closes, so that no orphan stays


class _Server(uvicorn.Server):
    """Uvicorn inside a loop that handles its own signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(spec: DashboardSpec, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address. Raises ConfigError."""
    sock = _bind(spec)
    asyncio.run(_run(spec, sock, ready))


async def _run(spec: DashboardSpec, sock: socket.socket, ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if spec.with_parent:
        loop.add_reader(sys.stdin, _at_end_of_input, loop, stopping)
    board = Board(spec.source, time.time())
    server = _Server(
        uvicorn.Config(
            application(board, loopback=is_loopback(spec.host)),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )
    poll = asyncio.create_task(Poll(spec.source, board, token=spec.token).run())
    serve = asyncio.create_task(server.serve(sockets=[sock]))
    ready(_address(sock))
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({poll, serve, stop}, return_when=asyncio.FIRST_COMPLETED)
    board.close()
    server.should_exit = True
    stop.cancel()
    await serve
    if poll.done():
        poll.result()  # a defect of ours: say so instead of a page that stands still
    poll.cancel()


def _at_end_of_input(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin)
        stopping.set()


def _bind(spec: DashboardSpec) -> socket.socket:
    """A listening socket, so that the port is known before anything runs."""
    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    try:
        return socket.create_server((spec.host, spec.port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"--host {spec.host} --port {spec.port}: cannot listen: {reason}"
        ) from None


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
