"""The quiet tenant beside one that pulses, over HTTP: gateways, simulated replicas, a load sender.

Rule: nothing is simulated but the engine's step. Every way of admission has replicas of its own,
fresh for it, and gets the same requests, of which each has the same answer: a request's seed is in
its body. What the sender saw is what counts, and a refusal counts against whoever made it.

What was wasted is what the engines counted less what was in the answers that came whole; so a run
lasts until the last request has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from surgetank.adapters.child import Child
from surgetank.adapters.http import fetch
from surgetank.errors import InputError
from surgetank.loadtest.calm import calm
from surgetank.loadtest.outcome import kind_of
from surgetank.loadtest.processes import send
from surgetank.loadtest.prompts import Words
from surgetank.loadtest.shot import LoadResult, Shot
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Kind, Outcome
from surgetank.policy.retry import NO_RETRIES, SDK, RetryRule
from surgetank.policy.tenant import KeyLimits, Tenant, Tier
from surgetank.studies.attainment import TINY, Replicas
from surgetank.studies.gateway_process import GatewayProcess
from surgetank.studies.victim import NOISY, PERIOD, VICTIM, Figures, arriving, equal_share
from surgetank.traffic import arrivals
from surgetank.traffic.tokencounts import parse_lengths
from surgetank.traffic.trace import Codes, Counts, Seconds

PLAIN: Final = "passthrough"
SURGETANK: Final = "surgetank"
OBJECTIVE: Final = 2.0  # seconds to the first token, from when the first try was due
MAX_LAG: Final = 0.05  # seconds, a fortieth of that: first tokens count from when they were due
_NAMES: Final = (VICTIM, NOISY)
_TIMEOUT: Final = 600.0  # seconds, openai-python's
_LEAD_IN: Final = 1.0  # seconds between the last start of a fleet and the first request
_SATURATING: Final = 300, 40.0  # requests, and as many a second: four times what 2 x tiny can do
_COUNTED: Final = re.compile(
    rb"^vllm:(?:prompt|generation)_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Way:
    """One way of admission, as settings of the gateway."""

    flow: Mapping[str, Any] = field(default_factory=dict)
    tenants: tuple[Tenant, ...] = (Tenant(VICTIM), Tenant(NOISY))
    tiers: tuple[Tier, ...] = ()


# One queue in the order of arrival. With one objective for all, the order of slack is that of
# arrival; it is so long that no time ends a wait, and no prompt is held back for the others'.
_IN_ORDER: Final = {
    "ttft_objective": _TIMEOUT,
    "queue_timeout": _TIMEOUT,
    "request_timeout": _TIMEOUT,
    "max_queued": 1_000_000,
    "slack_bucket": 0.001,
}
_LENIENT: Final = (Tier(predicted_wait=False),)


def _one_queue(bucket: float | None) -> tuple[Tenant, ...]:
    """Both as two keys of one tenant: what waits for it waits in one line."""
    keys = tuple(KeyLimits(name, requests_per_minute=bucket) for name in _NAMES)
    return (Tenant("both", keys=keys),)


WAYS: Final[Mapping[str, Callable[[float], Way]]] = MappingProxyType(
    {
        PLAIN: lambda _: Way({"admission": "shadow"}),
        "fifo-cap": lambda _: Way(_IN_ORDER, _one_queue(None), _LENIENT),
        "request-bucket": lambda rate: Way(_IN_ORDER, _one_queue(round(30.0 * rate)), _LENIENT),
        "counters": lambda _: Way(tiers=_LENIENT),
        SURGETANK: lambda _: Way(),
    }
)
"""By name, made for a capacity in requests/s. The bucket: half of it for each of two.

Tenants in turn, whatever they ask for, no setting says: that is in the simulation alone.
"""


@dataclass(frozen=True, slots=True)
class Lived:
    """One run: its figures, and as the sender saw it. `outputs`: tokens of whole answers, by id."""

    figures: Figures
    sent: LoadResult
    outputs: Mapping[str, int]

    @property
    def invalid(self) -> str:
        """Why it says nothing of the server, in one line; else empty."""
        return self.sent.invalid


@dataclass(frozen=True, slots=True)
class _Load:
    """What both send: arrivals, whose each is, prompt tokens. `span`: seconds until figures end."""

    at: Seconds
    who: Codes
    prompt: Counts
    seed: int
    span: float

    def shots(self, model: str, keys: Mapping[str, str]) -> list[Shot]:
        """Make what the sender takes; text of the replicas' own measure, 4 bytes a token."""
        words = Words(self.seed)
        shots = []
        rows = zip(self.at.tolist(), self.who.tolist(), self.prompt.tolist(), strict=True)
        for number, (at, code, tokens) in enumerate(rows):
            size = 4 * max(1, tokens - 4)  # 4 are the message's own
            body: dict[str, Any] = {
                "model": model,
                "messages": [{"role": "user", "content": words.text(number, tokens)[:size]}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "seed": self.seed * 1_000_000 + number,
            }
            name = _NAMES[code]
            shots.append(
                Shot(
                    at,
                    json.dumps(body).encode(),
                    tenant=name,
                    key=keys[name],
                    id=f"{number:06d}",
                    model=model,
                    timeout=_TIMEOUT,
                    ttft_objective=OBJECTIVE,
                )
            )
        return shots


async def measured_capacity(of: Replicas = TINY) -> tuple[float, LoadResult]:
    """Requests/s that such replicas complete while more wait than they can run.

    The middle of 300 requests that come four times as fast as they can be served, through the
    gateway that lets all through.
    """
    count, rate = _SATURATING
    rng = np.random.default_rng(0)
    at = arrivals.poisson(rng, rate, 2 * count / rate)[:count]
    prompt = parse_lengths(of.prompt, "prompt").draw(len(at), rng)
    load = _Load(at, np.zeros(len(at), np.int32), prompt, 0, inf)
    (ran,) = await _side_by_side(of, [WAYS[PLAIN](0.0)], load, NO_RETRIES, MAX_LAG)
    ended = [r.ended for r in ran.sent.records if r.outcome == Outcome.COMPLETED.value]
    low, high = np.quantile(np.array(ended), (0.1, 0.9)).tolist()
    return 0.8 * len(ended) / (high - low), ran.sent


async def live(
    full: float,
    of: Replicas = TINY,
    *,
    seed: int,
    periods: int = 1,
    names: Sequence[str] = (SURGETANK,),
    abreast: int = 2,
    max_lag: float = MAX_LAG,
) -> list[Lived]:
    """Run a pass-through and those named on the same requests, `abreast` at a time.

    `full`: the capacity in requests/s. Everything that is started is ended. Raises InputError for a
    name that is unknown, StartError when a process does not come up.
    """
    unknown = [name for name in names if name not in WAYS]
    if unknown:
        raise InputError(f"--policies {unknown[0]}: live there are {', '.join(WAYS)}")
    names = list(dict.fromkeys((PLAIN, *names)))
    rng = np.random.default_rng([seed, 20])
    span = PERIOD * periods
    at, who = arriving(rng, full, span)
    load = _Load(at, who, parse_lengths(of.prompt, "prompt").draw(len(at), rng), seed, span)
    ran: list[_Ran] = []
    for some in (names[n : n + abreast] for n in range(0, len(names), abreast)):
        ran += await _side_by_side(of, [WAYS[name](full) for name in some], load, SDK, max_lag)
    plain = ran[0]
    done, asked = _work(plain, load, span), _work(plain, load, inf)
    return [
        Lived(_figures(one, load, name, done, asked), one.sent, one.outputs)
        for name, one in zip(names, ran, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Ran:
    """What the sender saw, and prompt and output tokens that the engines counted."""

    sent: LoadResult
    computed: int

    @property
    def whole(self) -> list[RequestRecord]:
        return [r for r in self.sent.records if r.outcome == Outcome.COMPLETED.value]

    @property
    def outputs(self) -> dict[str, int]:
        return {record.id: record.output_tokens or 0 for record in self.whole}

    @property
    def wasted(self) -> int:
        return self.computed - sum(
            (r.prompt_tokens or 0) + (r.output_tokens or 0) for r in self.whole
        )


async def _side_by_side(
    of: Replicas, ways: Sequence[Way], load: _Load, rule: RetryRule, max_lag: float
) -> list[_Ran]:
    """Run them at once: whatever else the machine does happens to all of them."""
    async with contextlib.AsyncExitStack() as parts:
        folder = parts.enter_context(tempfile.TemporaryDirectory())
        fleets = [
            await parts.enter_async_context(_fleet(Path(folder) / f"{n}", way, of))
            for n, way in enumerate(ways)
        ]
        shots = [load.shots(of.profile, gateway.keys) for gateway, _ in fleets]
        start = time.monotonic() + _LEAD_IN
        with calm():
            sent = await asyncio.gather(
                *(
                    send(
                        gateway.url,
                        some,
                        rule=rule,
                        seed=load.seed,
                        processes=1,
                        start=start,
                        max_lag=max_lag,
                    )
                    for (gateway, _), some in zip(fleets, shots, strict=True)
                )
            )
        return [
            _Ran(one, await _computed(urls)) for one, (_, urls) in zip(sent, fleets, strict=True)
        ]


@contextlib.asynccontextmanager
async def _fleet(
    folder: Path, way: Way, of: Replicas
) -> AsyncIterator[tuple[GatewayProcess, list[str]]]:
    async with contextlib.AsyncExitStack() as parts:
        urls = [await parts.enter_async_context(_replica(of)) for _ in range(of.count)]
        gateway = GatewayProcess(
            folder,
            None,
            way.tenants,
            tiers=way.tiers,
            flow=way.flow,
            more={"replicas": [{"url": url} for url in urls]},
        )
        await parts.enter_async_context(gateway)
        yield gateway, urls


@contextlib.asynccontextmanager
async def _replica(of: Replicas) -> AsyncIterator[str]:
    output = parse_lengths(of.output, "output")
    command = [sys.executable, "-m", "surgetank", "engine", "--profile", of.profile, "--port", "0"]
    command += ["--output-median", f"{output.a}", "--output-sigma", f"{output.b}"]
    child = Child("a replica", command, start_timeout=60.0, stop_timeout=10.0)
    try:
        yield (await child.start())[0]
    finally:
        await asyncio.shield(child.stop())


async def _computed(urls: Sequence[str]) -> int:
    """Sum up the prompt and output tokens that these engines counted."""
    total = 0.0
    for url in urls:
        told = await fetch(f"{url}/metrics", timeout=10.0)
        total += sum(float(value) for value in _COUNTED.findall(told.body))
    return round(total)


def _work(ran: _Ran, load: _Load, until: float) -> tuple[float, float]:
    """Output tokens of each tenant's answers that were whole so many seconds after the start."""
    tokens = [0.0, 0.0]
    for record in ran.whole:
        row = int(record.id)
        began = (record.scheduled or 0.0) - float(load.at[row])
        if (record.ended or inf) - began <= until:
            tokens[load.who[row]] += record.output_tokens or 0
    return tokens[0], tokens[1]


def _figures(
    ran: _Ran, load: _Load, name: str, done: tuple[float, float], asked: tuple[float, float]
) -> Figures:
    first = {who: [_ttft(r) for r in ran.sent.records if r.tenant == who] for who in _NAMES}
    mine, its = _work(ran, load, load.span)
    return Figures(
        policy=name,
        seed=load.seed,
        victim=_within(first[VICTIM]),
        victim_p95=float(np.quantile(np.array(first[VICTIM]), 0.95, method="higher")),
        noisy=_within(first[NOISY]),
        noisy_work=its / equal_share(done, asked),
        total=(mine + its) / sum(done),
        wasted=ran.wasted,
        refused=sum(kind_of(r.outcome) is Kind.REFUSED for r in ran.sent.records),
    )


def _ttft(record: RequestRecord) -> float:
    """Seconds to the first token of a whole answer; inf for what did not come whole."""
    whole = record.outcome == Outcome.COMPLETED.value
    return record.ttft if whole and record.ttft is not None else inf


def _within(first: Sequence[float]) -> float:
    return sum(value <= OBJECTIVE for value in first) / len(first)
