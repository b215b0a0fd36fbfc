"""Embeddings, responses and messages: passed on as they are, under the same rules."""

from __future__ import annotations

from typing import Any

import pytest

from surgetank.gateway.keys import KeyRing, StoredKey, digest_of
from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import Tenant
from tests.gateway.harness import (
    NATIVE,
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

EMBEDDINGS = {"model": "tiny", "input": ["hello", "there"]}
RESPONSES = {"model": "tiny", "input": "hello there", "max_output_tokens": 20}
MESSAGES = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
COUNT = {"model": "tiny", "messages": MESSAGES["messages"]}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", EMBEDDINGS),
    ("/v1/responses", RESPONSES),
    ("/v1/messages", MESSAGES),
    ("/v1/messages/count_tokens", COUNT),
]
BUSY = {"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}}


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_whole_answer_is_passed_on_as_it_is_and_its_usage_counted(
    path: str, body: dict[str, Any]
) -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, body, path=path)
            assert (reply.status, reply.json) == (200, NATIVE[path])
            assert reply.headers["x-request-id"]
            assert engine.asked == [path]
            assert engine.requests[0].path == path
            assert engine.requests[0].json == body
            record = gateway.record()
            assert (record.route, record.outcome, record.prompt_tokens) == (path, "completed", 7)
            assert record.output_tokens == (2 if path in {"/v1/responses", "/v1/messages"} else 0)
            assert record.cached_tokens == (3 if path == "/v1/responses" else 0)
            assert (await ask(gateway.port, body, path=path)).status == 200
            assert engine.asked == [path]  # known from then on

    run(test)


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_route_the_engines_lack_is_404_and_nothing_is_reserved(
    path: str, body: dict[str, Any]
) -> None:
    async def test() -> None:
        engine = Engine(lacks=(path,))
        tenants = [Tenant("default", requests_per_minute=60, burst_seconds=2)]
        async with serving(engine, tenants=tenants) as gateway:
            for _ in range(3):
                reply = await ask(gateway.port, body, path=path)
                assert reply.status == 404
                if path.startswith("/v1/messages"):
                    assert reply.json["type"] == "error"
                    assert reply.json["error"]["type"] == "not_found_error"
                else:
                    assert reply.json["error"]["code"] == "unsupported_here"
                assert path in reply.json["error"]["message"]
            assert engine.requests == []
            assert [r.status for r in gateway.records] == [404, 404, 404]
            flow = gateway.gateway.driver.flow
            assert flow.counts("default").running == flow.counts("default").queued == 0
            assert flow.budget("default", gateway.gateway.loop.time()).remaining_requests == 2
            assert (await ask(gateway.port, chat())).status == 200

    run(test)


def test_a_model_that_turns_out_not_to_have_the_task_is_asked_once() -> None:
    async def lacks(_: Received, connection: Connection) -> None:
        told = {"message": "The model does not support Embeddings API", "code": 501}
        await connection.whole({"error": told}, 501)

    async def test() -> None:
        engine = Engine(scripts=[lacks])
        async with serving(engine) as gateway:
            assert (await ask(gateway.port, EMBEDDINGS, path="/v1/embeddings")).status == 501
            for _ in range(9):
                assert (await ask(gateway.port, EMBEDDINGS, path="/v1/embeddings")).status == 404
            assert len(engine.requests) == 1
            (target,) = gateway.gateway.fleet
            assert target.outlier.failures == 0

    run(test)


def test_a_route_is_served_only_when_every_replica_of_the_model_has_it() -> None:
    async def test() -> None:
        async with serving(Engine(), Engine(lacks=("/v1/embeddings",))) as gateway:
            assert (await ask(gateway.port, EMBEDDINGS, path="/v1/embeddings")).status == 404
            assert (await ask(gateway.port, RESPONSES, path="/v1/responses")).status == 200

    run(test)


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_keys_quotas_and_models_are_judged_on_every_route_in_its_dialect(
    path: str, body: dict[str, Any]
) -> None:
    secret = b"s" * 32
    ring = KeyRing(secret, [StoredKey("gold", digest_of("sk-st-gold", secret))])
    tenants = [Tenant("gold", requests_per_minute=60, burst_seconds=2)]
    anthropic = path.startswith("/v1/messages")
    key = "x-api-key: sk-st-gold\r\n" if anthropic else "authorization: Bearer sk-st-gold\r\n"

    async def test() -> None:
        engine = Engine()
        async with serving(engine, keys=ring, tenants=tenants) as gateway:

            async def refused(status: int, kind: str, code: str, **how: Any) -> None:
                reply = await ask(gateway.port, how.pop("body", body), path=path, **how)
                assert reply.status == status
                if anthropic:
                    assert set(reply.json) == {"type", "error"}
                    assert reply.json["type"] == "error"
                    assert reply.json["error"]["type"] == kind
                else:
                    assert reply.json["error"]["code"] == code

            await refused(401, "authentication_error", "invalid_api_key")
            await refused(
                401, "authentication_error", "invalid_api_key", headers="x-api-key: nope\r\n"
            )
            other = {**body, "model": "other"}
            await refused(404, "not_found_error", "model_not_found", body=other, headers=key)
            bad = b'{"model": 5}'
            await refused(400, "invalid_request_error", "invalid_type", body=bad, headers=key)
            for _ in range(2):
                assert (await ask(gateway.port, body, path=path, headers=key)).status == 200
            await refused(429, "rate_limit_error", "requests_quota_exceeded", headers=key)
            assert {r.tenant for r in gateway.records if r.status != 401} == {"gold"}
        assert len(engine.requests) == 2
        assert all("x-api-key" not in r.headers for r in engine.requests)

    run(test)


def test_x_api_key_is_no_key_on_other_routes() -> None:
    secret = b"s" * 32
    ring = KeyRing(secret, [StoredKey("gold", digest_of("sk-st-gold", secret))])

    async def test() -> None:
        async with serving(Engine(), keys=ring) as gateway:
            reply = await ask(gateway.port, chat(), headers="x-api-key: sk-st-gold\r\n")
            assert reply.status == 401

    run(test)


def events(*data: tuple[str, str]) -> list[bytes]:
    return [f"event: {kind}\ndata: {text}\n\n".encode() for kind, text in data]


RESPONSE_STREAM = events(
    (
        "response.created",
        '{"type":"response.created","response":{"status":"in_progress","usage":null}}',
    ),
    ("response.output_text.delta", '{"type":"response.output_text.delta","delta":"a"}'),
    ("response.output_text.delta", '{"type":"response.output_text.delta","delta":"b"}'),
    (
        "response.completed",
        (
            '{"type":"response.completed","response":{"id":"resp_1","status":"completed",'
            '"error":null,"usage":{"input_tokens":7,"output_tokens":2,'
            '"input_tokens_details":{"cached_tokens":3}}}}'
        ),
    ),
)
MESSAGE_STREAM = events(
    (
        "message_start",
        (
            '{"type":"message_start","message":{"id":"msg_1","type":"message","content":[],'
            '"stop_reason":null,"usage":{"input_tokens":4,"output_tokens":0,'
            '"cache_read_input_tokens":3}}}'
        ),
    ),
    (
        "content_block_start",
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
    ),
    (
        "content_block_delta",
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}',
    ),
    (
        "content_block_delta",
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"b"}}',
    ),
    ("content_block_stop", '{"type":"content_block_stop","index":0}'),
    (
        "message_delta",
        '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}',
    ),
    ("message_stop", '{"type":"message_stop"}'),
)
STREAMS = [
    ("/v1/responses", {**RESPONSES, "stream": True}, RESPONSE_STREAM),
    ("/v1/messages", {**MESSAGES, "stream": True}, MESSAGE_STREAM),
]


async def send_stream(connection: Connection, pieces: list[bytes]) -> None:
    await connection.head()
    for piece in pieces:
        await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))


@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
@pytest.mark.parametrize("one_byte", [False, True])
def test_a_stream_is_passed_on_byte_for_byte_and_its_usage_counted(
    path: str,
    body: dict[str, Any],
    stream: list[bytes],
    one_byte: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async def script(_: Received, connection: Connection) -> None:
        whole = b"".join(stream)
        pieces = [whole[i : i + 1] for i in range(len(whole))] if one_byte else stream
        await send_stream(connection, pieces)
        await connection.end()

    async def test() -> None:
        engine = Engine(default=script)
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, body, path=path)
            assert reply.status == 200
            assert reply.body == b"".join(stream)
            assert "stream_options" not in engine.requests[0].json
            record = gateway.record()
            assert record.outcome == "completed"
            assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (7, 3, 2)
            assert record.first_token is not None

    run(test)


@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
def test_a_stream_that_breaks_off_ends_with_an_error_event_of_its_dialect(
    path: str, body: dict[str, Any], stream: list[bytes]
) -> None:
    async def dies(_: Received, connection: Connection) -> None:
        await send_stream(connection, stream[:3])
        await connection.cut()

    async def ends_early(_: Received, connection: Connection) -> None:
        await send_stream(connection, stream[:-1])
        await connection.end()

    async def test() -> None:
        engine = Engine(scripts=[dies, ends_early])
        async with serving(engine) as gateway:
            for _ in range(2):
                reply = await ask(gateway.port, body, path=path)
                last = reply.body.decode().split("\n\n")[-2]
                assert last.startswith("event: error\ndata: {")
                assert '"type":"error"' in last
                assert '"error":{' in last
            assert {r.outcome for r in gateway.records} == {"upstream_failed"}

    run(test)


@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
def test_a_failure_told_in_a_stream_is_a_failure(
    path: str, body: dict[str, Any], stream: list[bytes]
) -> None:
    told = (
        ("error", '{"type":"error","error":{"type":"overloaded_error","message":"full"}}')
        if path == "/v1/messages"
        else (
            "response.failed",
            (
                '{"type":"response.failed","response":{"error":{"code":"server_error",'
                '"message":"lost"},"usage":null}}'
            ),
        )
    )

    async def script(_: Received, connection: Connection) -> None:
        await send_stream(connection, [*stream[:3], *events(told)])
        await connection.end()

    async def test() -> None:
        async with serving(Engine(default=script)) as gateway:
            reply = await ask(gateway.port, body, path=path)
            assert reply.body.endswith(events(told)[0])
            assert gateway.record().outcome == "upstream_error"

    run(test)


@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
def test_busy_engines_are_told_as_429_in_the_dialect(
    path: str, body: dict[str, Any], stream: list[bytes]
) -> None:
    async def busy(_: Received, connection: Connection) -> None:
        await connection.whole(BUSY, 503)

    async def test() -> None:
        async with serving(Engine(default=busy)) as gateway:
            reply = await ask(gateway.port, body, path=path)
            assert reply.status == 429
            assert int(reply.headers["retry-after"]) >= 1
            kind = "rate_limit_error"
            assert reply.json["error"]["type"] == kind
            assert ("param" in reply.json["error"]) is (path == "/v1/responses")
            assert stream

    run(test)


def test_what_would_run_or_be_kept_beyond_its_request_is_refused() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            for name, value in (
                ("background", True),
                ("previous_response_id", "resp_1"),
                ("conversation", {"id": "c"}),
            ):
                body = {**RESPONSES, name: value}
                reply = await ask(gateway.port, body, path="/v1/responses")
                assert (reply.status, reply.json["error"]["param"]) == (400, name)
            body = {**RESPONSES, "background": False, "previous_response_id": None}
            assert (await ask(gateway.port, body, path="/v1/responses")).status == 200
            assert len(engine.requests) == 1

    run(test)


def test_native_requests_wait_in_the_same_queue_and_a_leaving_client_frees_its_place() -> None:
    released: list[Connection] = []

    async def holds(_: Received, connection: Connection) -> None:
        released.append(connection)
        await connection.left()

    async def test() -> None:
        engine = Engine(scripts=[holds])
        async with serving(engine, flow=FlowSpec(max_in_flight=1)) as gateway:
            first = await RawClient.connect(gateway.port)
            first.send(post(MESSAGES, path="/v1/messages"))
            await until(lambda: bool(released))
            second = await RawClient.connect(gateway.port)
            second.send(post(EMBEDDINGS, path="/v1/embeddings"))
            flow = gateway.gateway.driver.flow
            await until(lambda: flow.counts().queued == 1)
            first.close()
            assert (await second.reply()).status == 200
            second.close()
            await until(lambda: len(gateway.records) == 2)
            assert [r.outcome for r in gateway.records] == ["abandoned", "completed"]

    run(test)


LLAMA = {
    "total_slots": 4,
    "default_generation_settings": {"n_ctx": 2048},
    "model_path": "tiny.gguf",
    "build_info": "b0",
}


@pytest.mark.parametrize(("path", "body", "stream"), STREAMS)
def test_where_an_engine_goes_on_for_who_has_left_a_whole_answer_is_put_together(
    path: str, body: dict[str, Any], stream: list[bytes]
) -> None:
    async def script(_: Received, connection: Connection) -> None:
        await send_stream(connection, stream)
        await connection.end()

    async def test() -> None:
        engine = Engine(default=script, props=LLAMA)
        async with serving(engine, replica={"dialect": "llamacpp"}) as gateway:
            reply = await ask(gateway.port, {**body, "stream": False}, path=path)
            assert engine.requests[0].json["stream"] is True
            assert reply.headers["content-type"] == "application/json"
            if path == "/v1/messages":
                assert reply.json["content"] == [{"type": "text", "text": "ab"}]
                assert reply.json["stop_reason"] == "end_turn"
                assert reply.json["usage"]["output_tokens"] == 2
            else:
                assert reply.json["id"] == "resp_1"
            assert gateway.record().output_tokens == 2

    run(test)


def test_where_output_must_be_bounded_the_bound_has_the_routes_own_name_or_is_left_out() -> None:
    async def test() -> None:
        engine = Engine(props=LLAMA)
        spec = FlowSpec(max_default_output_tokens=50)
        async with serving(engine, replica={"dialect": "llamacpp"}, flow=spec) as gateway:
            for path, body, name in (
                ("/v1/embeddings", EMBEDDINGS, None),
                ("/v1/messages/count_tokens", COUNT, None),
                ("/v1/responses", {"model": "tiny", "input": "hello"}, "max_output_tokens"),
                ("/v1/messages", COUNT, "max_tokens"),
            ):
                await ask(gateway.port, body, path=path)
                sent = engine.requests[-1].json
                assert {n: v for n, v in sent.items() if "tokens" in n} == (
                    {} if name is None else {name: 50}
                ), path
            assert gateway.records[0].prompt_tokens == 7

    run(test)
