"""Each fault does what its name says, as often as asked, and then the replica is well again."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from surgetank.errors import InputError
from surgetank.mockengine.faults import Fault, FaultKind, Faults, build, parse
from surgetank.wire.http1 import ProtocolError

from .client import Replica, chat, run

CHAT = "/v1/chat/completions"
STREAM = chat(stream=True, max_tokens=20, ignore_eos=True)
WHOLE = chat(max_tokens=20, ignore_eos=True)


async def inject(replica: Replica, **settings: Any) -> None:
    reply = await replica.ask("/mock/faults", settings)
    assert reply.head.status == 200, reply.body
    assert len(reply.json["faults"]) == 1


async def well_again(replica: Replica) -> None:
    batcher = replica.engine.batcher
    assert (batcher.running, batcher.waiting) == (0, 0)
    reply = await replica.ask(CHAT, STREAM)
    assert reply.whole
    assert reply.events[-1] == "[DONE]"


@pytest.mark.parametrize("kind", ["cut", "reset"])
@pytest.mark.parametrize("after", [0, 5])
def test_a_cut_stream_ends_after_its_tokens_without_a_last_chunk(kind: str, after: int) -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind=kind, after=after, times=1)
        client = await replica.connect()
        client.send(CHAT, STREAM)
        try:
            await client.until(lambda: False)
        except ConnectionResetError:
            assert kind == "reset"
        assert not client.parser.done
        assert (client.parser.head is None) == (after == 0) or kind == "reset"
        if kind == "cut":
            assert client.body.count(b'"token_ids"') == after
        await well_again(replica)

    run(test)


def test_a_reset_is_seen_as_one() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="reset", times=1)
        client = await replica.connect()
        client.send(CHAT, WHOLE)
        with pytest.raises(ConnectionResetError):
            await client.reply()

    run(test)


def test_a_whole_answer_is_cut_before_its_first_byte() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="cut", after=5, times=1)
        client = await replica.connect()
        client.send(CHAT, WHOLE)
        assert await client.reader.read() == b""
        await well_again(replica)

    run(test)


@pytest.mark.parametrize("after", [0, 5])
def test_a_hang_says_nothing_more_and_keeps_the_connection(after: int) -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="hang", after=after, times=1)
        client = await replica.connect()
        client.send(CHAT, STREAM)
        if after:
            await client.tokens(after)
        # a whole other answer of the same length is through, and nothing more has come
        assert (await replica.ask(CHAT, STREAM)).whole
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
        assert client.body.count(b'"token_ids"') == after
        await client.close()
        await well_again(replica)

    run(test)


def test_an_error_event_ends_a_200_stream_with_done_as_vllm_does() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="error-event", after=3, times=2)
        reply = await replica.ask(CHAT, STREAM)
        assert (reply.head.status, reply.whole) == (200, True)
        assert len(reply.events) == 1 + 3 + 2
        assert reply.events[-2]["error"]["code"] == 500
        assert reply.events[-1] == "[DONE]"
        whole = await replica.ask(CHAT, WHOLE)
        assert (whole.head.status, whole.json["error"]["code"]) == (500, 500)
        await well_again(replica)

    run(test)


def test_an_error_can_be_the_first_event() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="error-event", times=1)
        reply = await replica.ask(CHAT, STREAM)
        assert "error" in reply.events[0]

    run(test)


def test_a_trickled_answer_is_the_same_in_single_bytes() -> None:
    async def test(replica: Replica) -> None:
        body = chat(stream=True, max_tokens=3, ignore_eos=True, seed=1)
        plain = await replica.ask(CHAT, body)
        await inject(replica, kind="trickle", times=1)
        client = await replica.connect()
        client.send(CHAT, body)
        sizes = []
        while not client.parser.done:
            data = await client.reader.read(65536)
            assert data
            sizes.append(len(data))
            client.body += client.parser.receive(data)
        texts = [
            [e["choices"] for e in events if e != "[DONE]"]
            for events in (plain.events, (await client.reply()).events)
        ]
        assert texts[0] == texts[1]
        assert max(sizes) < 64  # a reader that is late may find some bytes together
        await well_again(replica)

    run(test)


def test_trickled_bytes_come_as_far_apart_as_asked() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="trickle", seconds=0.001, times=1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await replica.ask(CHAT, chat(model="nope"))
        assert reply.head.status == 404
        assert loop.time() - began >= 0.001 * len(reply.body) - 0.003  # in whole milliseconds

    run(test)


def test_garbage_is_no_http_and_ends_the_connection() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="garbage", times=1)
        client = await replica.connect()
        client.send(CHAT, STREAM)
        with pytest.raises(ProtocolError):
            await client.reply()
        await well_again(replica)

    run(test)


def test_slow_headers_hold_the_answer_while_the_engine_works() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="slow-headers", seconds=0.2, times=1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await replica.ask(CHAT, STREAM)
        assert loop.time() - began >= 0.197  # a clock of whole milliseconds
        assert reply.events[-1] == "[DONE]"
        await well_again(replica)

    run(test)


@pytest.mark.parametrize(("status", "retry_after"), [(500, ""), (429, "7"), (503, "0.5")])
def test_any_status_can_be_answered_with_any_retry_after(status: int, retry_after: str) -> None:
    async def test(replica: Replica) -> None:
        extra = {"retry_after": retry_after} if retry_after else {}
        await inject(replica, kind="status", status=status, times=1, **extra)
        reply = await replica.ask(CHAT, STREAM)
        assert reply.head.status == reply.json["error"]["code"] == status
        assert (reply.head.get(b"retry-after") or b"") == retry_after.encode()
        await well_again(replica)

    run(test)


def test_metrics_can_lie_and_so_does_the_load_header() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="metrics-lie", running=3, waiting=40, kv=0.99)
        text = (await replica.ask("/metrics")).body.decode()
        assert 'vllm:num_requests_waiting{engine="0",model_name="tiny"} 40.0' in text
        assert 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.99' in text
        headers = {"endpoint-load-metrics-format": "JSON"}
        reply = await replica.ask(CHAT, chat(max_tokens=1), headers=headers)
        assert b'"num_requests_waiting": 40.0' in (reply.head.get(b"endpoint-load-metrics") or b"")

    run(test)


def test_metrics_can_be_missing_or_broken() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="metrics-drop", times=1)
        reply = await replica.ask("/metrics")
        assert (reply.head.status, reply.body) == (200, b"")
        await inject(replica, kind="metrics-error", times=1)
        assert (await replica.ask("/metrics")).head.status == 500
        assert (await replica.ask("/metrics")).head.status == 200

    run(test)


def test_health_can_fail_or_hang_while_text_is_served() -> None:
    async def test(replica: Replica) -> None:
        await inject(replica, kind="health-error", status=503, times=1)
        assert (await replica.ask("/health")).head.status == 503
        await inject(replica, kind="health-hang", times=1)
        client = await replica.connect()
        client.send("/health")
        await well_again(replica)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.02)

    run(test)


def test_faults_apply_in_the_order_given_and_are_cleared() -> None:
    async def test(replica: Replica) -> None:
        await replica.ask("/mock/faults", {"kind": "status", "status": 500, "times": 2})
        await replica.ask("/mock/faults", {"kind": "status", "status": 503})
        got = [(await replica.ask(CHAT, WHOLE)).head.status for _ in range(4)]
        assert got == [500, 500, 503, 503]
        listed = (await replica.ask("/mock/faults")).json
        fault = {"kind": "status", "times": None, "status": 503, "retry_after": "", "share": 1.0}
        assert listed == {"faults": [fault]}
        cleared = await replica.ask("/mock/faults", method="DELETE")
        assert cleared.json == {"faults": []}
        await well_again(replica)

    run(test)


def test_flag_and_json_read_the_same() -> None:
    expected = Fault(FaultKind.CUT, after=5, times=1)
    assert parse("cut:after=5,times=1") == expected
    assert build({"kind": "cut", "after": 5, "times": 1}) == expected
    assert parse("garbage") == Fault(FaultKind.GARBAGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cute", "fault kind 'cute': must be one of hang, die, cut"),
        ("cut:after", "`after` must be key=value"),
        ("cut:seconds=1", "fault cut: unknown setting `seconds`: known are after, times"),
        ("cut:after=x", "fault cut: after = 'x': must be a number"),
        ("cut:times=0", "fault cut: times = '0': must be >= 1"),
        ("slow-headers:seconds=inf", "must be >= 0"),
        ("slow-headers:seconds=nan", "must be >= 0"),
        ("status:status=200", "fault status: status = '200': must be >= 400"),
        ("status:status=999", "must be 400-599"),
        ("status:retry_after=1\r\nx: y", "must be a header's value"),
        ("status:share=1.5", "fault status: share = '1.5': must be in [0, 1]"),
        ("slow:factor=0", "fault slow: factor = '0': must be >= 0.001"),
        ("slow:period=4", "fault slow: width = missing: must be below period = 4"),
        ("slow:width=4,period=4", "fault slow: width = 4: must be below period = 4"),
    ],
)
def test_a_wrong_fault_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(text)
    assert message in str(raised.value)


def test_a_wrong_fault_over_http_is_a_400() -> None:
    async def test(replica: Replica) -> None:
        for body in (b"{", b"[]", b'{"kind":"cut","after":null}'):
            assert (await replica.ask("/mock/faults", body)).head.status == 400
        await well_again(replica)

    run(test)


def test_a_share_of_the_requests_is_struck_by_the_seed() -> None:
    def struck(seed: int) -> list[bool]:
        faults = Faults([parse("status:status=503,share=0.25")], seed, 0.0)
        return [faults.for_request() is not None for _ in range(2000)]

    assert 0.2 < sum(struck(1)) / 2000 < 0.3
    assert struck(1) == struck(1) != struck(2)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("slow:factor=3", [(0.0, 3, math.inf), (99.0, 3, math.inf)]),
        ("slow:factor=3,start=2", [(0.0, 1, 2.0), (2.0, 3, math.inf)]),
        ("slow:factor=3,start=2,width=1", [(1.9, 1, 2), (2.5, 3, 3), (3.0, 1, math.inf)]),
        (
            "slow:factor=3,start=2,width=1,period=4",
            [
                (0.0, 1, 2),
                (2.0, 3, 3),
                (3.0, 1, 6),
                (6.5, 3, 7),
                (4001, 1, 4002),
                (4002.5, 3, 4003),
            ],
        ),
        (
            "slow:factor=3,start=2,width=1,period=4,times=2",
            [(2.0, 3, 3), (3.0, 1, 6), (6.0, 3, 7), (7.0, 1, math.inf), (10.5, 1, math.inf)],
        ),
    ],
)
def test_a_slow_stretch_begins_ends_and_comes_again(
    text: str, at: list[tuple[float, float, float]]
) -> None:
    faults = Faults([parse(text)], 0, 1000.0)
    for since, factor, until in at:
        assert faults.slowness(1000.0 + since) == (factor, 1000.0 + until)


def test_slow_stretches_multiply_and_are_gone_once_cleared() -> None:
    faults = Faults([parse("slow:factor=3"), parse("slow:factor=0.5,width=2")], 0, 0.0)
    assert faults.slowness(1.0) == (1.5, 2.0)
    assert faults.slowness(2.0) == (3.0, math.inf)
    assert faults.for_request() is None
    faults.clear()
    assert faults.slowness(1.0) == (1.0, math.inf)


def test_a_slow_engine_takes_so_many_times_as_long_and_is_well_again() -> None:
    async def test(replica: Replica) -> None:
        async def took() -> float:
            begun = time.monotonic()
            await well_again(replica)
            return time.monotonic() - begun

        usual = min([await took() for _ in range(3)])
        await inject(replica, kind="slow", factor=10)
        slow = await took()
        assert slow > 5 * usual
        await replica.ask("/mock/faults", method="DELETE")
        assert min([await took() for _ in range(3)]) < slow / 2

    run(test)
