"""Every refusal says why: in a header, in the error itself and in the record."""

from __future__ import annotations

import asyncio
import re

from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import Tenant
from tests.gateway.harness import (
    Connection,
    Engine,
    RawClient,
    Received,
    answer_well,
    ask,
    chat,
    post,
    run,
    serving,
    until,
)

HEADER = "x-surgetank-decision"
ITEM = r'[A-Za-z0-9_.:/*-]+|"[ !#-\[\]-~]*"'
FIELD = re.compile(rf"(admitted|refused)((?:; [a-z_]+=(?:{ITEM}))*)")


def read(value: str) -> tuple[str, dict[str, str]]:
    match = FIELD.fullmatch(value)
    assert match is not None, value
    pairs = (pair.split("=", 1) for pair in match[2].split("; ")[1:])
    return match[1], {name: item.strip('"') for name, item in pairs}


def test_a_queue_that_is_full_says_so_with_the_place_the_time_and_the_replicas() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def held(request: Received, connection: Connection) -> None:
            await go.wait()
            await answer_well(request, connection)

        engine = Engine()
        engine.default = held
        flow = FlowSpec(max_in_flight=1, max_queued=1)
        async with serving(engine, flow=flow) as running:
            first, second = [await RawClient.connect(running.port) for _ in range(2)]
            counts = running.gateway.driver.flow.counts
            first.send(post(chat()))
            await until(lambda: counts().running == 1)
            second.send(post(chat()))
            await until(lambda: counts().queued == 1)
            third = await ask(running.port, chat())
            assert third.status == 429
            word, told = read(third.headers[HEADER])
            assert word == "refused"
            assert told["reason"] == "queue_full"
            assert told["position"] == "1"
            assert float(told["retry_after"]) * 1000 == float(third.headers["retry-after-ms"])
            said = third.json["error"]["decision"]
            assert {name: str(value) for name, value in said.items() if name == "reason"} == {
                "reason": "queue_full"
            }
            assert said["position"] == 1
            assert said["retry_after"] == float(told["retry_after"])
            (record,) = running.records
            assert (record.outcome, record.position) == ("queue_full", 1)
            assert record.retry_after is not None
            assert abs(record.retry_after - said["retry_after"]) < 0.002
            assert record.expected_tokens is not None
            (replica,) = running.gateway.driver.flow.replicas()
            assert record.full == (f"{replica.id} limit 1/1",)
            assert replica.id not in third.headers[HEADER]
            assert replica.id.encode() not in third.body
            go.set()
            one, other = await first.reply(), await second.reply()
            assert HEADER not in one.headers  # it ran at once
            word, told = read(other.headers[HEADER])
            assert (word, told["position"], told["attempt"]) == ("admitted", "0", "1")
            assert float(told["waited"]) > 0

    run(test)


def test_a_quota_names_its_level() -> None:
    async def test() -> None:
        tenants = [Tenant("default", requests_per_minute=1, burst_seconds=60)]
        async with serving(Engine(), tenants=tenants) as running:
            assert (await ask(running.port, chat())).status == 200
            reply = await ask(running.port, chat())
            word, told = read(reply.headers[HEADER])
            assert (word, told["reason"]) == ("refused", "quota_requests")
            assert told["level"] == "the tenant: requests per minute"
            assert reply.json["error"]["decision"]["level"] == told["level"]
            assert running.records[-1].level == told["level"]

    run(test)


def test_what_admission_never_sees_says_why_too() -> None:
    async def test() -> None:
        async with serving(Engine()) as running:
            bad = await ask(running.port, {"model": "tiny", "messages": "x"})
            assert read(bad.headers[HEADER]) == ("refused", {"reason": "invalid"})
            client = await RawClient.connect(running.port)
            client.send(post(chat()).replace(b"POST", b"PUT"))
            reply = await client.reply()
            assert read(reply.headers[HEADER]) == ("refused", {"reason": "invalid"})
            unknown = await ask(running.port, chat() | {"model": "other"})
            assert read(unknown.headers[HEADER]) == ("refused", {"reason": "unknown_model"})

    run(test)
