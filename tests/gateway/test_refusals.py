"""One record for every request to a route, also for what admission never sees."""

from __future__ import annotations

import re

import pytest

from surgetank.gateway.keys import KeyRing, StoredKey, digest_of
from surgetank.gateway.spec import ListenSpec
from tests.gateway.harness import Engine, RawClient, ask, chat, post, run, serving

KEYED = "authorization: Bearer sk-right\r\n"
SECRET = bytes(32)
PROMPT = "prompt-text-that-must-stay-out"


def ring() -> KeyRing:
    return KeyRing(SECRET, [StoredKey("acme", digest_of("sk-right", SECRET))])


@pytest.mark.parametrize(
    ("sent", "status", "tenant", "outcome"),
    [
        (post(chat()), 401, "", "unauthorized"),
        (post(chat(), headers="authorization: Bearer sk-wrong\r\n"), 401, "", "unauthorized"),
        (post(b'{"model": "tiny", ' + PROMPT.encode(), headers=KEYED), 400, "acme", "invalid"),
        (post({"model": "tiny", "messages": PROMPT}, headers=KEYED), 400, "acme", "invalid"),
        (post(chat(user=PROMPT * 40), headers=KEYED), 413, "acme", "invalid"),
        (post(chat()).replace(b"POST", b"PUT"), 405, "", "invalid"),
        (
            (b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-right\r\n"
            b"transfer-encoding: chunked\r\n\r\nzz\r\n"), 400, "acme", "invalid",
        ),
    ],
)  # fmt: skip
def test_a_request_that_is_refused_before_admission_leaves_one_record(
    sent: bytes, status: int, tenant: str, outcome: str
) -> None:
    async def test() -> None:
        async with serving(
            Engine(), keys=ring(), listen=ListenSpec(port=0, max_body_bytes=900)
        ) as running:
            client = await RawClient.connect(running.port)
            client.send(sent)
            reply = await client.reply()
            assert reply.status == status
            record = running.record()
            assert (record.status, record.tenant, record.outcome) == (status, tenant, outcome)
            assert record.id == reply.headers["x-request-id"]
            assert record.ended == record.arrived > 1.7e9
            line = record.to_line()
            assert re.search(f"sk-|{PROMPT}", line) is None
            counted = running.gateway.metrics.exposition(running.gateway.gauges()).decode()
            label = (
                f'surgetank_requests_total{{model="",outcome="{outcome}",tenant="{tenant}"}} 1.0'
            )
            assert label in counted
            assert running.gateway.driver.flow.counts().offered == 0

    run(test)


@pytest.mark.parametrize("sent", [b"GET /admin HTTP/1.1\r\nhost: g\r\n\r\n", b"nonsense\r\n\r\n",
                                  b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n"])  # fmt: skip
def test_what_is_for_no_route_leaves_none(sent: bytes) -> None:
    async def test() -> None:
        async with serving(Engine(), keys=ring()) as running:
            client = await RawClient.connect(running.port)
            client.send(sent)
            assert (await client.reply()).status in {400, 401, 404}
            assert running.records == []

    run(test)


def test_strangers_cannot_fill_the_records() -> None:
    async def test() -> None:
        async with serving(Engine(), keys=ring()) as running:
            client = await RawClient.connect(running.port)
            wrong = post({}, headers="authorization: Bearer no\r\n")
            for _ in range(3):
                for _ in range(100):
                    client.send(wrong)
                    assert (await client.reply()).status == 401
                    client.close()
                    client = await RawClient.connect(running.port)
            assert 100 <= len(running.records) < 200
            metrics = running.gateway.metrics
            assert metrics.withheld == 300 - len(running.records)
            assert (await ask(running.port, chat(), headers=KEYED)).status == 200
            assert running.records[-1].outcome == "completed"

    run(test)
