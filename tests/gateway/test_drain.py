"""The end of a gateway's life: who runs may end, who comes is told, and nobody is left to guess."""

from __future__ import annotations

import asyncio
import json

import pytest

from surgetank.policy.flow import FlowSpec
from surgetank.policy.request import Outcome
from tests.gateway.harness import (
    Connection,
    Engine,
    RawClient,
    Received,
    Running,
    ask,
    chat,
    delta,
    post,
    run,
    serving,
    until,
)


async def begin_and_hang(_: Received, connection: Connection) -> None:
    await connection.head()
    await connection.event(delta("word"))
    await connection.left()


async def say_nothing(_: Received, connection: Connection) -> None:
    await connection.left()


async def streaming(gateway: Running) -> RawClient:
    client = await RawClient.connect(gateway.port)
    client.send(post(chat(stream=True)))
    await client.reader.readuntil(b"word")
    return client


def test_draining_lets_streams_end_and_refuses_new_work() -> None:
    release = asyncio.Event()

    async def hold(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await release.wait()
        await connection.event("[DONE]")
        await connection.end()

    async def test() -> None:
        async with serving(Engine(default=hold)) as gateway:
            idle = await RawClient.connect(gateway.port)
            stream = await streaming(gateway)
            late = await RawClient.connect(gateway.port)
            late.send(b"POST /v1/chat/comp")
            await until(lambda: len(gateway.gateway.clients) == 3)
            await asyncio.sleep(0.01)
            draining = asyncio.ensure_future(gateway.gateway.drain())
            assert await idle.closed()
            late.send(post(chat())[len(b"POST /v1/chat/comp") :])
            assert (await late.reply()).status == 503
            release.set()
            assert b"[DONE]" in await stream.reader.read()
            await draining
            assert sorted(r.outcome for r in gateway.records) == ["completed", "shutdown"]
            with pytest.raises(OSError, match=r"refused|Connect"):
                await RawClient.connect(gateway.port)

    run(test)


def test_who_connects_while_draining_is_told_to_come_back_and_holds_nothing_up() -> None:
    async def test() -> None:
        async with serving(Engine(default=begin_and_hang)) as gateway:
            stream = await streaming(gateway)
            draining = asyncio.ensure_future(gateway.gateway.drain())
            await until(lambda: gateway.gateway.draining)
            reply = await ask(gateway.port, chat())
            assert reply.status == 503
            assert reply.json["error"]["code"] == "shutting_down"
            assert reply.headers["retry-after"] == "1"
            assert reply.headers["connection"] == "close"
            silent = await RawClient.connect(gateway.port)
            await until(lambda: len(gateway.gateway.clients) == 2)
            stream.close()
            await draining
            assert await silent.closed()

    run(test)


@pytest.mark.parametrize("hurried", [False, True])
def test_what_has_not_ended_with_the_drain_time_is_ended_in_words(*, hurried: bool) -> None:
    """A begun stream, one without a first event, a waiting request and half a request."""

    async def test() -> None:
        engine = Engine(scripts=[begin_and_hang, say_nothing])
        async with serving(
            engine, flow=FlowSpec(max_in_flight=2), drain_timeout=60.0 if hurried else 0.2
        ) as gateway:
            begun = await streaming(gateway)
            silent = await RawClient.connect(gateway.port)
            silent.send(post(chat(stream=True)))
            await until(lambda: len(engine.requests) == 2)
            waiting = await RawClient.connect(gateway.port)
            waiting.send(post(chat()))
            await until(lambda: len(gateway.gateway.driver) == 3)
            half = await RawClient.connect(gateway.port)
            half.send(b"POST /v1/chat/comp")
            await until(lambda: len(gateway.gateway.clients) == 4)
            await asyncio.sleep(0.01)
            draining = asyncio.ensure_future(gateway.gateway.drain())
            await until(lambda: gateway.gateway.draining)
            if hurried:
                gateway.gateway.end_drain()
            for client in (silent, waiting, half):
                reply = await client.reply()
                assert reply.status == 503
                assert reply.json["error"]["code"] == "shutting_down"
                assert reply.headers["retry-after"] == "1"
            rest = await begun.reader.read()
            event = rest.split(b"data: ", 1)[1].split(b"\n", 1)[0]
            assert json.loads(event)["error"]["code"] == "shutting_down"
            assert rest.endswith(b"0\r\n\r\n")
            await asyncio.wait_for(draining, 5.0)
            assert {r.outcome for r in gateway.records} == {Outcome.SHUTDOWN}
            assert sorted(r.status for r in gateway.records) == [200, 503, 503]
            assert len(engine.requests) == 2  # the freed place went to nobody
            counts = gateway.gateway.driver.flow.counts("default")
            assert (counts.queued, counts.running) == (0, 0)

    run(test)
