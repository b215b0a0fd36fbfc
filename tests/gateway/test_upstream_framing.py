"""What engines and the wire before them may answer, and what becomes of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.harness import (
    WHOLE,
    Connection,
    Engine,
    RawClient,
    Received,
    ask,
    chat,
    post,
    run,
    serving,
    until,
)

BODY = json.dumps(WHOLE).encode()
JSON = b"content-type: application/json\r\n"
OK = b"HTTP/1.1 200 OK\r\n" + JSON
LENGTH = b"content-length: %d\r\n\r\n" % len(BODY)

BROKEN = {
    "a status line without a status": b"HTTP/1.1 OK\r\n" + JSON + LENGTH + BODY,
    "HTTP/2 by name": b"HTTP/2 200 OK\r\n" + JSON + LENGTH + BODY,
    "two lengths": OK + b"content-length: 5\r\n" + LENGTH + BODY,
    "a length and chunks": OK + b"transfer-encoding: chunked\r\n" + LENGTH + BODY,
    "a coding nobody knows": OK + b"transfer-encoding: gzip\r\n\r\n" + BODY,
    "a negative length": OK + b"content-length: -1\r\n\r\n" + BODY,
    "a space before the colon": OK + b"content-length : 5\r\n\r\nhello",
    "a folded field": OK + b"x: a\r\n b\r\n" + LENGTH + BODY,
    "bare line feeds": (OK + LENGTH).replace(b"\r\n", b"\n") + BODY,
    "a chunk size that is none": OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + BODY,
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n",
    "interim answers without end": b"HTTP/1.1 102 Processing\r\n\r\n" * 50,
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-",
    "a body cut short of its length": OK + LENGTH + BODY[:-9],
    "a chunked body without its end": OK + b"transfer-encoding: chunked\r\n\r\n9\r\n" + BODY[:9],
    "JSON cut short at the end of the connection": OK + b"\r\n" + BODY[:-9],
    "JSON cut short in whole chunks": (
        OK + b"transfer-encoding: chunked\r\n\r\n9\r\n" + BODY[:9] + b"\r\n0\r\n\r\n"
    ),
    "JSON cut short of its own, length right": OK + b"content-length: 9\r\n\r\n" + BODY[:9],
    "nothing at all under a 200": OK + b"content-length: 0\r\n\r\n",
    "nothing": b"",
}


def test_a_broken_answer_is_asked_for_once_more_and_never_counts_as_completed() -> None:
    async def told_as_failed(answer: bytes) -> None:
        async def script(_: Received, connection: Connection) -> None:
            await connection.send(answer)
            connection.writer.close()

        engine = Engine(scripts=[script, script])
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, chat())
            assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_failed"), answer
            assert (gateway.record().outcome, gateway.record().attempts) == ("upstream_failed", 2)
            reply = await ask(gateway.port, chat())
            assert (reply.status, reply.json) == (200, WHOLE)

    async def test() -> None:
        await asyncio.gather(*map(told_as_failed, BROKEN.values()))

    run(test)


@pytest.mark.parametrize("status", [204, 205, 301, 304])
def test_a_status_that_answers_no_completion_is_502(status: int) -> None:
    async def script(_: Received, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status)

    async def test() -> None:
        engine = Engine(scripts=[script])
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, chat())
            assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
            assert (await ask(gateway.port, chat())).status == 200
            assert engine.connections >= 1

    run(test)


def test_an_error_under_a_200_is_an_error() -> None:
    async def script(_: Received, connection: Connection) -> None:
        await connection.whole({"error": {"message": "too hot", "type": "x", "code": 400}})

    async def test() -> None:
        async with serving(Engine(default=script)) as gateway:
            reply = await ask(gateway.port, chat())
            assert (reply.status, reply.json["error"]["message"]) == (400, "too hot")
            assert gateway.record().outcome == "engine_rejected"

    run(test)


def test_what_only_python_writes_as_json_is_passed_on() -> None:
    odd = BODY.replace(b'"usage"', b'"logprob": NaN, "x"')

    async def script(_: Received, connection: Connection) -> None:
        await connection.whole(odd)

    async def test() -> None:
        async with serving(Engine(default=script)) as gateway:
            assert (await ask(gateway.port, chat())).body == odd
            assert gateway.record().outcome == "completed"

    run(test)


def test_interim_answers_are_swallowed_and_the_real_one_passed_on() -> None:
    async def script(_: Received, connection: Connection) -> None:
        await connection.send(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n"
        )
        await connection.whole(WHOLE)

    async def test() -> None:
        async with serving(Engine(default=script)) as gateway:
            assert (await ask(gateway.port, chat())).json == WHOLE

    run(test)


@pytest.mark.parametrize("how", ["trailing bytes", "connection: close", "HTTP/1.0", "no length"])
def test_a_connection_that_cannot_be_trusted_further_is_not_used_again(how: str) -> None:
    async def script(_: Received, connection: Connection) -> None:
        close = b"connection: close\r\n" if how == "connection: close" else b""
        line = b"HTTP/1.0 200 OK\r\n" if how == "HTTP/1.0" else b"HTTP/1.1 200 OK\r\n"
        length = b"\r\n" if how == "no length" else LENGTH
        more = b"HTTP/1.1 200 OK\r\n\r\n" if how == "trailing bytes" else b""
        await connection.send(line + JSON + close + length + BODY + more)
        if how == "no length":
            connection.writer.close()

    async def test() -> None:
        engine = Engine(scripts=[script])
        async with serving(engine) as gateway:
            (target,) = gateway.gateway.fleet
            assert (await ask(gateway.port, chat())).json == WHOLE
            await until(lambda: not target.pool.open)
            assert (await ask(gateway.port, chat())).json == WHOLE

    run(test)


def test_after_an_answer_to_half_a_request_the_connection_is_not_used_again() -> None:
    async def script(_: Received, connection: Connection) -> None:
        await connection.whole({"error": {"message": "too large", "code": 413}}, 413)

    async def test() -> None:
        engine = Engine(default=script, reads_at_most=1000)
        async with serving(engine) as gateway:
            (target,) = gateway.gateway.fleet
            reply = await ask(gateway.port, chat(user="u" * 8_000_000))
            assert (reply.status, reply.json["error"]["message"]) == (413, "too large")
            await until(lambda: not target.pool.open)

    run(test)


def test_answers_that_nobody_reads_hold_back_the_requests_behind_them() -> None:
    big = json.dumps({**WHOLE, "padding": "x" * 900_000}).encode()

    async def script(_: Received, connection: Connection) -> None:
        await connection.whole(big)

    async def test() -> None:
        engine = Engine(default=script)
        async with serving(engine) as gateway:
            client = await RawClient.connect(gateway.port)
            client.reader._limit = 1  # type: ignore[attr-defined]
            client.send(post(chat()) * 100)
            await until(lambda: any(c._paused for c in gateway.gateway.clients))
            seen = len(engine.requests)
            assert seen < 30
            (waiting,) = gateway.gateway.clients
            transport = waiting._transport
            assert transport is not None
            assert transport.get_write_buffer_size() < 3 << 20
            client.reader._limit = 1 << 24  # type: ignore[attr-defined]
            for _ in range(100):
                assert len((await client.reply()).body) == len(big)
            client.close()

    run(test)


def test_a_large_body_cut_short_is_not_passed_off_as_whole() -> None:
    async def script(_: Received, connection: Connection) -> None:
        await connection.send(OK + b"\r\n" + b'{"choices":["' + b"x" * 3_000_000)
        connection.writer.close()

    async def test() -> None:
        async with serving(Engine(default=script)) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(post(chat()))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.reply()
            await until(lambda: len(gateway.records) == 1)
            assert gateway.record().outcome == "upstream_failed"
            client.close()

    run(test)


def test_one_stuck_stream_harms_no_other() -> None:
    async def stuck(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.left()

    async def test() -> None:
        engine = Engine(scripts=[stuck])
        async with serving(engine) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(post(chat(stream=True)))
            await until(lambda: len(engine.requests) == 1)
            replies = await asyncio.gather(
                *(ask(gateway.port, chat(stream=True)) for _ in range(20))
            )
            assert {r.events[-1] for r in replies} == {"[DONE]"}
            client.close()

    run(test)
