"""Counters and histograms of the data plane, and their Prometheus form.

Rule: the hot path adds to plain lists and dicts; names, labels and text exist only when scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from surgetank.policy.record import RequestRecord
from surgetank.policy.session import Burn
from surgetank.policy.shadow import ShadowCounts

SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.8, 1.0, 2.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
)  # fmt: skip


class Histogram:
    """Counts per bucket, their number and sum. Bounds are seconds, `le` inclusive."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        total = 0
        rows = []
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


class PerTenant:
    """What is measured for one (tenant, model)."""

    __slots__ = ("outcomes", "output_tokens", "prompt_tokens", "queue", "total", "ttft")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = defaultdict(int)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.ttft = Histogram()
        self.queue = Histogram()
        self.total = Histogram()


@dataclass(frozen=True, slots=True)
class ReplicaGauges:
    """One replica at the moment of a scrape; None is unknown and is left out, never 0."""

    id: str
    model: str
    ready: bool
    in_flight: int
    limit: int | None
    kv_reserved: int
    kv_tokens: int | None


@dataclass(frozen=True, slots=True)
class Gauges:
    """The state at the moment of a scrape."""

    queued: Mapping[str, int]
    running: Mapping[str, int]
    replicas: Iterable[ReplicaGauges]
    connections: int
    records_dropped: int
    levels: Mapping[str, int] = field(default_factory=dict)  # of the degradation ladder, by model
    shadow: ShadowCounts | None = None  # None: admission is on for all
    sessions: Mapping[str, int] = field(default_factory=dict)  # by tenant, under way
    now: float = 0.0  # Unix seconds


class Metrics:
    """Everything the data plane counts."""

    def __init__(self) -> None:
        self.gap = Histogram()
        self.replays = 0
        self.upstream_failures: dict[str, int] = defaultdict(int)
        self.missing_signals: dict[tuple[str, str], int] = defaultdict(int)
        self.unauthorized = 0
        self.rejected = 0
        self.turned_away = 0
        self.withheld = 0
        self.config_failed = False  # the last reading of the configuration could not be used
        self.config_loaded = 0.0  # Unix seconds: when the one in force was read
        self._tenants: dict[tuple[str, str], PerTenant] = {}
        self._burns: dict[str, Burn] = {}  # by tenant

    def of(self, tenant: str, model: str) -> PerTenant:
        key = (tenant, model)
        found = self._tenants.get(key)
        if found is None:
            found = self._tenants[key] = PerTenant()
        return found

    def count(self, record: RequestRecord, model: str) -> None:
        """Add one ended request; `model` is a served name or "" (labels stay few)."""
        cell = self._tenants.get((record.tenant, model)) or self.of(record.tenant, model)
        cell.outcomes[record.outcome] += 1
        if record.prompt_tokens and record.dispatched is not None:
            cell.prompt_tokens += record.prompt_tokens
        if record.output_tokens:
            cell.output_tokens += record.output_tokens
            burn = self._burns.get(record.tenant)
            if burn is None:
                burn = self._burns[record.tenant] = Burn()
            burn.add((record.prompt_tokens or 0) + record.output_tokens, record.ended or 0.0)
        arrived = record.arrived
        # As Histogram.add has it: three calls less.
        if record.first_token is not None:
            seconds, histogram = record.first_token - arrived, cell.ttft
            histogram.counts[bisect_left(SECONDS, seconds)] += 1
            histogram.sum += seconds
        if record.dispatched is not None:
            seconds, histogram = record.dispatched - arrived, cell.queue
            histogram.counts[bisect_left(SECONDS, seconds)] += 1
            histogram.sum += seconds
        if record.ended is not None:
            seconds, histogram = record.ended - arrived, cell.total
            histogram.counts[bisect_left(SECONDS, seconds)] += 1
            histogram.sum += seconds

    def exposition(self, gauges: Gauges) -> bytes:
        """The Prometheus text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Snapshot(lambda: self._families(gauges)))
        return generate_latest(registry)

    def _families(self, gauges: Gauges) -> Iterator[Metric]:
        labels = ["tenant", "model"]
        requests = CounterMetricFamily(
            "surgetank_requests", "Requests by how they ended.", labels=[*labels, "outcome"]
        )
        prompt = CounterMetricFamily(
            "surgetank_prompt_tokens", "Prompt tokens of dispatched requests.", labels=labels
        )
        output = CounterMetricFamily(
            "surgetank_output_tokens", "Output tokens passed on or counted.", labels=labels
        )
        ttft = HistogramMetricFamily(
            "surgetank_time_to_first_token_seconds", "Arrival to first content.", labels=labels
        )
        queue = HistogramMetricFamily(
            "surgetank_queue_seconds", "Arrival to dispatch.", labels=labels
        )
        total = HistogramMetricFamily(
            "surgetank_request_seconds", "Arrival to the last byte.", labels=labels
        )
        for key, cell in self._tenants.items():
            for outcome, count in cell.outcomes.items():
                requests.add_metric([*key, outcome], count)
            prompt.add_metric(key, cell.prompt_tokens)
            output.add_metric(key, cell.output_tokens)
            for family, histogram in ((ttft, cell.ttft), (queue, cell.queue), (total, cell.total)):
                family.add_metric(key, histogram.cumulative(), histogram.sum)
        yield from (requests, prompt, output, ttft, queue, total)
        gap = HistogramMetricFamily(
            "surgetank_inter_token_latency_seconds", "Time between reads of a running stream."
        )
        gap.add_metric([], self.gap.cumulative(), self.gap.sum)
        yield gap
        yield CounterMetricFamily(
            "surgetank_replays", "Requests sent to a replica again.", value=self.replays
        )
        yield CounterMetricFamily(
            "surgetank_unauthorized", "Requests without a valid key.", value=self.unauthorized
        )
        yield CounterMetricFamily(
            "surgetank_rejected", "Requests refused before admission (framing, route, body).",
            value=self.rejected,
        )  # fmt: skip
        yield CounterMetricFamily(
            "surgetank_connections_turned_away", "Connections beyond listen.max_connections.",
            value=self.turned_away,
        )  # fmt: skip
        yield CounterMetricFamily(
            "surgetank_records_withheld", "Requests without a valid key beyond those recorded.",
            value=self.withheld,
        )  # fmt: skip
        failures = CounterMetricFamily(
            "surgetank_upstream_failures", "Connections that failed.", labels=["replica"]
        )
        for replica, count in self.upstream_failures.items():
            failures.add_metric([replica], count)
        missing = CounterMetricFamily(
            "surgetank_missing_signals", "Scrapes without a signal the engine should give.",
            labels=["replica", "signal"],
        )  # fmt: skip
        for (replica, signal), count in self.missing_signals.items():
            missing.add_metric([replica, signal], count)
        yield from (failures, missing)
        yield GaugeMetricFamily(
            "surgetank_config_reload_failed",
            "1 when the configuration read last could not be used.",
            value=float(self.config_failed),
        )
        yield GaugeMetricFamily(
            "surgetank_config_last_success_timestamp_seconds",
            "When the configuration in force was read.",
            value=self.config_loaded,
        )
        burns = GaugeMetricFamily(
            "surgetank_tenant_token_rate",
            "Tokens per second of requests that ended, prompt and output, fading over a minute.",
            labels=["tenant"],
        )
        for tenant, burn in self._burns.items():
            burns.add_metric([tenant], burn.at(gauges.now))
        yield burns
        yield from _gauge_families(gauges)


class _Snapshot:
    """A registry's collector over a function."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _gauge_families(gauges: Gauges) -> Iterator[Metric]:
    for name, text, values in (
        ("surgetank_queued", "Requests waiting.", gauges.queued),
        ("surgetank_running", "Requests running.", gauges.running),
        ("surgetank_sessions", "Sessions under way.", gauges.sessions),
    ):
        family = GaugeMetricFamily(name, text, labels=["tenant"])
        for tenant, value in values.items():
            family.add_metric([tenant], value)
        yield family
    labels = ["replica", "model"]
    ready = GaugeMetricFamily("surgetank_replica_ready", "1 when ready.", labels=labels)
    in_flight = GaugeMetricFamily("surgetank_replica_in_flight", "Requests on it.", labels=labels)
    limit = GaugeMetricFamily("surgetank_replica_limit", "Most requests on it now.", labels=labels)
    reserved = GaugeMetricFamily(
        "surgetank_replica_kv_reserved_tokens", "KV tokens reserved.", labels=labels
    )
    size = GaugeMetricFamily("surgetank_replica_kv_tokens", "KV size in tokens.", labels=labels)
    for replica in gauges.replicas:
        key = [replica.id, replica.model]
        ready.add_metric(key, float(replica.ready))
        in_flight.add_metric(key, replica.in_flight)
        reserved.add_metric(key, replica.kv_reserved)
        if replica.limit is not None:
            limit.add_metric(key, replica.limit)
        if replica.kv_tokens is not None:
            size.add_metric(key, replica.kv_tokens)
    yield from (ready, in_flight, limit, reserved, size)
    level = GaugeMetricFamily(
        "surgetank_degradation_level", "Step of the degradation ladder, 0 to 5.", labels=["model"]
    )
    for model, step in gauges.levels.items():
        level.add_metric([model], step)
    yield level
    if gauges.shadow is not None:
        yield from _shadow_families(gauges.shadow)
    yield GaugeMetricFamily(
        "surgetank_client_connections", "Open client connections.", value=gauges.connections
    )
    yield CounterMetricFamily(
        "surgetank_records_dropped", "Records that did not reach the disk.",
        value=gauges.records_dropped,
    )  # fmt: skip


def _shadow_families(counts: ShadowCounts) -> Iterator[Metric]:
    labels = ["tenant", "reason"]
    refused = CounterMetricFamily(
        "surgetank_shadow_refused",
        "Requests let through that admission would have refused.",
        labels=labels,
    )
    reordered = CounterMetricFamily(
        "surgetank_shadow_reordered",
        "Requests that admission would have sent before one that came first, or after a later one.",
        labels=labels,
    )
    for family, tally in ((refused, counts.refused), (reordered, counts.reordered)):
        for key, count in tally.items():
            family.add_metric(key, count)
        yield family
    admitted = CounterMetricFamily(
        "surgetank_shadow_admitted", "Requests that admission would have let in.", labels=["tenant"]
    )
    for tenant, count in counts.admitted.items():
        admitted.add_metric([tenant], count)
    yield admitted
