"""The same overload over HTTP: `surgetank serve`, two simulated replicas, an open-loop sender.

Rule: what the sender saw is what counts, and a request without a first token is infinitely late;
the ladder's step is read from the gateway's metrics, as an operator's monitoring reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np

from surgetank.adapters.child import Child
from surgetank.adapters.http import FetchError, fetch
from surgetank.engine import profile as engines
from surgetank.loadtest.processes import OnProgress, send
from surgetank.loadtest.shot import LoadResult, Shot
from surgetank.policy.request import Outcome as Ending
from surgetank.simulation.scenario import PoolPlan, capacity
from surgetank.studies.gateway_process import GatewayProcess
from surgetank.studies.ladder import SHARES, TENANTS, TIERS, Overload, Served, reversals, served

_PROFILE: Final = "tiny"
_SEATS: Final = 8
_REPLICAS: Final = 2
_WORDS, _PROMPT = 60, 90  # of a prompt; tokens, about
_OUTPUT, _SIGMA = 60, 0.5  # median tokens of an answer
_CAP: Final = 32
_MAX_LAG: Final = 0.1  # seconds, an eighth of the objective: first tokens count from when due
_LEVEL: Final = re.compile(rb'^surgetank_degradation_level\{model="tiny"\} (\d)', re.MULTILINE)
_READ_EVERY: Final = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Lived:
    """One run. `begins`: when the overload does.

    `ttft`: of each of the core's requests, when due and time taken. `levels`: when
    the ladder's step was read, and what it was; `told`: answers with the header are counted in the
    gateway's records; `log`: its lines on the ladder; `sent`: as the sender saw it.
    """

    ladder: bool
    begins: float
    served: tuple[Served, ...]
    ttft: tuple[tuple[float, float], ...]
    levels: tuple[tuple[float, int], ...]
    told: int
    log: tuple[str, ...]
    sent: LoadResult

    @property
    def highest(self) -> int:
        return max((level for _, level in self.levels), default=0)

    @property
    def reversals(self) -> int:
        """Steps up that follow a step down, from the overload on."""
        levels = [level for at, level in self.levels if at >= self.begins]
        moves = [b - a for a, b in pairwise(levels) if a != b]
        return reversals(moves)

    @property
    def last(self) -> int:
        return self.levels[-1][1] if self.levels else 0


def overload(factor: float = 4.0, lasts: float = 60.0) -> Overload:
    """What the two replicas are sent, by what their profile can do."""
    pool = PoolPlan(model=_PROFILE, profile=engines.find(_PROFILE), replicas=_REPLICAS)
    output = _OUTPUT * float(np.exp(_SIGMA**2 / 2))
    prefill, decode = capacity(pool.profile, tpot=1.0, context=_PROMPT + output / 2, most=_SEATS)
    each = 1 / (_PROMPT / prefill + output / decode)
    return Overload(_REPLICAS * each, factor, before=15.0, lasts=lasts, after=75.0)


async def live(
    seed: int,
    *,
    ladder: bool,
    factor: float = 4.0,
    lasts: float = 60.0,
    on_progress: OnProgress | None = None,
) -> Lived:
    """Run it. Everything that is started is ended."""
    what = overload(factor, lasts)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        async with contextlib.AsyncExitStack() as parts:
            urls = [await parts.enter_async_context(_engine(n)) for n in range(_REPLICAS)]
            gateway = GatewayProcess(
                Path(folder) / "gateway",
                None,
                TENANTS,
                tiers=TIERS,
                flow={"max_in_flight": _SEATS},
                records=records,
                more={
                    "replicas": [{"url": url} for url in urls],
                    "ladder": {"enabled": ladder, "max_tokens": _CAP},
                    "admin": {"port": 0},
                },
            )
            await parts.enter_async_context(gateway)
            began = time.monotonic() + 1.0
            levels: list[tuple[float, int]] = []
            reading = asyncio.create_task(_read_levels(gateway.admin, began, levels))
            shots = _shots(what, seed, gateway.keys)
            sent = await send(
                gateway.url,
                shots,
                seed=seed,
                start=began,
                max_lag=_MAX_LAG,
                on_progress=on_progress,
            )
            await asyncio.sleep(max(0.0, began + what.ends + what.after - time.monotonic()))
            reading.cancel()
            log = tuple(x for x in gateway.errors.splitlines() if "degradation level" in x)
        lines = records.read_text(encoding="utf-8").splitlines()
    return _lived(what, sent, levels, log, ladder=ladder, told=_told(lines))


def _lived(
    what: Overload,
    sent: LoadResult,
    levels: list[tuple[float, int]],
    log: tuple[str, ...],
    *,
    ladder: bool,
    told: int,
) -> Lived:
    due = [record.scheduled or 0.0 for record in sent.records]
    start = min(due, default=0.0)
    rows: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in SHARES}
    for record, at in zip(sent.records, due, strict=True):
        ttft = inf if record.ttft is None else record.ttft
        whole = record.outcome == Ending.COMPLETED.value
        rows[record.tenant].append((at - start, ttft, whole))
    came = {
        name: [row for row in found if what.before <= row[0] < what.ends]
        for name, found in rows.items()
    }
    return Lived(
        ladder=ladder,
        begins=what.before,
        served=tuple(
            served(name, np.array([r[1] for r in found]), np.array([r[2] for r in found]))
            for name, found in came.items()
        ),
        ttft=tuple((row[0], row[1]) for row in rows["core"]),
        levels=tuple(levels),
        told=told,
        log=log,
        sent=sent,
    )


@contextlib.asynccontextmanager
async def _engine(number: int) -> AsyncIterator[str]:
    command = [sys.executable, "-m", "surgetank", "engine", "--profile", _PROFILE, "--port", "0"]
    command += ["--seed", f"{number}", "--output-median", f"{_OUTPUT}"]
    command += ["--output-sigma", f"{_SIGMA}"]
    child = Child("a replica", command, start_timeout=60.0, stop_timeout=10.0)
    try:
        yield (await child.start())[0]
    finally:
        await asyncio.shield(child.stop())


def _shots(what: Overload, seed: int, keys: dict[str, str]) -> list[Shot]:
    rng = np.random.default_rng([seed, 13])
    at = what.arrivals(rng)
    names = tuple(SHARES)
    who = rng.choice(len(names), len(at), p=list(SHARES.values()))
    shots = []
    for number, (when, code) in enumerate(zip(at.tolist(), who.tolist(), strict=True)):
        text = " ".join(f"w{(seed + number * 31 + i) % 997}" for i in range(_WORDS))
        body: dict[str, Any] = {
            "model": _PROFILE,
            "stream": True,
            "messages": [{"role": "user", "content": text}],
        }
        tenant = names[code]
        shots.append(
            Shot(
                when,
                json.dumps(body).encode(),
                tenant=tenant,
                key=keys[tenant],
                id=f"{number:06d}",
                model=_PROFILE,
            )
        )
    return shots


async def _read_levels(admin: str, began: float, levels: list[tuple[float, int]]) -> None:
    while True:
        with contextlib.suppress(FetchError):
            response = await fetch(f"{admin}/metrics", timeout=2.0)
            found = _LEVEL.search(response.body)
            if found is not None:
                levels.append((time.monotonic() - began, int(found[1])))
        await asyncio.sleep(_READ_EVERY)


def _told(lines: list[str]) -> int:
    return sum(1 for line in lines if '"degraded"' in line)
