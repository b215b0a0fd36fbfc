"""Under load: queueing, shedding, aborts and what the metrics say of it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .client import CAPTURES, Replica, captured, chat, events, run, shape

LONG = {"max_tokens": 1500, "ignore_eos": True}
CHAT = "/v1/chat/completions"


def samples(text: bytes | str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = text.decode() if isinstance(text, bytes) else text
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def of(found: dict[Any, float], name: str, **labels: str) -> float:
    wanted = {"engine": "0", "model_name": "tiny", **labels}
    return found[f"vllm:{name}", tuple(sorted(wanted.items()))]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_kv_at_once(*, stream: bool) -> None:
    async def test(replica: Replica) -> None:
        client = await replica.connect()
        client.send(CHAT, chat(stream=stream, **LONG))
        await replica.in_flight(1)
        if stream:
            await client.tokens(3)
        await replica.hang_up(client)
        batcher = replica.engine.batcher
        assert (batcher.running, batcher.waiting, batcher.kv_blocks_used) == (0, 0, 0)
        found = samples((await replica.ask("/metrics")).body)
        assert of(found, "request_success_total", finished_reason="abort") == 1

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_is_forgotten(*, stream: bool) -> None:
    async def test(replica: Replica) -> None:
        first = await replica.connect()
        first.send(CHAT, chat(stream=True, **LONG))
        await first.tokens(1)
        second = await replica.connect()
        second.send(CHAT, chat(stream=stream, **LONG))
        await replica.in_flight(2)
        if stream:  # vLLM sends the head of a queued stream at once
            await second.until(lambda: second.parser.head is not None)
            assert second.body == b""
        assert replica.engine.batcher.waiting == 1
        await replica.hang_up(second)
        assert (replica.engine.batcher.running, replica.engine.batcher.waiting) == (1, 0)

    run(test, max_num_seqs=1)


def test_a_full_engine_sheds_in_vllms_form_and_counts_it() -> None:
    async def test(replica: Replica) -> None:
        holder = await replica.connect()
        holder.send(CHAT, chat(stream=True, **LONG))
        await holder.tokens(1)
        for stream in (True, False):
            reply = await replica.ask(CHAT, chat(stream=stream))
            assert (reply.head.status, reply.body) == captured("queue_full_503_stream.http")
            assert reply.head.get(b"retry-after") is None
        found = samples((await replica.ask("/metrics")).body)
        name = "vllm:admission_rejections_total"
        labels = (("model_name", "tiny"), ("reason", "max_num_queued_reqs"))
        assert found[name, labels] == 2

    run(test, max_queued=1)


def test_a_stream_too_many_can_be_shed_inside_a_200_as_in_a_burst() -> None:
    async def test(replica: Replica) -> None:
        holder = await replica.connect()
        holder.send(CHAT, chat(stream=True, **LONG))
        await holder.tokens(1)
        reply = await replica.ask(CHAT, chat(stream=True))
        status, body = captured("burst_overflow_200_stream.http")
        assert reply.head.status == status
        assert reply.events == events(body)
        assert (await replica.ask(CHAT, chat())).head.status == 503

    run(test, max_queued=1, shed="event")


def test_a_choice_takes_a_seat_of_the_bound_each() -> None:
    async def test(replica: Replica) -> None:
        assert (await replica.ask(CHAT, chat(n=3, max_tokens=1))).head.status == 503
        assert (await replica.ask(CHAT, chat(n=2, max_tokens=1))).head.status == 200

    run(test, max_queued=2)


def test_a_burst_preempts_and_still_gives_everyone_all_tokens() -> None:
    async def test(replica: Replica) -> None:
        body = chat(max_tokens=400, ignore_eos=True)
        replies = await asyncio.gather(*(replica.ask(CHAT, body) for _ in range(16)))
        assert [r.json["usage"]["completion_tokens"] for r in replies] == [400] * 16
        found = samples((await replica.ask("/metrics")).body)
        assert of(found, "num_preemptions_total") > 0
        assert of(found, "request_success_total", finished_reason="length") == 16
        assert of(found, "generation_tokens_total") == 16 * 400
        assert of(found, "prompt_tokens_total") == 16 * 18

    run(test, speed=20.0, kv_blocks=130)


def test_priority_goes_before_arrival_when_the_engine_schedules_by_it() -> None:
    async def test(replica: Replica) -> None:
        order: list[str] = []

        async def ask(name: str, priority: int, tokens: int) -> None:
            await replica.ask(CHAT, chat(max_tokens=tokens, ignore_eos=True, priority=priority))
            order.append(name)

        first = asyncio.create_task(ask("first", 0, 300))
        await replica.in_flight(1)
        late = asyncio.create_task(ask("cheap", 5, 5))
        await replica.in_flight(2)
        await asyncio.gather(first, late, ask("dear", -5, 5))
        assert order == ["first", "dear", "cheap"]

    run(test, max_num_seqs=1, scheduling="priority")


def test_the_metrics_carry_vllms_names_labels_and_buckets() -> None:
    async def test(replica: Replica) -> None:
        await replica.ask(CHAT, chat(max_tokens=3, ignore_eos=True))
        reply = await replica.ask("/metrics")
        assert reply.head.get(b"content-type") == b"text/plain; version=0.0.4; charset=utf-8"
        ours = samples(reply.body)
        theirs = samples((CAPTURES / "metrics_after_load.txt").read_text(encoding="utf-8"))
        info = "vllm:cache_config_info"
        known = {key for key in theirs if key[0] != info}
        assert {key for key in ours if key[0] != info} <= known
        (ours_info,) = (dict(labels) for name, labels in ours if name == info)
        (theirs_info,) = (dict(labels) for name, labels in theirs if name == info)
        assert set(ours_info) <= set(theirs_info)
        assert (ours_info["block_size"], ours_info["num_gpu_blocks"]) == ("16", "256")
        assert of(ours, "time_to_first_token_seconds_count") == 1
        assert of(ours, "inter_token_latency_seconds_count") == 2

    run(test)


def test_the_gauges_show_what_runs_and_waits_and_the_kv_in_use() -> None:
    async def test(replica: Replica) -> None:
        for count in (1, 2, 3):
            client = await replica.connect()
            client.send(CHAT, chat(stream=True, **LONG))
            await replica.in_flight(count)
        steps = replica.engine.batcher.steps
        while replica.engine.batcher.steps <= steps + 1:  # gauges are as a whole step left them
            await replica.ask("/health")
        found = samples((await replica.ask("/metrics")).body)
        assert of(found, "num_requests_running") == 2
        assert of(found, "num_requests_waiting") == 1
        assert 4 / 256 <= of(found, "kv_cache_usage_perc") < 1

    run(test, max_num_seqs=2)


def test_a_request_that_comes_during_a_step_is_not_told_as_waiting() -> None:
    async def test(replica: Replica) -> None:
        for count in (1, 2):
            client = await replica.connect()
            client.send(CHAT, chat(stream=True, **LONG))
            await replica.in_flight(count)
        assert replica.engine.batcher.waiting == 1  # the first one's step takes a minute
        found = samples((await replica.ask("/metrics")).body)
        assert of(found, "num_requests_waiting") == 0

    run(test, a_ms=60_000.0)


def test_the_load_header_comes_on_whole_answers_when_asked_for_and_never_on_streams() -> None:
    async def test(replica: Replica) -> None:
        asked = {"endpoint-load-metrics-format": "JSON"}
        body = chat(max_tokens=2)
        reply = await replica.ask(CHAT, body, headers=asked)
        header = reply.head.get(b"endpoint-load-metrics") or b""
        assert header.startswith(b"JSON ")
        named = json.loads(header.removeprefix(b"JSON "))["named_metrics"]
        assert shape(named) == [("kv_cache_usage_perc", "float"), ("num_requests_waiting", "float")]
        text = await replica.ask(CHAT, body, headers={"endpoint-load-metrics-format": "text"})
        assert (text.head.get(b"endpoint-load-metrics") or b"").startswith(b"TEXT named_metrics.")
        for silent in (
            await replica.ask(CHAT, body),
            await replica.ask(CHAT, body, headers={"endpoint-load-metrics-format": "BIN"}),
            await replica.ask(CHAT, body | {"stream": True}, headers=asked),
        ):
            assert silent.head.get(b"endpoint-load-metrics") is None

    run(test)


def test_tokens_come_at_the_pace_of_the_profile_times_the_speed() -> None:
    async def test(replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await replica.ask(CHAT, chat(max_tokens=200, ignore_eos=True))
        took = loop.time() - began
        # 200 steps of 10 ms of engine time, ten times as fast; a busy machine may only be late
        assert took >= 0.197
        found = samples((await replica.ask("/metrics")).body)
        assert of(found, "e2e_request_latency_seconds_sum") == pytest.approx(2.0, rel=0.05)

    run(test, a_ms=10.0, speed=10.0)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def test(replica: Replica) -> None:
        client = await replica.connect()
        client.send(CHAT, chat(max_tokens=2, ignore_eos=True))
        client.send("/version")
        first = await client.reply()
        assert first.json["usage"]["completion_tokens"] == 2
        ahead, client.body = client.parser.excess, b""
        client.parser.reset("GET")
        client.body = client.parser.receive(ahead) if ahead else b""
        assert "version" in (await client.reply()).json

    run(test)


def test_an_idle_connection_is_closed_after_its_patience_and_not_before_a_request() -> None:
    async def test(replica: Replica) -> None:
        client = await replica.connect()
        assert (await client.ask("/version")).head.status == 200
        assert (await client.ask(CHAT, chat(max_tokens=100, ignore_eos=True))).whole
        assert await client.reader.read() == b""  # closed by the other side

    run(test, keep_alive=0.05)


def test_whatever_clients_do_nothing_is_left_behind() -> None:
    async def visit(replica: Replica, rng: random.Random) -> None:
        client = await replica.connect()
        length = rng.randrange(1, 300)
        stream = rng.random() < 0.7
        body = chat(stream=stream, max_tokens=length, ignore_eos=True, n=rng.choice([1, 1, 2]))
        client.send(CHAT, body)
        if rng.random() < 0.5:
            await client.reply()
        elif stream:
            await client.tokens(rng.randrange(length + 1))
        await client.close()

    async def test(replica: Replica) -> None:
        rng = random.Random(7)
        await asyncio.gather(*(visit(replica, rng) for _ in range(80)))
        for connection in list(replica.engine.connections):
            await connection.gone.wait()
        engine = replica.engine
        assert (engine.batcher.running, engine.batcher.waiting) == (0, 0)
        assert engine.batcher.kv_blocks_used == 0
        assert engine.batcher.due is None or engine.batcher.step(engine.batcher.due) == []
        assert (engine._generations, engine.driver._sequences) == (set(), {})

    run(test, speed=20.0, kv_blocks=140)


def test_an_http_1_0_client_gets_a_plain_stream_that_ends_with_the_connection() -> None:
    async def test(replica: Replica) -> None:
        client = await replica.connect()
        body = json.dumps(chat(stream=True, max_tokens=2, ignore_eos=True)).encode()
        head = f"POST {CHAT} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        client.writer.write(head + body)
        answer = await client.reader.read()
        assert b"transfer-encoding" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")

    run(test)


def test_what_is_not_http_is_a_400_and_the_end() -> None:
    async def test(replica: Replica) -> None:
        client = await replica.connect()
        client.writer.write(b"\x16\x03\x01\r\n\r\n")
        answer = await client.reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in answer

    run(test)
