"""The plain proxy the demo compares with: it must be good at what it is."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from surgetank.loadtest.client import Call, Client
from surgetank.policy.request import Outcome
from surgetank.studies.plain_proxy import PlainProxy
from surgetank.wire.http1 import chunk
from tests.loadtest.scripted import DONE, STREAM, STREAM_HEAD, TOKEN, Engine, Exchange

BOUND = 20.0
WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 73\r\n\r\n"
    b'{"choices":[{}],"usage":{"prompt_tokens":7,"completion_tokens":3,"n": 1}}'
)
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND):
            await test()

    uvloop.run(bounded())


@asynccontextmanager
async def proxied(*engines: str) -> AsyncIterator[Client]:
    proxy = PlainProxy(engines)
    server, address = await proxy.listen()
    client = Client(address)
    try:
        yield client
    finally:
        await client.close()
        server.close()
        proxy.close()


def test_requests_go_to_the_replicas_in_turn_over_connections_that_are_kept() -> None:
    async def test() -> None:
        async with Engine(STREAM) as a, Engine(STREAM) as b, proxied(a.url, b.url) as client:
            for n in range(6):
                exchange = await client.send(Call(b"%d" % n, key="secret"))
                assert exchange.outcome is Outcome.COMPLETED
                assert exchange.tokens == 3
            assert [r.body for r in a.requests] == [b"0", b"2", b"4"]
            assert [r.body for r in b.requests] == [b"1", b"3", b"5"]
            assert (a.connections, b.connections, client.connections) == (1, 1, 1)
            head = a.requests[0].head.lower()
            assert head.startswith(b"post /v1/chat/completions http/1.1\r\n")
            assert b"authorization: bearer secret\r\n" in head
            assert f"host: {a.url.removeprefix('http://')}\r\n".encode() in head

    run(test)


def test_whole_answers_and_errors_pass_as_they_are() -> None:
    async def test() -> None:
        async with Engine(WHOLE, BUSY) as engine, proxied(engine.url) as client:
            first, second = await client.send(Call(b"{}")), await client.send(Call(b"{}"))
            assert (first.outcome, first.tokens) == (Outcome.COMPLETED, 3)
            assert second.status == 503

    run(test)


def test_a_token_is_passed_on_before_the_next_one_exists() -> None:
    async def test() -> None:
        seen = asyncio.Event()

        async def slowly(exchange: Exchange) -> None:
            await exchange.write(STREAM_HEAD + chunk(TOKEN))
            await seen.wait()  # held back by the proxy, this would wait for ever
            await exchange.write(chunk(DONE) + b"0\r\n\r\n")

        async with Engine(slowly) as engine, proxied(engine.url) as client:
            address = client._pool._address
            reader, writer = await asyncio.open_connection(*address)
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
            )
            await reader.readuntil(TOKEN)
            seen.set()
            await reader.readuntil(b"0\r\n\r\n")
            writer.close()

    run(test)


def test_a_client_that_leaves_takes_its_request_with_it() -> None:
    async def test() -> None:
        gone = asyncio.Event()

        async def endless(exchange: Exchange) -> None:
            await exchange.write(STREAM_HEAD + chunk(TOKEN))
            await exchange.gone()
            gone.set()

        async with Engine(endless) as engine, proxied(engine.url) as client:
            exchange = await client.send(Call(b"{}", abandon_after=0.2))
            assert exchange.outcome is Outcome.ABANDONED
            await gone.wait()

    run(test)


def test_a_replica_that_cannot_be_connected_to_is_passed_over() -> None:
    async def test() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
            async with Engine(STREAM) as engine, proxied(dead, engine.url) as client:
                outcomes = [(await client.send(Call(b"{}"))).outcome for _ in range(4)]
                assert outcomes == [Outcome.COMPLETED] * 4
            async with proxied(dead) as client:
                assert (await client.send(Call(b"{}"))).status == 502

    run(test)


def test_a_kept_connection_that_the_replica_closed_is_no_error() -> None:
    async def test() -> None:
        async def once(exchange: Exchange) -> None:
            await exchange.write(STREAM)
            exchange.close()

        async with Engine(once) as engine, proxied(engine.url) as client:
            for _ in range(4):
                assert (await client.send(Call(b"{}"))).outcome is Outcome.COMPLETED

    run(test)


def test_a_stream_that_breaks_off_breaks_off_for_the_client_too() -> None:
    async def test() -> None:
        async def half(exchange: Exchange) -> None:
            await exchange.write(STREAM_HEAD + chunk(TOKEN))
            exchange.close()

        async with Engine(half) as engine, proxied(engine.url) as client:
            exchange = await client.send(Call(b"{}"))
            assert exchange.outcome is Outcome.UPSTREAM_FAILED
            assert exchange.first_token is not None

    run(test)


@pytest.mark.parametrize("arguments", [[], ["--replica"]])
def test_without_a_replica_it_says_what_it_needs_and_exits_2(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surgetank.studies.plain_proxy", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--replica" in done.stderr
