"""Clients as they are: who tries again, after what, how long, and what is recorded of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from surgetank.loadtest.client import Client
from surgetank.loadtest.sender import LoadResult, Shot, fire
from surgetank.loadtest.shot import Tally
from surgetank.loadtest.summary import summarize
from surgetank.policy.retry import NO_RETRIES, SDK, RetryRule
from surgetank.wire.http1 import chunk
from tests.loadtest.scripted import STREAM, STREAM_HEAD, TOKEN, Engine, Exchange, Script

QUICK = RetryRule("quick", most=3, first=0.01, cap=0.02, longest_retry_after=1.0)


def refusal(status: int, *headers: bytes) -> bytes:
    fields = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %d Refused\r\n%bcontent-length: 0\r\n\r\n" % (status, fields)


def load(
    *scripts: Script, rule: RetryRule = QUICK, shots: int = 1, **fields: Any
) -> tuple[LoadResult, Engine]:
    async def run() -> tuple[LoadResult, Engine]:
        async with asyncio.timeout(10), Engine(*scripts) as engine:
            client = Client(engine.url)
            schedule = [Shot(0.02 * n, b"{}", **fields) for n in range(shots)]
            result = await fire(client, schedule, rule=rule)
            await client.close()
            return result, engine

    return uvloop.run(run())


def test_a_refused_request_is_tried_again_and_is_still_one_request() -> None:
    result, engine = load(refusal(429), refusal(503), STREAM)
    (record,) = result.records
    assert (record.outcome, record.status) == ("completed", 200)
    assert (record.attempts, record.client_retry) == (3, 2)
    assert record.sent is not None
    assert record.first_token is not None
    assert record.first_token - record.sent >= 0.027  # 10 and 20 ms of backoff
    summary = summarize(result.records)
    assert (summary.requests, summary.retried, summary.attempts) == (1, 1, 3)
    assert summary.amplification == 3.0
    told = [b"x-stainless-retry-count" in exchange.head for exchange in engine.requests]
    assert told == [False, True, True]


def test_giving_up_leaves_the_last_refusal() -> None:
    result, engine = load(refusal(429), refusal(503), refusal(503), refusal(429))
    (record,) = result.records
    assert (record.outcome, record.status, record.attempts) == ("engine_busy", 429, 4)
    assert len(engine.requests) == 4


def test_without_a_rule_nothing_is_tried_again() -> None:
    result, engine = load(refusal(429), STREAM, rule=NO_RETRIES)
    assert [r.outcome for r in result.records] == ["engine_busy"]
    assert len(engine.requests) == 1


def test_what_is_the_requests_own_fault_is_not_tried_again() -> None:
    result, _ = load(refusal(400), STREAM, rule=SDK)
    assert [(r.outcome, r.attempts) for r in result.records] == [("upstream_error", 1)]


def test_retry_after_is_waited_for() -> None:
    result, _ = load(refusal(429, b"retry-after-ms: 150"), STREAM, rule=SDK)
    (record,) = result.records
    assert (record.outcome, record.attempts) == ("completed", 2)
    assert (record.first_token or 0) - (
        record.sent or 0
    ) >= 0.147  # its clock counts whole milliseconds


async def _cut_stream(exchange: Exchange) -> None:
    await exchange.write(STREAM_HEAD + chunk(TOKEN))
    exchange.close()


async def _cut_answer(exchange: Exchange) -> None:
    await exchange.write(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{")
    exchange.close()


@pytest.mark.parametrize(
    ("script", "stream", "attempts"),
    [(_cut_stream, True, 1), (_cut_answer, False, 4)],
    ids=["a stream that broke is the caller's", "a whole answer that broke is the SDK's"],
)
def test_what_broke_is_tried_again_where_an_sdk_can(
    script: Script, attempts: int, *, stream: bool
) -> None:
    result, _ = load(script, stream=stream)
    assert [(r.outcome, r.attempts) for r in result.records] == [("upstream_failed", attempts)]


async def _hang(exchange: Exchange) -> None:
    await exchange.gone()


def test_each_attempt_has_the_timeout_and_all_of_them_the_patience() -> None:
    result, _ = load(_hang, timeout=0.05)
    (record,) = result.records
    assert (record.outcome, record.attempts) == ("request_timeout", 4)
    result, _ = load(_hang, timeout=0.05, abandon_after=0.12)
    (record,) = result.records
    assert (record.outcome, record.reason) == ("abandoned", "client left")
    assert 2 <= record.attempts <= 3


def test_patience_that_ends_within_the_backoff_ends_the_request_then() -> None:
    rule = RetryRule("slow", most=2, first=60.0, cap=60.0)
    result, engine = load(refusal(503), STREAM, rule=rule, abandon_after=0.1)
    (record,) = result.records
    assert (record.outcome, record.reason, record.attempts) == ("abandoned", "client left", 1)
    assert 0.09 <= (record.ended or 0) - (record.sent or 0) < 5
    assert len(engine.requests) == 1


def test_stopping_ends_requests_in_flight_and_in_backoff() -> None:
    async def run() -> tuple[LoadResult, Tally]:
        stop = asyncio.Event()
        tally = Tally()

        async def hang(exchange: Exchange) -> None:
            stop.set()
            await exchange.gone()

        async with asyncio.timeout(10), Engine(refusal(503), hang) as engine:
            client = Client(engine.url)
            rule = RetryRule("slow", most=2, first=60.0, cap=60.0)
            shots = [Shot(0.0, b"{}"), Shot(0.1, b"{}"), Shot(60.0, b"{}")]
            result = await fire(client, shots, rule=rule, stop=stop, tally=tally)
            await client.close()
            return result, tally

    result, tally = uvloop.run(run())
    assert result.stopped
    assert (result.planned, len(result.records)) == (3, 2)
    assert {(r.outcome, r.reason) for r in result.records} == {("abandoned", "run stopped")}
    assert (tally.sent, tally.abandoned, tally.ended) == (2, 2, 2)
