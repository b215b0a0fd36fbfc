"""What the target says of itself during a run: queue, running, KV, preemptions, replicas, GPUs.

Rule: a figure that no source gives is absent, never 0, and a scrape that fails or is late leaves a
gap; it cannot fail the run. Every source is told by its content: an engine's metrics, a Surgetank
gateway's, and DCGM's or an nvidia-smi exporter's GPUs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from surgetank.adapters.dialects import DIALECTS, by_name, parse_signals
from surgetank.adapters.http import FetchError, Tls, fetch

Headers = tuple[tuple[bytes, bytes], ...]
Row = dict[str, float]

_TIMEOUT: Final = 2.0  # seconds of one scrape
_ENGINES: Final = tuple(d for d in DIALECTS.values() if d.waiting)
_PREEMPTIONS: Final = ("vllm:num_preemptions_total", "vllm:num_preemptions")
_GATEWAY: Final = (
    "surgetank_queued", "surgetank_running", "surgetank_replica_ready",
    "surgetank_replica_kv_reserved_tokens", "surgetank_replica_kv_tokens",
)  # fmt: skip
_DCGM: Final = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE")
_SMI: Final = (
    "nvidia_smi_utilization_gpu_ratio", "nvidia_smi_memory_used_bytes",
    "nvidia_smi_memory_total_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """What one source said at one moment; None: it did not. `kind`: engine, gateway or gpu.

    `gpus`: (utilisation 0..1, number); `gpu_memory`: (used, total) in one unit.
    """

    kind: str
    queue: float | None = None
    running: float | None = None
    kv: float | None = None
    preemptions: float | None = None
    replicas: float | None = None
    gpus: tuple[float, int] | None = None
    gpu_memory: tuple[float, float] | None = None


def read(text: str) -> list[Reading]:
    """Read Prometheus text of any of the kinds; empty when it is of none."""
    found = []
    for dialect in _ENGINES:
        if f"\n{dialect.prefix}" in f"\n{text}":
            signals = parse_signals(dialect.name, text, 0.0)
            preempted = _sum(by_name(text, _PREEMPTIONS), *_PREEMPTIONS)
            found.append(
                Reading("engine", signals.waiting, signals.running, signals.kv_used, preempted)
            )
    if "\nsurgetank_" in f"\n{text}":
        found.append(_gateway(text))
    if any(name in text for name in (*_DCGM, *_SMI)):
        found.append(_gpus(text))
    return found


def _gateway(text: str) -> Reading:
    values = by_name(text, _GATEWAY)
    held = _sum(values, "surgetank_replica_kv_reserved_tokens")
    whole = _sum(values, "surgetank_replica_kv_tokens")
    return Reading(
        "gateway",
        # A gateway that has seen no request names no tenant: nobody waits there.
        queue=_sum(values, "surgetank_queued") or 0.0,
        running=_sum(values, "surgetank_running") or 0.0,
        kv=held / whole if held is not None and whole else None,
        replicas=_sum(values, "surgetank_replica_ready"),
    )


def _gpus(text: str) -> Reading:
    values = by_name(text, (*_DCGM, *_SMI))
    busy = [v / 100 for v in _finite(values, _DCGM[0])] or _finite(values, _SMI[0])
    used, free = _sum(values, _DCGM[1]), _sum(values, _DCGM[2])
    memory = (used, used + free) if used is not None and free is not None else None
    if memory is None:
        used, total = _sum(values, _SMI[1]), _sum(values, _SMI[2])
        memory = (used, total) if used is not None and total else None
    return Reading(
        "gpu", gpus=(sum(busy) / len(busy), len(busy)) if busy else None, gpu_memory=memory
    )


def row(t: float, readings: Sequence[Reading]) -> Row | None:
    """Join what all sources said at one moment; None when they said nothing.

    Queues of gateways and engines add up; running, KV and preemptions are the engines' where one
    is scraped, else the gateway's.
    """
    engines = [r for r in readings if r.kind == "engine"]
    gateways = [r for r in readings if r.kind == "gateway"]
    nearest = engines or gateways
    gpus = [r.gpus for r in readings if r.gpus is not None]
    memory = [r.gpu_memory for r in readings if r.gpu_memory is not None]
    told = [r.kv for r in engines if r.kv is not None]
    number = sum(n for _, n in gpus)
    total = sum(whole for _, whole in memory)
    joined = {
        "queue": _add(r.queue for r in (*gateways, *engines)),
        "running": _add(r.running for r in nearest),
        "kv": _mean(told or [r.kv for r in gateways]),
        "preemptions": _add(r.preemptions for r in engines),
        "replicas": _add(r.replicas for r in gateways) or (len(engines) or None),
        "gpu": sum(busy * n for busy, n in gpus) / number if number else None,
        "gpu_memory": sum(used for used, _ in memory) / total if total else None,
    }
    known = {name: float(v) for name, v in joined.items() if v is not None and math.isfinite(v)}
    return {"t": round(t, 3)} | known if known else None


@dataclass(slots=True)
class Watch:
    """Scrapes every source again and again, and keeps a row for each round.

    `headers` go to every source; `tls`: whom those of https have to be trusted by.
    """

    urls: Sequence[str]
    interval: float = 1.0
    headers: Headers = ()
    tls: Tls | None = None
    rows: list[Row] = field(default_factory=list)
    failures: int = 0

    async def run(self, start: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Scrape every `interval` seconds from `start` on (of `clock`), until it is cancelled."""
        due = start
        while self.urls:
            await asyncio.sleep(max(0.0, due - clock()))
            at = clock()
            found = row(at - start, await self._round())
            if found is not None:
                self.rows.append(found)
            # A slow round is not made up for: its successors would only be slower.
            due = max(due + self.interval, clock())

    async def _round(self) -> list[Reading]:
        texts = await asyncio.gather(*(scrape(u, self.headers, self.tls) for u in self.urls))
        self.failures += sum(text is None for text in texts)
        return [reading for text in texts if text is not None for reading in read(text)]


async def scrape(url: str, headers: Headers = (), tls: Tls | None = None) -> str | None:
    """Fetch one exposition; None when there is none."""
    try:
        answer = await fetch(url, timeout=_TIMEOUT, headers=headers, tls=tls)
    except FetchError:
        return None
    return answer.text if answer.status == 200 else None


async def find(urls: Sequence[str], headers: Headers = (), tls: Tls | None = None) -> list[str]:
    """Keep those of the addresses that give metrics of a known kind."""
    texts = await asyncio.gather(*(scrape(url, headers, tls) for url in urls))
    return [url for url, text in zip(urls, texts, strict=True) if text is not None and read(text)]


def least_interval(text: str) -> float:
    """Seconds between two scrapes that the source of this text can bear."""
    return max((d.least_interval for d in _ENGINES if d.prefix in text), default=0.0)


def _finite(values: dict[str, list[float]], name: str) -> list[float]:
    return [v for v in values.get(name, []) if math.isfinite(v)]


def _sum(values: dict[str, list[float]], *names: str) -> float | None:
    for name in names:
        found = values.get(name)
        if found is not None:
            return sum(found) if all(map(math.isfinite, found)) else None
    return None


def _add(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
