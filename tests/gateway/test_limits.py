"""Limits on levels over HTTP: keys by name, headers that tell what is left, and exact books."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import uvloop

from surgetank.engine import profile as profiles
from surgetank.gateway.keys import KeyRing, StoredKey, digest_of
from surgetank.gateway.server import Gateway
from surgetank.gateway.spec import GatewaySpec, ListenSpec, ReplicaSpec, UpstreamSpec
from surgetank.mockengine.faults import Fault, FaultKind
from surgetank.mockengine.server import MockEngine, MockSpec
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.journal import Journal
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import ENDINGS, Kind, Outcome
from surgetank.policy.tenant import KeyLimits, ModelLimits, Tenant, Tier
from tests.gateway.harness import Engine, RawClient, ask, chat, post, run, serving, until

SECRET: Final = b"s" * 32


def ring(*names: str) -> KeyRing:
    """Keys of acme, each called by its name, and presented as sk-NAME."""
    return KeyRing(
        SECRET, [StoredKey("acme", digest_of(f"sk-{name}", SECRET), name=name) for name in names]
    )


def bearer(name: str) -> str:
    return f"authorization: Bearer sk-{name}\r\n"


def limits_of(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if "ratelimit" in name}


# What clients are told.


def test_a_key_has_limits_of_its_own_and_is_told_what_is_left_on_its_tightest_level() -> None:
    tenant = Tenant(
        "acme",
        requests_per_minute=600,
        max_concurrent=50,
        keys=(KeyLimits("nightly", requests_per_minute=1, input_tokens_per_minute=6000),),
        models=(ModelLimits("tiny", output_tokens_per_minute=60_000),),
    )

    async def test() -> None:
        async with serving(Engine(), keys=ring("app", "nightly"), tenants=[tenant]) as gateway:
            first = await ask(gateway.port, chat(max_tokens=10), headers=bearer("nightly"))
            assert first.status == 200
            told = limits_of(first.headers)
            assert told["x-ratelimit-limit-requests"] == "1"
            assert told["x-ratelimit-remaining-requests"] == "0"
            assert re.fullmatch(r"[1-5]?[0-9]s|1m0s", told["x-ratelimit-reset-requests"])
            assert told["x-ratelimit-limit-input-tokens"] == "6000"
            assert int(told["x-ratelimit-remaining-input-tokens"]) <= 6000
            assert told["x-ratelimit-limit-output-tokens"] == "60000"
            assert 59_990 <= int(told["x-ratelimit-remaining-output-tokens"]) <= 60_000
            assert told["x-ratelimit-limit-concurrent-requests"] == "50"
            assert told["x-ratelimit-remaining-concurrent-requests"] == "49"
            refused = await ask(gateway.port, chat(), headers=bearer("nightly"))
            assert refused.status == 429
            assert refused.json["error"]["message"] == "key nightly: requests per minute"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            other = await ask(gateway.port, chat(), headers=bearer("app"))
            assert other.status == 200
            assert other.headers["x-ratelimit-limit-requests"] == "600"
            assert "x-ratelimit-limit-input-tokens" not in other.headers
            assert not re.search("sk-nightly", str(gateway.records))

    run(test)


def test_without_limits_no_header_tells_of_any() -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            reply = await ask(gateway.port, chat())
            assert limits_of(reply.headers) == {}
            assert "x-surgetank-max-tokens" not in reply.headers

    run(test)


def test_anthropics_clients_are_told_the_same_under_their_own_names() -> None:
    tenant = Tenant("default", requests_per_minute=6, output_tokens_per_minute=600)
    body = {"model": "tiny", "max_tokens": 60, "messages": [{"role": "user", "content": "hi"}]}

    async def test() -> None:
        async with serving(Engine(), tenants=[tenant]) as gateway:
            before = datetime.now(UTC).replace(microsecond=0)
            reply = await ask(gateway.port, body, path="/v1/messages")
            told = limits_of(reply.headers)
            for kind in ("requests", "tokens", "output-tokens"):
                for what in ("limit", "remaining"):
                    same = told[f"x-ratelimit-{what}-{kind}"]
                    assert told[f"anthropic-ratelimit-{kind}-{what}"] == same
            assert 540 <= int(told["anthropic-ratelimit-output-tokens-remaining"]) <= 600
            assert "anthropic-ratelimit-input-tokens-limit" not in told
            full = datetime.fromisoformat(told["anthropic-ratelimit-requests-reset"])
            assert (full - before).total_seconds() >= 1  # 10, less what the answer took
            assert reply.status == 200
            others = await ask(gateway.port, chat())
            assert not [name for name in others.headers if name.startswith("anthropic")]

    run(test)


# Output that a tier gives.


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
    ],
)
def test_more_output_than_a_tier_gives_is_cut_down_or_refused_as_it_says(
    path: str, name: str
) -> None:
    body: dict[str, Any] = {"model": "tiny", name: 5000}
    body |= {"prompt": "hi"} if path == "/v1/completions" else {}
    body |= {"input": "hi"} if path == "/v1/responses" else {}
    messages = [{"role": "user", "content": "hi"}]
    body |= {"messages": messages} if path in {"/v1/chat/completions", "/v1/messages"} else {}
    tenant = Tenant("default", requests_per_minute=60)

    async def capped() -> None:
        engine = Engine()
        async with serving(engine, tiers=[Tier(max_output_tokens=2000)]) as gateway:
            reply = await ask(gateway.port, body, path=path)
            assert (reply.status, reply.headers["x-surgetank-max-tokens"]) == (200, "2000")
            assert engine.requests[-1].json[name] == 2000
            reply = await ask(gateway.port, body | {name: 2000}, path=path)
            assert "x-surgetank-max-tokens" not in reply.headers

    async def refused() -> None:
        engine = Engine()
        tiers = [Tier(max_output_tokens=2000, when_above="refuse")]
        async with serving(engine, tiers=tiers, tenants=[tenant]) as gateway:
            reply = await ask(gateway.port, body, path=path)
            assert reply.status == 400
            told = reply.json["error"]
            text = "5000 output tokens are asked for: tier standard gives 2000 at most"
            assert told["message"] == text
            if path != "/v1/messages":
                assert (told["param"], told["code"]) == (name, "max_tokens_exceeded")
            assert told["type"] == "invalid_request_error"
            assert "retry-after" not in reply.headers
            assert reply.headers["x-ratelimit-remaining-requests"] == "60"
            assert engine.requests == []
            assert gateway.records[-1].outcome == "output_too_long"

    run(capped)
    run(refused)


# Exact books, whatever ends a request.

FULL: Final = 10**7
# They hardly refill: what is left shows every settlement there was.
BUCKETS: Final[dict[str, Any]] = {
    "requests_per_minute": 60e-9, "tokens_per_minute": 60e-9, "input_tokens_per_minute": 60e-9,
    "output_tokens_per_minute": 60e-9, "burst_seconds": FULL * 1e9, "max_concurrent": 8,
}  # fmt: skip
PROMPT: Final = 20  # tokens, as ids: admission knows the number
NAMES: Final = ("app", "job")
ACME: Final = Tenant(
    "acme",
    **BUCKETS | {"max_concurrent": 14},
    max_running=12,
    keys=tuple(KeyLimits(n, **BUCKETS, models=(ModelLimits("m", **BUCKETS),)) for n in NAMES),
    models=(ModelLimits("m", **BUCKETS | {"max_concurrent": 14}),),
)
FLOW: Final = FlowSpec(max_in_flight=9, queue_timeout=0.4, request_timeout=0.7)
FAULTS: Final = (
    Fault(FaultKind.CUT, times=1),
    Fault(FaultKind.CUT, times=1, after=2),
    Fault(FaultKind.RESET, times=1, after=1),
    Fault(FaultKind.ERROR_EVENT, times=1, after=2),
    Fault(FaultKind.HANG, times=1),
    Fault(FaultKind.HANG, times=1, after=3),
    Fault(FaultKind.GARBAGE, times=1),
    Fault(FaultKind.STATUS, times=1, status=400),
    Fault(FaultKind.STATUS, times=1, status=503),
    Fault(FaultKind.STATUS, times=1, status=500),
)


class Callers:
    """Send random requests, a few at any time; some of them leave."""

    def __init__(self, port: int, engine: MockEngine, seed: int) -> None:
        self.port = port
        self.engine = engine
        self.draw = random.Random(seed)
        self.sent = 0

    async def all(self, number: int, *, at_once: int) -> None:
        async def one_after_another() -> None:
            while self.sent < number:
                self.sent += 1
                await self.one(f"call-{self.sent}")

        await asyncio.gather(*(one_after_another() for _ in range(at_once)))

    async def one(self, name: str) -> None:
        draw, key = self.draw, self.draw.choice(NAMES)
        if draw.random() < 0.1:
            self.engine.faults.add(draw.choice(FAULTS))
        body = {
            "model": "m",
            "prompt": [7] * PROMPT,
            "max_tokens": draw.choice([1, 8, 30, 4000]),
            "stream": draw.random() < 0.6,
        }
        client = await RawClient.connect(self.port)
        headers = f"{bearer(key)}x-request-id: {name}\r\n"
        client.send(post(body, headers=headers, path="/v1/completions"))
        patience = draw.choice(["all", "all", "all", "first bytes", "none"])
        try:
            if patience == "none":
                await client.writer.drain()
            elif patience == "first bytes":
                async with asyncio.timeout(20):
                    await client.reader.read(64)
            else:
                await client.reply()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # a fault cut it
        client.writer.transport.abort()


def charged(lines: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """From the journal: key of each request that ended; requests and tokens it has to cost."""
    keys, running, started = dict[str, str](), set[str](), set[str]()
    costs: list[tuple[str, int, int, int]] = []
    for row in map(json.loads, lines[1:]):
        name: str = row["args"][0] if row["args"] else ""
        if row["do"] == "offer":
            request: dict[str, Any] = row["args"][0]
            keys[request["id"]] = request["key"]
        elif row["do"] == "first_token":
            started.add(name)
        elif row["do"] == "retry":
            running.discard(name)
        elif row["do"] in {"finish", "abandon"} and name in running:
            running.remove(name)
            left = row["do"] == "abandon"
            kind = Kind.ABANDONED if left else ENDINGS[Outcome(row["args"][1])].kind
            costs.append((keys[name], *cost_of(kind, row["args"][-1], started=name in started)))
        for effect in row.get("effects", ()):
            if effect["do"] == "Dispatch":
                running.add(effect["request"])
    assert not running
    return costs


def cost_of(kind: Kind, told: dict[str, Any] | None, *, started: bool) -> tuple[int, int, int]:
    """What ran costs: as told; else by how far it came."""
    if told is not None:
        prompt = told["prompt_tokens"]
        return 1, PROMPT if prompt is None else prompt, told["output_tokens"]
    assert kind is not Kind.COMPLETED
    assert not started
    if kind is Kind.REFUSED:
        return 0, 0, 0
    return 1, PROMPT if kind is Kind.ABANDONED else 0, 0


def check_books(flow: FlowControl, lines: Sequence[str], records: Sequence[RequestRecord]) -> None:
    """Every level of every bucket to the token, and nobody left on any."""
    quota = flow._state.accounts["acme"].quota
    assert quota is not None
    places = {("", ""), ("", "m"), *((n, m) for n in NAMES for m in ("", "m"))}
    assert set(quota._levels) == places
    costs = charged(lines)
    for (key, _), level in quota._levels.items():
        here = [cost for whose, *cost in costs if key in {"", whose}]
        requests, prompts, outputs = (sum(cost) for cost in zip(*here, strict=True))
        used = [FULL - stock.bucket._level for stock in level.stocks]
        assert used == pytest.approx([requests, prompts + outputs, prompts, outputs], abs=1e-3)
        assert level.cap is not None
        assert level.cap.used == 0
    counts = flow.counts("acme")
    kinds = Counter(ENDINGS[Outcome(r.outcome)].kind for r in records)
    assert (counts.running, counts.queued, counts.offered) == (0, 0, len(records))
    assert (counts.completed, counts.refused) == (kinds[Kind.COMPLETED], kinds[Kind.REFUSED])
    assert (counts.abandoned, counts.failed) == (kinds[Kind.ABANDONED], kinds[Kind.FAILED])


async def rough_traffic(number: int, *, at_once: int) -> Counter[str]:
    """Send so many to a gateway before a mock engine with faults; how they ended, for the books."""
    profile = profiles.find("h100-llama-3.1-8b-bf16-tp1")
    engine = MockEngine(MockSpec(profile, "m", speed=10.0))
    url = await engine.listen()
    records: list[RequestRecord] = []
    lines: list[str] = []
    journal = Journal(lines.append, FLOW, tenants=[ACME], models=("m",))
    spec = GatewaySpec(
        listen=ListenSpec(port=0),
        upstream=UpstreamSpec(health_interval=0.05),
        replicas=(ReplicaSpec(url, model="m", slots=9),),
    )
    gateway = Gateway(
        spec,
        journal,
        keys=ring(*NAMES),
        write_record=lambda line: records.append(RequestRecord.from_line(line)),
    )
    port = await gateway.start()
    try:
        await until(lambda: all(target.ready for target in gateway.fleet))
        callers = Callers(port, engine, seed=1)
        await callers.all(number, at_once=at_once)
        await until(lambda: not len(gateway.driver) and not gateway.clients)
        gateway.ledger.book()
        here = [record for record in records if record.tenant == "acme"]
        assert len({record.id for record in here}) == len(here)
        check_books(journal.flow, lines, here)
        assert journal.flow.replicas()[0].in_flight == 0
    finally:
        await gateway.drain()
        await engine.close()
    return Counter(record.outcome for record in here)


def test_after_aborts_errors_and_timeouts_every_level_is_exact_over_http() -> None:
    async def test() -> None:
        ended = await rough_traffic(150, at_once=14)
        assert {"completed", "abandoned"} <= set(ended)

    run(test)


@pytest.mark.heavy
def test_after_ten_thousand_rough_endings_every_level_is_exact_over_http() -> None:
    async def test() -> None:
        ended = await rough_traffic(10_500, at_once=14)
        assert ended.total() >= 10_000
        assert {
            "completed", "abandoned", "request_timeout", "queue_timeout", "tenant_busy",
            "upstream_failed", "upstream_error", "engine_rejected",
        } <= set(ended)  # fmt: skip

    uvloop.run(test())
