"""The client's side of the wire: routes, keys, framing, limits, slow and leaving clients."""

from __future__ import annotations

import asyncio
import json

import pytest

from surgetank.gateway.keys import KeyRing, StoredKey, digest_of
from surgetank.gateway.spec import ListenSpec
from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import Tenant
from tests.gateway.harness import (
    WHOLE,
    Connection,
    Engine,
    RawClient,
    Received,
    Reply,
    ask,
    chat,
    delta,
    post,
    run,
    serving,
    until,
)


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/sleep", "/wake_up", "/v1/load_lora_adapter", "/health", "/", "/v1/models/../x",
     "/v1/chat/completions/", "//v1/chat/completions", "/v1/chat%2fcompletions", "/props"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_everything_but_the_known_routes_is_refused(path: str, method: str) -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(
                f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode()
            )
            reply = await client.reply()
            assert reply.status == 404
            assert reply.json["error"]["code"] == "not_found"
            assert reply.headers["x-request-id"]
            assert engine.requests == []
            client.close()

    run(test)


def test_a_wrong_method_is_405_and_names_the_right_one() -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(b"GET /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n")
            reply = await client.reply()
            assert (reply.status, reply.headers["allow"]) == (405, "POST")
            client.close()

    run(test)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nowhere"])
def test_the_answer_to_a_head_has_no_body(path: str) -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            answer = await client.reader.read()
            assert answer.split(b" ")[1] in {b"404", b"405"}
            assert answer.endswith(b"\r\n\r\n")
            assert b"content-length: 0" not in answer

    run(test)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("org/tiny%20model", 200),
        ("org%2Ftiny%20model", 200),
        ("tiny", 404),
        ("%ff", 404),
    ],
)
def test_one_model_is_told_by_its_name(name: str, status: int) -> None:
    async def test() -> None:
        async with serving(Engine(model="org/tiny model")) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(f"GET /v1/models/{name} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            reply = await client.reply()
            assert reply.status == status
            if status == 200:
                assert reply.json["id"] == "org/tiny model"
                assert reply.json["object"] == "model"
            else:
                assert reply.json["error"]["code"] == "model_not_found"
            client.close()

    run(test)


def test_models_lists_what_the_fleet_serves() -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            reply = await client.reply()
            assert [m["id"] for m in reply.json["data"]] == ["tiny"]
            client.close()

    run(test)


SECRET = b"s" * 32


def _ring(**tenants: str) -> KeyRing:
    return KeyRing(SECRET, [StoredKey(t, digest_of(key, SECRET)) for t, key in tenants.items()])


def test_only_a_valid_key_gets_in_and_decides_the_tenant() -> None:
    async def test() -> None:
        engine = Engine()
        ring = _ring(gold="sk-st-gold", free="sk-st-free")
        async with serving(engine, keys=ring, tenants=[Tenant("gold"), Tenant("free")]) as gateway:
            for header in ("", "authorization: Bearer nope\r\n", "authorization: Basic x\r\n"):
                reply = await ask(gateway.port, chat(), headers=header)
                assert reply.status == 401
                assert reply.json["error"]["code"] == "invalid_api_key"
                assert reply.headers["x-request-id"]
                assert reply.headers["www-authenticate"] == "Bearer"
            assert engine.requests == []
            good = await ask(gateway.port, chat(), headers="authorization: Bearer sk-st-gold\r\n")
            assert good.status == 200
            tenants = sorted((r.tenant, r.outcome) for r in gateway.records)
            assert tenants == [("", "unauthorized")] * 3 + [("gold", "completed")]

    run(test)


def test_each_request_of_a_connection_is_judged_by_its_own_key_and_the_present_ring() -> None:
    async def test() -> None:
        ring = _ring(gold="sk-st-gold", free="sk-st-free")
        async with serving(Engine(), keys=ring) as gateway:
            client = await RawClient.connect(gateway.port)
            for key in ("gold", "gold", "free", "gold", "free", "free"):
                client.send(post(chat(), headers=f"authorization: Bearer sk-st-{key}\r\n"))
                assert (await client.reply()).status == 200
                assert gateway.records[-1].tenant == key
            gateway.gateway.keys = _ring(gold="sk-st-gold")  # the other one was revoked
            client.send(post(chat(), headers="authorization: Bearer sk-st-free\r\n"))
            assert (await client.reply()).status == 401
            client.close()

    run(test)


@pytest.mark.parametrize("header", ["", "authorization: Bearer sk-st-gol\r\n"])
def test_a_key_that_was_let_in_lets_nobody_else_in_on_its_connection(header: str) -> None:
    async def test() -> None:
        async with serving(Engine(), keys=_ring(gold="sk-st-gold")) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(post(chat(), headers="authorization: Bearer sk-st-gold\r\n"))
            assert (await client.reply()).status == 200
            client.send(post(chat(), headers=header))
            assert (await client.reply()).status == 401
            client.close()

    run(test)


@pytest.mark.parametrize("second", ["sk-st-free", "sk-st-gold"])
def test_two_keys_on_one_request_are_400_and_neither_is_believed(second: str) -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine, keys=_ring(gold="sk-st-gold", free="sk-st-free")) as gateway:
            both = f"authorization: Bearer sk-st-gold\r\nAuthorization: Bearer {second}\r\n"
            reply = await ask(gateway.port, chat(), headers=both)
            assert reply.status == 400
            assert "authorization" in reply.json["error"]["message"]
            assert engine.requests == []

    run(test)


def test_quotas_are_enforced_and_told() -> None:
    async def test() -> None:
        tenants = [
            Tenant("default", requests_per_minute=60, burst_seconds=2, tokens_per_minute=6000)
        ]
        async with serving(Engine(), tenants=tenants) as gateway:
            replies = [await ask(gateway.port, chat(max_tokens=10)) for _ in range(3)]
            assert [r.status for r in replies] == [200, 200, 429]
            assert replies[0].headers["x-ratelimit-remaining-requests"] == "1"
            assert replies[2].json["error"]["code"] == "requests_quota_exceeded"
            assert 1 <= int(replies[2].headers["retry-after"]) <= 2

    run(test)


POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


def test_head_and_body_limits() -> None:
    async def test() -> None:
        limits = ListenSpec(port=0, max_head_bytes=4096, max_body_bytes=20_000)
        async with serving(Engine(), listen=limits) as gateway:
            big_head = await ask(gateway.port, chat(), headers=f"x-big: {'a' * 5000}\r\n")
            assert big_head.status == 431
            big_body = await ask(gateway.port, chat(user="u" * 30_000))
            assert big_body.status == 413
            ok = await ask(gateway.port, chat(user="u" * 10_000))
            assert ok.status == 200

    run(test)


def test_a_chunked_body_over_the_limit_is_413_while_it_still_comes() -> None:
    async def test() -> None:
        engine = Engine()
        limits = ListenSpec(port=0, max_body_bytes=20_000)
        async with serving(engine, listen=limits) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(POST + b"transfer-encoding: chunked\r\n\r\n")
            for _ in range(21):
                client.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
            reply = await client.reply()  # the last chunk was never sent
            assert (reply.status, reply.headers["connection"]) == (413, "close")
            assert await client.closed()
            assert engine.requests == []

    run(test)


def test_a_body_of_ten_megabytes_passes() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, chat(user="u" * 10_000_000))
            assert reply.status == 200
            assert len(engine.requests[0].json["user"]) == 10_000_000

    run(test)


def test_a_slow_head_and_a_slow_body_are_ended() -> None:
    async def test() -> None:
        limits = ListenSpec(port=0, head_timeout=0.2, body_timeout=0.2, idle_timeout=0.3)
        async with serving(Engine(), listen=limits) as gateway:
            for start in (b"POST /v1/chat/com", post(chat())[:-5]):
                client = await RawClient.connect(gateway.port)
                client.send(start)
                assert (await client.reply()).status == 400
                assert await client.closed()
            idle = await RawClient.connect(gateway.port)
            idle.send(post(chat()))
            assert (await idle.reply()).status == 200
            assert await idle.closed()

    run(test)


def test_who_never_sends_a_byte_has_no_keep_alive() -> None:
    async def test() -> None:
        limits = ListenSpec(port=0, head_timeout=0.1, idle_timeout=3600)
        async with serving(Engine(), listen=limits) as gateway:
            silent = await RawClient.connect(gateway.port)
            assert await silent.closed()

    run(test)


def test_one_connection_too_many_is_told_so_and_takes_nobody_s_place() -> None:
    async def test() -> None:
        async with serving(Engine(), listen=ListenSpec(port=0, max_connections=2)) as gateway:
            first, second = [await RawClient.connect(gateway.port) for _ in range(2)]
            await until(lambda: len(gateway.gateway.clients) == 2)
            third = await ask(gateway.port, chat())
            assert third.status == 503
            assert third.json["error"]["code"] == "too_many_connections"
            assert third.headers["retry-after"] == "1"
            crowd = [await RawClient.connect(gateway.port) for _ in range(200)]
            await until(lambda: gateway.gateway.metrics.turned_away == 201)
            assert len(gateway.gateway.turned_away) <= 64
            first.send(post(chat()))
            assert (await first.reply()).status == 200
            second.close()
            for client in crowd:
                client.close()
            await until(lambda: len(gateway.gateway.clients) == 1)
            assert (await ask(gateway.port, chat())).status == 200

    run(test)


def test_a_client_that_does_not_read_pauses_its_engine_and_is_ended() -> None:
    sent = 0

    async def flood(_: Received, connection: Connection) -> None:
        nonlocal sent
        await connection.head()
        for _i in range(16_000):
            await connection.event(delta("x" * 16_000))
            sent += 16_000

    async def test() -> None:
        limits = ListenSpec(port=0, write_timeout=0.5, max_buffered_bytes=1 << 17)
        async with serving(Engine(default=flood), listen=limits) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(post(chat(stream=True)))
            await until(lambda: len(gateway.records) == 1)
            assert gateway.record().outcome == "abandoned"
            assert sent < 120_000_000  # kernel buffers at both hops, not 256 MB in ours
            client.close()

    run(test)


def test_requests_on_one_connection_are_answered_in_order() -> None:
    async def echo(request: Received, connection: Connection) -> None:
        await asyncio.sleep(0.02 if request.json["user"] == "0" else 0)
        await connection.whole({**WHOLE, "id": request.json["user"]})

    async def test() -> None:
        async with serving(Engine(default=echo)) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(b"".join(post(chat(user=str(i))) for i in range(5)))
            answers = [(await client.reply()).json["id"] for _ in range(5)]
            assert answers == ["0", "1", "2", "3", "4"]
            client.close()

    run(test)


def test_http_1_0_gets_a_stream_without_chunks_and_a_closed_connection() -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(post(chat(stream=True), version="1.0"))
            reply = await client.reply()
            assert "transfer-encoding" not in reply.headers
            assert reply.events[-1] == "[DONE]"
            assert await client.closed()

    run(test)


def test_expect_100_continue_is_answered_before_the_body_and_only_with_a_key() -> None:
    async def test() -> None:
        async with serving(Engine(), keys=_ring(gold="sk-st-gold")) as gateway:
            head, _, body = post(
                chat(), headers="expect: 100-continue\r\nauthorization: Bearer sk-st-gold\r\n"
            ).partition(b"\r\n\r\n")
            client = await RawClient.connect(gateway.port)
            client.send(head + b"\r\n\r\n")
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            client.send(body)
            assert (await client.reply()).status == 200
            client.close()
            stranger = await RawClient.connect(gateway.port)
            stranger.send(head.replace(b"gold", b"lead") + b"\r\n\r\n")
            assert (await stranger.reply()).status == 401

    run(test)


def test_chunked_request_bodies_are_read() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            data = json.dumps(chat()).encode()
            client = await RawClient.connect(gateway.port)
            client.send(
                POST
                + b"transfer-encoding: chunked\r\n\r\n"
                + b"".join(b"1\r\n" + data[i : i + 1] + b"\r\n" for i in range(len(data)))
                + b"0\r\n\r\n"
            )
            assert (await client.reply()).status == 200
            assert engine.requests[0].json["messages"] == chat()["messages"]
            client.close()

    run(test)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"stream":1}', "stream"),
        (b'{"messages":[]}', "model"),
        (
            b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":-1}',
            "max_tokens",
        ),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_a_body_that_cannot_be_understood_is_400_and_says_why(body: bytes, word: str) -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, body)
            assert reply.status == 400
            assert word.lower() in reply.json["error"]["message"].lower()
            assert reply.json["error"]["type"] == "invalid_request_error"
            assert reply.headers["x-request-id"]
            assert engine.requests == []

    run(test)


def test_an_unknown_model_is_404_and_a_model_without_a_replica_503() -> None:
    async def test() -> None:
        engine = Engine(health=503)
        async with serving(engine, wait_ready=False) as gateway:
            assert (await ask(gateway.port, {**chat(), "model": "other"})).status == 404
            reply = await ask(gateway.port, chat())
            assert reply.status == 503
            assert reply.json["error"]["code"] == "no_replica_ready"

    run(test)


def test_a_thousand_abandoned_streams_leave_nothing_behind() -> None:
    async def endless(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await connection.left()

    async def test() -> None:
        async with serving(Engine(default=endless), flow=FlowSpec(max_in_flight=64)) as gateway:

            async def leave() -> None:
                client = await RawClient.connect(gateway.port)
                client.send(post(chat(stream=True)))
                await client.reader.readuntil(b"word")
                client.close()

            for _ in range(20):
                await asyncio.gather(*(leave() for _ in range(50)))
            flow = gateway.gateway.driver.flow
            await until(lambda: flow.counts().abandoned == 1000)
            await until(lambda: not gateway.gateway.clients)
            assert flow.counts().running == flow.counts().queued == 0
            assert len(gateway.gateway.driver) == 0

    run(test)


def test_a_client_that_says_how_long_it_waits_is_told_in_that_time() -> None:
    async def hold(_: Received, connection: Connection) -> None:
        await connection.left()

    async def test() -> None:
        async with serving(Engine(default=hold), flow=FlowSpec(max_in_flight=1)) as gateway:
            first = await RawClient.connect(gateway.port)
            first.send(post(chat()))
            flow = gateway.gateway.driver.flow
            await until(lambda: flow.counts().running == 1)
            reply = await ask(gateway.port, chat(), headers="x-stainless-read-timeout: 0.2\r\n")
            assert (reply.status, reply.json["error"]["code"]) == (429, "queue_timeout")
            first.close()

    run(test)


def test_bodies_under_way_are_bounded_over_all_clients() -> None:
    async def test() -> None:
        limits = ListenSpec(port=0, max_upload_bytes=100_000)
        async with serving(Engine(), listen=limits) as gateway:
            slow = [await RawClient.connect(gateway.port) for _ in range(3)]
            part = post(chat(user="u" * 60_000))[:-20_000]
            slow[0].send(part)
            await until(lambda: gateway.gateway.upload_bytes > 30_000)
            slow[1].send(part)
            slow[2].send(part)
            refused = await asyncio.wait_for(_first_reply(slow), 10)
            assert (refused.status, refused.json["error"]["code"]) == (429, "queue_full")
            assert gateway.gateway.upload_bytes <= 100_000
            for client in slow:
                client.close()
            await until(lambda: gateway.gateway.upload_bytes == 0)
            assert (await ask(gateway.port, chat())).status == 200

    run(test)


async def _first_reply(clients: list[RawClient]) -> Reply:
    asked = [asyncio.ensure_future(client.reply()) for client in clients]
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return done.pop().result()
