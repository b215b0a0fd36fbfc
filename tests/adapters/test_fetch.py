"""The probe client against real sockets: every ending is bounded, closed and told in one line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from surgetank.adapters.http import FetchError, Response, fetch

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each connection with `serve`, and knows when its connections have ended."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            self.asked.set()
            await self._serve(reader, writer)
            await reader.read()  # until the client has closed its side
        except OSError:
            pass  # it closed with a reset
        finally:
            self.ended.set()
            writer.transport.abort()


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[Server, str]]:
    handler = Server(serve)
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield handler, f"http://127.0.0.1:{port}"
    finally:
        server.close()
        await server.wait_closed()


def says(*pieces: bytes, close: bool = False) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.write_eof()

    return serve


def ask(serve: Serve, path: str = "/health", **options: object) -> tuple[Response, Server]:
    async def run() -> tuple[Response, Server]:
        async with serving(serve) as (handler, url):
            try:
                answer = await fetch(url + path, **{"timeout": 5.0, **options})  # type: ignore[arg-type] # options are of several types
            finally:
                async with asyncio.timeout(5):
                    if handler.requests:
                        await handler.ended.wait()  # the client's socket is closed in every ending
            return answer, handler

    return asyncio.run(run())


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "serve",
    [
        says(OK + b"content-length: 5\r\n\r\nhello"),
        says(OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        says(b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo", close=True),
        says(b"HTTP/1.1 200 O", b"K\r\nContent-Le", b"ngth: 5\r\n\r\nhe", b"llo"),
    ],
    ids=["length", "chunked", "until-close", "in-pieces"],
)
def test_a_body_is_read_whole_however_it_is_framed(serve: Serve) -> None:
    answer, _ = ask(serve)
    assert (answer.status, answer.body, answer.text) == (200, b"hello", "hello")


def test_method_headers_and_body_go_out_and_headers_come_back() -> None:
    received = asyncio.Queue[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await reader.readexactly(2))
        writer.write(b"HTTP/1.1 503 Busy\r\nX-Why: full\r\ncontent-length: 0\r\n\r\n")

    answer, server = ask(
        serve,
        path="/sleep?level=1",
        method="POST",
        body=b"{}",
        headers=[(b"authorization", b"Bearer k")],
    )
    head = server.requests[0].lower()
    assert head.startswith(b"post /sleep?level=1 http/1.1\r\n")
    assert b"\r\nauthorization: bearer k\r\n" in head
    assert b"\r\ncontent-length: 2\r\n" in head
    assert b"\r\nconnection: close\r\n" in head
    assert received.get_nowait() == b"{}"
    assert (answer.status, answer.get(b"x-why"), answer.get(b"x-none")) == (503, b"full", None)


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        (says(), "no answer within 0.05 s"),
        (says(OK), "no answer within 0.05 s"),
        (says(OK + b"content-length: 9\r\n\r\nhello", close=True), "not a usable HTTP answer"),
        (says(b"SSH-2.0-server\r\n\r\n"), "not a usable HTTP answer"),
        (says(close=True), "not a usable HTTP answer"),
        (says(OK + b"content-length: 999\r\n\r\n" + b"x" * 999), "not a usable HTTP answer"),
        (says(OK + b"connection: close\r\n\r\n" + b"x" * 999), "not a usable HTTP answer"),
        (
            says(OK + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200),
            "not a usable HTTP answer",
        ),
    ],
    ids=[
        "silent",
        "half a head",
        "cut",
        "no HTTP",
        "nothing",
        "long by length",
        "long by close",
        "long by chunks",
    ],
)
def test_a_bad_ending_is_one_line_and_closes_the_socket(serve: Serve, message: str) -> None:
    timeout = 0.05 if "within" in message else 5.0
    with pytest.raises(FetchError, match=message) as caught:
        ask(serve, timeout=timeout, max_body=100)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("http://127.0.0.1:")


def test_an_endless_body_ends_at_the_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0)

    with pytest.raises(FetchError, match=r"no answer within 0\.05 s"):
        ask(serve, timeout=0.05)


def test_a_refused_connection_says_so() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        await fetch(f"http://127.0.0.1:{port}/", timeout=5)

    with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:\d+/: .*[Cc]onnect"):
        asyncio.run(run())


def test_being_cancelled_is_no_fetch_error_and_closes_the_socket() -> None:
    async def run() -> None:
        async with serving(says()) as (handler, url):
            task = asyncio.create_task(fetch(url, timeout=60))
            async with asyncio.timeout(5):
                await handler.asked.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await handler.ended.wait()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("https://engine/", {}),
        ("engine:8000", {}),
        ("http:///health", {}),
        ("http://user:secret@engine/", {}),
        ("http://engine:port/", {}),
        ("http://engine/a b", {}),
        ("http://engine/\r\nX-Injected: 1", {}),
        ("http://engine/", {"headers": [(b"x", b"1\r\ny: 2")]}),
        ("http://engine/", {"headers": [(b"x y", b"1")]}),
        ("http://engine/", {"method": "GET /"}),
    ],
)
def test_what_cannot_be_asked_is_refused_before_connecting(
    url: str, options: dict[str, object]
) -> None:
    with pytest.raises(FetchError) as caught:
        asyncio.run(fetch(url, timeout=5, **options))  # type: ignore[arg-type] # options are of several types
    assert "\n" not in str(caught.value)
