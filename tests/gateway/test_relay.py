"""What a client sees of an engine's answer, and what is accounted for it."""

from __future__ import annotations

import asyncio
import json

import pytest

from surgetank.gateway.spec import UpstreamSpec
from surgetank.policy.flow import FlowSpec
from tests.gateway.harness import (
    WHOLE,
    Connection,
    Engine,
    RawClient,
    Received,
    Script,
    answer_well,
    ask,
    chat,
    delta,
    post,
    run,
    serving,
    stream_words,
    until,
    usage_event,
)


def test_a_whole_answer_is_passed_on_as_it_is() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, chat(temperature=0.5), headers="x-request-id: my-1\r\n")
            assert reply.status == 200
            assert reply.json == WHOLE
            assert reply.headers["x-request-id"] == "my-1"
            assert engine.requests[0].headers["x-request-id"] == "my-1"
            assert engine.requests[0].json["temperature"] == 0.5
            record = gateway.record()
            assert (record.outcome, record.status, record.replica) == (
                "completed", 200, f"127.0.0.1:{engine.port}",
            )  # fmt: skip
            assert (record.prompt_tokens, record.output_tokens) == (7, 2)
            assert gateway.gateway.driver.flow.counts().running == 0

    run(test)


def test_a_stream_is_passed_on_with_its_headers_and_without_the_usage_it_did_not_ask_for() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, chat(stream=True))
            assert reply.status == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            assert reply.headers["cache-control"] == "no-cache"
            assert reply.headers["x-accel-buffering"] == "no"
            assert reply.events[-1] == "[DONE]"
            assert len(reply.events) == 5
            assert "usage" not in reply.body.decode()
            assert engine.requests[0].json["stream_options"] == {"include_usage": True}
            record = gateway.record()
            assert (record.prompt_tokens, record.output_tokens) == (7, 2)
            assert record.first_token is not None
            assert record.dispatched is not None
            assert record.dispatched <= record.first_token <= (record.ended or 0)

    run(test)


@pytest.mark.parametrize("asked", [True, False])
def test_an_explicit_include_usage_is_respected(*, asked: bool) -> None:
    async def test() -> None:
        engine = Engine()
        body = chat(stream=True, stream_options={"include_usage": asked})
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, body)
            assert engine.requests[0].json["stream_options"] == {"include_usage": asked}
            assert ('"usage"' in reply.body.decode()) is asked
            assert gateway.record().output_tokens == 2  # reported, or counted

    run(test)


def test_what_the_client_may_not_say_never_reaches_the_engine() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            await ask(
                gateway.port,
                chat(priority=-5, kv_transfer_params={"do_remote_decode": True}),
                headers="authorization: Bearer secret\r\ncookie: a=b\r\nx-evil: 1\r\n",
            )
            seen = engine.requests[0]
            assert "priority" not in seen.json
            assert "kv_transfer_params" not in seen.json
            assert not {"authorization", "cookie", "x-evil"} & set(seen.headers)

    run(test)


async def _busy_event(_: Received, connection: Connection) -> None:
    await connection.head()
    await connection.event({"error": {"message": "busy", "type": "Unavailable", "code": 503}})
    await connection.event("[DONE]")
    await connection.end()


async def _busy_status(_: Received, connection: Connection) -> None:
    await connection.whole({"error": {"message": "busy", "code": 503}}, 503)


@pytest.mark.parametrize("busy", [_busy_event, _busy_status])
@pytest.mark.parametrize("stream", [True, False])
def test_a_busy_engine_is_tried_elsewhere_and_then_told_as_429(
    busy: Script, *, stream: bool
) -> None:
    async def test() -> None:
        one, two = Engine(default=busy), Engine()
        async with serving(one, two) as gateway:
            replies = await asyncio.gather(
                *(ask(gateway.port, chat(stream=stream)) for _ in range(4))
            )
            assert [r.status for r in replies] == [200] * 4
        lone = Engine(default=busy)
        async with serving(lone) as gateway:
            reply = await ask(gateway.port, chat(stream=stream))
            assert reply.status == 429
            assert reply.json["error"]["code"] == "engine_busy"
            assert int(reply.headers["retry-after"]) >= 1
            assert float(reply.headers["retry-after-ms"]) > 0
            assert gateway.record().outcome == "engine_busy"
            lone.default = Engine().default
            again = await ask(gateway.port, chat(stream=stream))
            assert again.status == 200  # overload opens no breaker

    if busy is _busy_event and not stream:
        pytest.skip("an error event has no non-streamed form")
    run(test)


def test_an_engines_own_error_is_passed_on() -> None:
    async def refuse(_: Received, connection: Connection) -> None:
        await connection.whole({"error": {"message": "too long", "code": 400, "type": "x"}}, 400)

    async def test() -> None:
        engine = Engine(default=refuse)
        async with serving(engine) as gateway:
            for _ in range(50):
                reply = await ask(gateway.port, chat())
                assert reply.status == 400
                assert reply.json["error"]["message"] == "too long"
            engine.default = Engine().default
            assert (await ask(gateway.port, chat())).status == 200
            assert gateway.records[0].outcome == "engine_rejected"

    run(test)


def test_a_request_whose_engine_dies_before_the_first_byte_is_replayed_once() -> None:
    deaths = 0

    async def die(_: Received, connection: Connection) -> None:
        await connection.cut()

    async def die_once(request: Received, connection: Connection) -> None:
        nonlocal deaths
        deaths += 1
        if deaths == 1:
            await connection.cut()
        else:
            await answer_well(request, connection)

    async def test() -> None:
        one, two = Engine(default=die_once), Engine(default=die_once)
        async with serving(one, two) as gateway:
            replies = [await ask(gateway.port, chat()) for _ in range(3)]
            assert [r.status for r in replies] == [200, 200, 200]
            assert [r.attempts for r in gateway.records] == [2, 1, 1]
        one, two = Engine(default=die), Engine(default=die)
        three = Engine(default=die)
        async with serving(one, two, three) as gateway:
            reply = await ask(gateway.port, chat())
            assert reply.status == 502
            assert reply.json["error"]["code"] == "upstream_failed"
            # One poisoned request does not walk through the fleet.
            assert sum(len(e.requests) for e in (one, two, three)) == 2
            assert gateway.gateway.driver.flow.counts().failed == 1

    run(test)


def test_an_answer_cut_in_the_middle_of_a_whole_body_is_replayed() -> None:
    async def half(_: Received, connection: Connection) -> None:
        await connection.send(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"id":')
        await connection.cut()

    async def test() -> None:
        one, two = Engine(scripts=[half]), Engine(scripts=[half])
        async with serving(one, two) as gateway:
            one.scripts, two.scripts = [half], []
            replies = [await ask(gateway.port, chat()) for _ in range(2)]
            assert [r.json for r in replies] == [WHOLE, WHOLE]

    run(test)


def test_a_stream_whose_engine_dies_ends_with_an_error_event() -> None:
    async def die_midway(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("", role="assistant"))
        await connection.event(delta("word"))
        await connection.cut()

    async def test() -> None:
        engine = Engine(scripts=[die_midway])
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, chat(stream=True))
            assert reply.status == 200
            assert '"error"' in reply.events[-1]
            assert "[DONE]" not in reply.events
            record = gateway.record()
            assert (record.outcome, record.output_tokens) == ("upstream_failed", 1)
            assert (await ask(gateway.port, chat(stream=True))).events[-1] == "[DONE]"

    run(test)


def test_a_death_in_the_middle_of_an_event_still_ends_with_a_whole_error_event() -> None:
    async def die_inside(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await connection.send(b'14\r\ndata: {"id":"chatcmp\r\n')
        await connection.cut()

    async def test() -> None:
        async with serving(Engine(scripts=[die_inside])) as gateway:
            reply = await ask(gateway.port, chat(stream=True))
            assert reply.events[-1].startswith('{"error"')

    run(test)


def test_a_stream_that_ends_without_done_is_not_a_success() -> None:
    async def forget(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await connection.end()

    async def test() -> None:
        async with serving(Engine(default=forget)) as gateway:
            reply = await ask(gateway.port, chat(stream=True))
            assert '"error"' in reply.events[-1]
            assert gateway.record().outcome == "upstream_failed"

    run(test)


def test_an_error_event_means_failure_even_when_done_follows() -> None:
    async def crash(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await connection.event({"error": {"message": "dead", "code": 500, "type": "x"}})
        await connection.event("[DONE]")
        await connection.end()

    async def test() -> None:
        async with serving(Engine(default=crash)) as gateway:
            reply = await ask(gateway.port, chat(stream=True))
            assert reply.status == 200
            assert reply.events[-1] == "[DONE]"
            assert gateway.record().outcome == "upstream_error"

    run(test)


def test_a_connection_the_engine_closed_while_idle_costs_nobody_a_failure() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            assert (await ask(gateway.port, chat())).status == 200

            async def close_after(request: Received, connection: Connection) -> None:
                await connection.whole(WHOLE)
                await connection.cut()

            engine.scripts = [close_after]
            assert (await ask(gateway.port, chat())).status == 200
            assert (await ask(gateway.port, chat())).status == 200
            assert [r.attempts for r in gateway.records] == [1, 1, 1]

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_running_frees_its_slot_and_ends_the_upstream_call(
    *, stream: bool
) -> None:
    left = asyncio.Event()

    async def wait_for_leaving(request: Received, connection: Connection) -> None:
        if stream:
            await connection.head()
            await connection.event(delta("word"))
        await connection.left()
        left.set()

    async def test() -> None:
        engine = Engine(default=wait_for_leaving)
        async with serving(engine, flow=FlowSpec(max_in_flight=1)) as gateway:
            for round_ in range(3):
                left.clear()
                client = await RawClient.connect(gateway.port)
                client.send(post(chat(stream=stream)))
                if stream:
                    await client.reader.readuntil(b"word")
                else:
                    await until(lambda n=round_: len(engine.requests) > n)  # type: ignore[misc]
                client.close()
                async with asyncio.timeout(1):
                    await left.wait()
            counts = gateway.gateway.driver.flow.counts()
            assert (counts.abandoned, counts.running, counts.queued) == (3, 0, 0)
            assert {r.status for r in gateway.records} == {499}
            engine.default = Engine().default
            assert (await ask(gateway.port, chat())).status == 200

    run(test)


def test_a_client_that_leaves_while_queued_is_never_sent_up() -> None:
    async def hold(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await connection.left()

    async def test() -> None:
        engine = Engine(default=hold)
        async with serving(engine, flow=FlowSpec(max_in_flight=1)) as gateway:
            first = await RawClient.connect(gateway.port)
            first.send(post(chat(stream=True)))
            await first.reader.readuntil(b"word")
            waiting = await RawClient.connect(gateway.port)
            waiting.send(post(chat()))
            flow = gateway.gateway.driver.flow
            await until(lambda: flow.counts().queued == 1)
            waiting.close()
            await until(lambda: flow.counts().queued == 0)
            assert flow.counts().abandoned == 1
            assert len(engine.requests) == 1
            first.close()

    run(test)


LLAMA_PROPS = {
    "total_slots": 4,
    "default_generation_settings": {"n_ctx": 2048},
    "model_path": "tiny.gguf",
    "build_info": "b0",
}


def test_on_llama_cpp_a_whole_answer_is_streamed_up_and_put_together_again() -> None:
    async def test() -> None:
        engine = Engine(props=LLAMA_PROPS)
        async with serving(engine, replica={"dialect": "llamacpp"}) as gateway:
            reply = await ask(gateway.port, chat(max_tokens=5))
            assert engine.requests[0].json["stream"] is True
            assert reply.status == 200
            assert reply.headers["content-type"] == "application/json"
            body = reply.json
            assert body["object"] == "chat.completion"
            assert body["choices"][0]["message"]["content"] == "ab"
            assert body["choices"][0]["finish_reason"] == "stop"
            assert body["usage"]["completion_tokens"] == 2
            assert gateway.record().outcome == "completed"

    run(test)


def test_on_llama_cpp_what_cannot_be_put_together_is_refused_before_it_is_sent() -> None:
    """Sent as it is, it would go on in the engine after its client had left."""

    async def test() -> None:
        engine = Engine(props=LLAMA_PROPS)
        body = {"model": "tiny", "prompt": "x", "best_of": 2, "max_tokens": 4}
        async with serving(engine, replica={"dialect": "llamacpp"}) as gateway:
            reply = await ask(gateway.port, body, path="/v1/completions")
            assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported_here")
            assert engine.requests == []
            assert gateway.record().outcome == "unsupported"
            assert gateway.gateway.driver.flow.counts().running == 0

    run(test)


def test_an_engines_words_reach_its_client_and_no_record() -> None:
    async def quote(_: Received, connection: Connection) -> None:
        await connection.whole({"error": {"message": "got SECRET", "code": 400}}, 400)

    async def test() -> None:
        async with serving(Engine(default=quote)) as gateway:
            reply = await ask(gateway.port, chat())
            assert "SECRET" in reply.json["error"]["message"]
            record = gateway.record()
            assert (record.outcome, record.status) == ("engine_rejected", 400)
            assert "SECRET" not in record.to_line()

    run(test)


@pytest.mark.parametrize("status", [401, 403, 408, 499])
def test_an_answer_about_the_gateways_own_call_is_not_the_clients_business(status: int) -> None:
    async def refuse(_: Received, connection: Connection) -> None:
        await connection.whole({"error": {"message": "no", "code": status}}, status)

    async def test() -> None:
        async with serving(Engine(default=refuse)) as gateway:
            reply = await ask(gateway.port, chat())
            assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
            assert gateway.record().outcome == "upstream_error"

    run(test)


def test_a_500_of_an_engine_that_has_died_is_replayed_and_of_one_that_lives_is_told() -> None:
    async def crash(_: Received, connection: Connection) -> None:
        await connection.whole({"error": {"message": "boom", "code": 500}}, 500)

    async def test() -> None:
        one, two = Engine(default=crash), Engine(default=crash)
        async with serving(one, two) as gateway:
            assert (await ask(gateway.port, chat())).status == 500
            dead, other = (one, two) if one.requests else (two, one)
            other.default = answer_well
            dead.health = 500
            dead.requests.clear()
            replies = [await ask(gateway.port, chat()) for _ in range(4)]
            assert [r.status for r in replies] == [200] * 4

    run(test)


def test_records_say_what_waited_the_objective_and_the_clients_own_id() -> None:
    async def slow(_: Received, connection: Connection) -> None:
        await asyncio.sleep(0.05)
        await connection.whole(WHOLE)

    async def test() -> None:
        spec = FlowSpec(max_in_flight=1, ttft_objective=1.5)
        async with serving(Engine(default=slow), flow=spec) as gateway:
            first = asyncio.ensure_future(
                ask(gateway.port, chat(), headers="x-request-id: first\r\n")
            )
            await until(lambda: gateway.gateway.driver.flow.counts().running == 1)
            await ask(gateway.port, chat(), headers="x-request-id: second\r\n")
            await first
            records = {r.id: r for r in gateway.records}
            assert set(records) == {"first", "second"}
            assert records["first"].queued is None
            assert records["second"].queued == records["second"].arrived
            assert {r.ttft_objective for r in records.values()} == {1.5}

    run(test)


def test_a_request_timeout_is_504_before_the_first_byte_and_an_error_event_after() -> None:
    async def silent(request: Received, connection: Connection) -> None:
        if request.json["stream"]:
            await connection.head()
            await connection.event(delta("word"))
        await connection.left()

    async def test() -> None:
        engine = Engine(default=silent)
        async with serving(engine, flow=FlowSpec(request_timeout=0.2)) as gateway:
            reply = await ask(gateway.port, chat())
            assert reply.status == 504
            streamed = await ask(gateway.port, chat(stream=True))
            assert streamed.status == 200
            assert '"request_timeout"' in streamed.events[-1]
            assert gateway.gateway.driver.flow.counts().running == 0

    run(test)


def test_queue_bounds_and_timeouts_answer_429_in_the_openai_shape() -> None:
    async def hold(_: Received, connection: Connection) -> None:
        await connection.left()

    async def test() -> None:
        spec = FlowSpec(max_in_flight=1, max_queued=1, queue_timeout=0.3)
        async with serving(Engine(default=hold), flow=spec) as gateway:
            first = await RawClient.connect(gateway.port)
            first.send(post(chat()))
            flow = gateway.gateway.driver.flow
            await until(lambda: flow.counts().running == 1)
            second = asyncio.ensure_future(ask(gateway.port, chat()))
            await until(lambda: flow.counts().queued == 1)
            third = await ask(gateway.port, chat())
            assert (third.status, third.json["error"]["code"]) == (429, "queue_full")
            timed_out = await second
            assert (timed_out.status, timed_out.json["error"]["code"]) == (429, "queue_timeout")
            assert timed_out.json["error"]["type"] == "rate_limit_error"
            for reply in (third, timed_out):
                assert int(reply.headers["retry-after"]) >= 1
                assert "x-request-id" in reply.headers
            first.close()

    run(test)


def test_an_endless_line_breaks_one_stream_and_harms_no_other() -> None:
    async def endless(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        piece = b"x" * 65536
        for _i in range(64):
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def test() -> None:
        engine = Engine(scripts=[endless])
        limits = UpstreamSpec(health_interval=0.05, max_line_bytes=1 << 18)
        async with serving(engine, upstream=limits) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(post(chat(stream=True)))
            await client.reader.readuntil(b"word")
            other = await ask(gateway.port, chat(stream=True))
            assert other.events[-1] == "[DONE]"
            tail = await client.reader.readuntil(b'"error"')
            assert tail
            client.close()

    run(test)


def test_one_byte_writes_give_the_same_stream() -> None:
    async def drip(request: Received, connection: Connection) -> None:
        writer = connection.writer
        pieces: list[bytes] = []

        class Collect(Connection):
            async def send(self, data: bytes) -> None:
                pieces.append(data)

        await stream_words(Collect(connection.reader, writer), request)
        for byte in b"".join(pieces):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await writer.drain()

    async def test() -> None:
        plain, dripped = Engine(), Engine(default=drip)
        async with serving(plain) as gateway:
            expected = await ask(gateway.port, chat(stream=True))
        async with serving(dripped) as gateway:
            reply = await ask(gateway.port, chat(stream=True))
            assert reply.body == expected.body
            assert gateway.record().output_tokens == 2

    run(test)


def test_usage_sent_with_the_last_content_is_counted_and_kept() -> None:
    async def together(_: Received, connection: Connection) -> None:
        await connection.head()
        last = delta("word", finish="stop")
        last["usage"] = usage_event(3, 1)["usage"]
        await connection.event(last)
        await connection.event("[DONE]")
        await connection.end()

    async def test() -> None:
        async with serving(Engine(default=together)) as gateway:
            reply = await ask(gateway.port, chat(stream=True))
            assert "word" in reply.body.decode()
            assert gateway.record().prompt_tokens == 3

    run(test)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("joined", [1, 3])
def test_many_plain_tokens_pass_whole_and_are_counted(version: str, joined: int) -> None:
    words = [f"w{number}" for number in range(50)] + ["a\\b", "c", "d\ne", "f", "g"]

    async def script(_: Received, connection: Connection) -> None:
        await connection.head()
        for at in range(0, len(words), joined):
            payloads = [sse(delta(word)) for word in words[at : at + joined]]
            await connection.send(b"".join(b"%x\r\n%b\r\n" % (len(x), x) for x in payloads))
            await asyncio.sleep(0)
        await connection.cut()

    async def test() -> None:
        async with serving(Engine(scripts=[script])) as gateway:
            reply = await ask(gateway.port, chat(stream=True), version=version)
            told = [json.loads(event) for event in reply.events]
            assert [x["choices"][0]["delta"]["content"] for x in told[:-1]] == words
            assert told[-1]["error"]["code"] == "upstream_failed"
            record = gateway.record()
            assert (record.outcome, record.output_tokens) == ("upstream_failed", len(words))

    run(test)


def sse(event: object) -> bytes:
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
