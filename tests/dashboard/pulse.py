"""A gateway's admin listener under a seeded pulse, the same story in every run.

It goes on second by second and without clocks; `serve` puts it behind a real HTTP server.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAMES = (
    "acme",
    "夜間バッチ",
    "مختبر اللغة",
    "🚀 launch",
    "<img src=x onerror=alert(1)>",
    "__proto__",
    "nightly",
    "others",
    "a-tenant-with-a-name-longer-than-any-button-ought-to-be",
)
SERVICE = 8.0  # requests a second of one replica
KV = 16_000  # tokens of one replica


@dataclass
class Pulse:
    """Each `second()` goes on by one. The pulse lasts from `begin` to `end`, seconds from start."""

    start: float = 1_800_000_000.0
    base: float = 14.0
    peak: float = 90.0
    begin: float = 500
    end: float = 620
    names: tuple[str, ...] = NAMES
    seed: int = 7
    gateway: str = "gw-1"
    elapsed: int = 0
    queue: float = 0.0
    offered: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    ttft: list[tuple[float, float, str]] = field(default_factory=list)
    arrivals: list[tuple[int, int, int]] = field(default_factory=list)  # the last 30 s
    decisions: list[dict[str, Any]] = field(default_factory=list)
    serving: int = 3
    standby: int = 2
    starting: list[int] = field(default_factory=list)  # the second each becomes ready

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    @property
    def now(self) -> float:
        return self.start + self.elapsed

    def second(self) -> None:
        self.elapsed += 1
        self.serving += self.starting.count(self.elapsed)
        self.starting = [at for at in self.starting if at > self.elapsed]
        capacity = self.serving * SERVICE
        arrived = self._arrivals()
        self.arrivals = [*self.arrivals[-29:], (int(self.now), arrived, 500 * arrived)]
        waits = self.queue / capacity
        refused = max(0.0, self.queue + arrived - capacity - 400)
        self.queue = min(400.0, max(0.0, self.queue + arrived - capacity))
        self.outcomes["queue_full"] += round(refused)
        self.outcomes["completed"] += round(min(arrived, capacity))
        if self.elapsed % 9 == 0:
            self.outcomes["quota_tokens"] += self._draw.randint(0, 3)
        if self.elapsed % 60 == 0:
            self.outcomes["upstream_failed"] += 1
        self._first_tokens(min(arrived, round(capacity)), waits)
        self._scale(waits)

    def _arrivals(self) -> int:
        burst = self.begin <= self.elapsed < self.end
        weights = [1 / (i + 1) for i in range(len(self.names))]
        if burst:
            weights[min(3, len(weights) - 1)] *= 14
        count = round(self._draw.gauss(self.peak if burst else self.base, 3)) if self.base else 0
        for name in self._draw.choices(self.names, weights, k=max(0, count)):
            self.offered[name] += 1
        return max(0, count)

    def _first_tokens(self, count: int, waits: float) -> None:
        for _ in range(count):
            at = self.now - self._draw.random()
            took = 0.15 + waits + self._draw.expovariate(12)
            self.ttft.append((at, took, self._draw.choice(self.names[:5])))
        self.ttft = [one for one in sorted(self.ttft) if one[0] > self.now - 30][-500:]

    def _scale(self, waits: float) -> None:
        effects: list[dict[str, str]] = []
        reasons: list[dict[str, Any]] = []
        if waits > 1 and self.standby:
            effects = [{"attach": f"llama-{self.serving + i}"} for i in range(self.standby)]
            reasons.append({"signal": "ttft slope", "value": 0.41, "threshold": 0.3, "text": ""})
            self.serving, self.standby = self.serving + self.standby, 0
        elif waits > 2 and not self.starting and self.serving < 12:
            effects = [{"start": f"llama-{self.serving + i}"} for i in range(6)]
            text = f"the backlog of {self.queue:.0f} requests outlasts a cold start of 45 s"
            reasons.append({"signal": "backlog", "value": self.queue, "text": text})
            self.starting = [self.elapsed + 45 + 2 * i for i in range(6)]
        elif self.elapsed > self.end + 100 and self.serving > 3:
            effects = [{"drain": f"llama-{self.serving - 1}"}]
            text = "demand has been below 60 % of capacity for 60 s"
            reasons.append({"signal": "demand", "value": 0.41, "threshold": 0.6, "text": text})
            self.serving -= 1
            self.standby = min(2, self.standby + 1)
        plan = {"replicas": self.serving + len(self.starting), "standbys": 2}
        self.decisions.append(
            {
                "t": self.now,
                "model": "llama-3.1-8b",
                "role": "both",
                "observation": {},
                "plan": plan,
                "reasons": reasons,
                "effects": effects,
                "states": {},
            }
        )

    def observation(self) -> dict[str, Any]:
        running = min(self.serving * 24, 20 + self.queue / 2)
        states = (
            ["serving"] * self.serving
            + ["standby"] * self.standby
            + ["starting"] * len(self.starting)
        )
        return {
            "v": 1,
            "gateway": self.gateway,
            "now": self.now,
            "ready": True,
            "draining": False,
            "tenants": {
                name: {"tier": "core", "offered": count, "queued": 0, "running": 0, "refused": 0}
                for name, count in self.offered.items()
            },
            "outcomes": dict(self.outcomes),
            "ttft": self.ttft,
            "arrivals": self.arrivals,
            "pools": [
                {
                    "model": "llama-3.1-8b",
                    "role": "both",
                    "queued": round(self.queue),
                    "queue_age": self.queue / (self.serving * SERVICE),
                    "running": round(running),
                    "kv_held": round(running * 500),
                    "kv_waiting": round(self.queue * 300),
                    "kv_capacity": self.serving * KV,
                    "replicas": [
                        {"id": f"r{i}", "state": state, "in_flight": 1, "limit": 32}
                        for i, state in enumerate(states)
                    ],
                }
            ],
        }

    def decided(self, after: int) -> dict[str, Any]:
        return {"v": 1, "next": len(self.decisions), "lines": self.decisions[after:]}


class Source(ThreadingHTTPServer):
    """The listener. Each GET /observation lets a second pass; `answer` replaces every answer."""

    daemon_threads = True

    def __init__(self, pulse: Pulse) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pulse = pulse
        self.seen: list[tuple[str, str | None]] = []  # target and Authorization
        self.answer: tuple[int, bytes] | None = None
        self.autoscaler = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Source

    def do_GET(self) -> None:
        source = self.server
        source.seen.append((self.path, self.headers["authorization"]))
        status, body = source.answer or self._answer()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> tuple[int, bytes]:
        pulse = self.server.pulse
        if self.path == "/observation":
            pulse.second()
            return 200, json.dumps(pulse.observation()).encode()
        if self.server.autoscaler and self.path.startswith("/decisions?after="):
            return 200, json.dumps(pulse.decided(int(self.path.partition("=")[2]))).encode()
        return 404, b"no such page"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: tests print what fails."""


@contextmanager
def serve(pulse: Pulse) -> Iterator[Source]:
    """Run the listener until the block ends."""
    with Source(pulse) as source:
        thread = threading.Thread(target=source.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield source
        finally:
            source.shutdown()
            thread.join()
