"""The demo's first act: one real engine, two bursts, each straight at it and through Surgetank.

Rule: nothing is modelled and nothing is staged. The engine is llama.cpp, fresh for every run; both
ways get the same schedule from the same open-loop sender; every number comes from its records.

The long burst: 24 requests of about 75 + 600 tokens at once, on 8 slots that share 2,048 tokens of
KV. Eight of them need 5,400, and llama.cpp ends every stream when its KV is full. Three fit.
The mixed burst: a `noisy` tenant sends 44 requests in one instant while a `quiet` one sends 16
short ones over four seconds. Behind the gateway the two stand in two tiers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from surgetank.adapters.llamacpp.model import WORDS, write_tiny_gguf
from surgetank.adapters.llamacpp.process import LlamaServer
from surgetank.errors import InputError
from surgetank.loadtest.client import Call, Client
from surgetank.loadtest.sender import LoadResult, Shot, fire, write_records
from surgetank.loadtest.summary import Summary, by_tenant, summarize
from surgetank.policy.tenant import Tenant, Tier
from surgetank.studies.gateway_process import GatewayProcess
from surgetank.studies.warmup import served

MODEL: Final = "tiny"
SLOTS: Final = 8
KV_TOKENS: Final = 2048
# 0.7 MB of weights, the writer's defaults: one thread decodes some 3,000 tokens/s. Sizes with heads
# not 16 or 32 wide may take twice the CPU: 96 by 3 layers was slower than 128 by 4.

LONG: Final = "long"
QUIET: Final = "quiet"
NOISY: Final = "noisy"
_LONG_REQUESTS: Final = 24
_NOISY_REQUESTS: Final = 44
_QUIET_REQUESTS: Final = 16
_QUIET_EVERY: Final = 0.25  # seconds
_NOISY_AT: Final = 0.5  # seconds: the quiet tenant is there first, and long after
_TIMEOUT: Final = 120.0  # seconds a client waits: nobody leaves early
# The engine serves some 3 long requests at a time: the last of the burst must be let wait.
# The quiet tenant's users wait at a screen: their tier goes first, and the other leaves it room.
_TIERS: Final = (
    Tier("interactive", priority=0),
    Tier("batch", priority=2, min_share=0.2, kv_fill=0.7),
)
_TENANTS: Final = MappingProxyType(
    {
        LONG: Tenant(LONG),
        QUIET: Tenant(QUIET, tier="interactive"),
        NOISY: Tenant(NOISY, tier="batch"),
    }
)
_FLOW: Final = MappingProxyType({"queue_timeout": 120.0, "request_timeout": 120.0})
_READY_WITHIN: Final = 20.0  # seconds for a warm-up request

Way = Literal["direct", "surgetank"]
WAYS: Final[tuple[Way, ...]] = ("direct", "surgetank")
Progress = Callable[[str, int, int], None]
"""Told (name of the run, requests ended, requests in all)."""


@dataclass(frozen=True, slots=True)
class Act:
    """What both bursts came to, both ways."""

    long: Mapping[Way, LoadResult]
    mixed: Mapping[Way, LoadResult]

    def long_summary(self, way: Way) -> Summary:
        """Sum up the long burst."""
        return summarize(self.long[way].records)

    def tenants(self, way: Way) -> dict[str, Summary]:
        """Sum up the mixed burst by tenant."""
        return by_tenant(self.mixed[way].records)

    def as_json(self) -> dict[str, Any]:
        """Give the numbers stable names; times in seconds. `wasted_tokens` is over both bursts."""
        long = {way: self.long_summary(way) for way in WAYS}
        tenants = {way: self.tenants(way) for way in WAYS}
        return {
            "requests": long["direct"].requests,
            "direct_finished": long["direct"].completed,
            "surgetank_finished": long["surgetank"].completed,
            "long": {way: long[way].as_json() for way in WAYS},
            "tenants": {
                name: {way: tenants[way][name].as_json() for way in WAYS}
                for name in tenants["direct"]
            },
            "wasted_tokens": {
                way: long[way].wasted_tokens + sum(s.wasted_tokens for s in tenants[way].values())
                for way in WAYS
            },
            "seconds": {
                burst: {way: results[way].elapsed for way in WAYS}
                for burst, results in (("long", self.long), ("mixed", self.mixed))
            },
            "send_lag_p99": {
                burst: {way: results[way].lag.p99 for way in WAYS}
                for burst, results in (("long", self.long), ("mixed", self.mixed))
            },
            "verdict": verdict(self),
        }


def long_burst() -> list[Shot]:
    """24 requests at once, too many for the engine's KV."""
    return [_shot(0.0, LONG, n, words=62, output=600) for n in range(_LONG_REQUESTS)]


def mixed_burst() -> list[Shot]:
    """60 requests of two tenants; the noisy one's come in one instant."""
    noisy = [_shot(_NOISY_AT, NOISY, n, words=62, output=300) for n in range(_NOISY_REQUESTS)]
    quiet = [_shot(n * _QUIET_EVERY, QUIET, n, words=20, output=40) for n in range(_QUIET_REQUESTS)]
    return noisy + quiet


def verdict(act: Act) -> str:
    """Say in a sentence or two what the numbers mean, good or bad."""
    direct, through = (act.long_summary(way) for way in WAYS)
    quiet = [act.tenants(way)[QUIET] for way in WAYS]
    if through.completed <= direct.completed:
        return (
            f"Surgetank did not help here: {through.completed} of {through.requests} long requests "
            f"finished through it, {direct.completed} without it."
        )
    return (
        f"Sent straight at the engine, {direct.completed} of {direct.requests} long requests "
        f"finished and {direct.wasted_tokens:,} tokens were generated for nobody; through "
        f"Surgetank {through.completed} finished and {through.wasted_tokens:,} were wasted. Beside "
        f"a noisy tenant, a quiet one had {quiet[1].completed} of {quiet[1].requests} requests "
        f"served (direct: {quiet[0].completed}), its median first token "
        f"{_compared(quiet[1].ttft.p50, quiet[0].ttft.p50)}."
    )


async def run_act(folder: Path, progress: Progress, *, records: Path | None = None) -> Act:
    """Write the model into `folder` and run both bursts both ways, 20 to 45 s in all.

    `records`: a folder that keeps every run's records as JSON lines. Raises InputError without the
    `demo` extra, StartError when engine or gateway does not come up; nothing is left running.
    """
    if records is not None:
        make_folder(records)
    model = folder / "tiny.gguf"
    write_tiny_gguf(model)
    bursts = {"long": long_burst(), "mixed": mixed_burst()}
    results: dict[tuple[str, Way], LoadResult] = {}
    for burst, shots in bursts.items():
        for way in WAYS:
            run = _Run(f"{burst}-{way}", shots, progress, records)
            # A fresh engine each time: a burst may leave requests behind whose clients are gone.
            async with LlamaServer(model, slots=SLOTS, context=KV_TOKENS, alias=MODEL) as engine:
                if way == "direct":
                    results[burst, way] = await run.against(engine.url, {})
                else:
                    results[burst, way] = await run.through_gateway(engine.url, folder)
    return Act(
        long={way: results["long", way] for way in WAYS},
        mixed={way: results["mixed", way] for way in WAYS},
    )


def make_folder(path: Path) -> None:
    """Make a folder for records, which only its owner can read. Raises InputError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Run:
    """One burst, one way."""

    name: str
    shots: Sequence[Shot]
    progress: Progress
    records: Path | None

    async def through_gateway(self, engine: str, folder: Path) -> LoadResult:
        """Start a gateway in front of the engine and send the burst to it."""
        kept = None if self.records is None else self.records / f"{self.name}-gateway.jsonl"
        if kept is not None:
            kept.unlink(missing_ok=True)  # the gateway appends
        tenants = [_TENANTS[name] for name in sorted({shot.tenant for shot in self.shots})]
        gateway = GatewayProcess(
            folder / self.name, engine, tenants, tiers=_TIERS, flow=_FLOW, records=kept
        )
        async with gateway:
            return await self.against(gateway.url, gateway.keys)

    async def against(self, url: str, keys: Mapping[str, str]) -> LoadResult:
        """Wait until a first small request is served, then send the burst."""
        shots = [replace(shot, key=keys.get(shot.tenant, "")) for shot in self.shots]
        client = Client(url)
        try:
            await served(
                client, Call(_body("the", output=1), key=shots[0].key, timeout=_READY_WITHIN)
            )
            ended = 0

            def count(_: object) -> None:
                nonlocal ended
                ended += 1
                self.progress(self.name, ended, len(shots))

            self.progress(self.name, 0, len(shots))
            result = await fire(client, shots, on_end=count)
        finally:
            await client.close()
        if self.records is not None:
            write_records(self.records / f"{self.name}.jsonl", result.records)
        return result


def _shot(at: float, tenant: str, number: int, *, words: int, output: int) -> Shot:
    # A tenant and a number make the prompt: none shares a prefix that a cache could reuse.
    draw = random.Random(f"{tenant} {number}")
    prompt = " ".join(draw.choices(WORDS, k=words))
    return Shot(
        at,
        _body(prompt, output=output),
        tenant=tenant,
        id=f"{tenant}-{number:02d}",
        model=MODEL,
        max_tokens=output,
        timeout=_TIMEOUT,
    )


def _body(prompt: str, *, output: int) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": output,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def _compared(through: float | None, direct: float | None) -> str:
    """Say both times, and outright when the detour made it worse."""
    after, without = _seconds(through), _seconds(direct)
    if through is None or (direct is not None and through > direct):
        return f"later than direct: {after} against {without}"
    return f"after {after} (direct: {without})"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"
