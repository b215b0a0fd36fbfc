"""How each engine names its signals: vLLM, SGLang, llama.cpp, TensorRT-LLM, TGI.

Rule: what an engine does not say is None, never 0. Names drift between releases, so each signal has
a list of aliases, newest first, and the first that is there counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from surgetank.adapters.exposition import samples
from surgetank.policy.replica import Signals


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one engine speaks: where its metrics are, and what it calls each signal."""

    name: str
    owned_by: str  # what /v1/models says of whom the model belongs to
    prefix: str  # of its metrics, by which it is known when /v1/models does not tell
    metrics_path: str = "/metrics"
    counts_tokens: bool = False  # it has routes that tell a prompt's exact length
    least_interval: float = 0.0  # seconds between two scrapes, at least
    waiting: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    kv_used: tuple[str, ...] = ()
    tells_load: bool = False  # on whole answers, to who asks (see `loadreport`)
    preempts: bool | None = None
    frees_on_disconnect: bool | None = None

    @property
    def signals(self) -> Mapping[str, tuple[str, ...]]:
        """Aliases by the field of Signals; a signal this engine never gives has none."""
        return {"waiting": self.waiting, "running": self.running, "kv_used": self.kv_used}


DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "vllm",
            owned_by="vllm",
            prefix="vllm:",
            waiting=("vllm:num_requests_waiting",),
            running=("vllm:num_requests_running",),
            kv_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the latter <= 0.11
            tells_load=True,
            preempts=True,
            frees_on_disconnect=True,  # measured: 0.05 s
        ),
        Dialect(
            "sglang",
            owned_by="sglang",
            prefix="sglang:",
            waiting=("sglang:num_queue_reqs",),
            running=("sglang:num_running_reqs",),
            kv_used=("sglang:token_usage",),
            preempts=True,  # it retracts
            frees_on_disconnect=True,
        ),
        Dialect(
            "llamacpp",
            owned_by="llamacpp",
            prefix="llamacpp:",
            counts_tokens=True,
            least_interval=2.0,  # each scrape resets its averages and delays the freeing of slots
            waiting=("llamacpp:requests_deferred",),
            running=("llamacpp:requests_processing",),
            preempts=False,  # a full KV cache kills every stream
            frees_on_disconnect=False,  # measured: not in 25 s, while other streams run
        ),
        Dialect(
            "trtllm",
            owned_by="tensorrt_llm",
            prefix="trtllm_",
            metrics_path="/prometheus/metrics",  # its /metrics is JSON
            waiting=("trtllm_num_requests_waiting",),
            running=("trtllm_num_requests_running",),
            kv_used=("trtllm_kv_cache_utilization",),
            tells_load=True,  # before Triton; trtllm-serve's own server leaves it out
            preempts=True,  # it pauses or does not admit, by its scheduler policy
            frees_on_disconnect=None,  # it looks for the client once a second; not measured
        ),
        Dialect(  # huggingface.co/docs/text-generation-inference/reference/metrics
            "tgi",
            owned_by="",  # its /v1/models names the model there
            prefix="tgi_",
            waiting=("tgi_queue_size",),
            running=("tgi_batch_current_size",),
            preempts=True,  # it takes into its batch only what fits in the worst case
            frees_on_disconnect=None,  # not measured
        ),
        Dialect("openai", owned_by="", prefix="\0"),
    )
}

# Copies of one scheduler's figure, one for each rank that runs it: not to be added up.
_COPIES: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})


def parse_signals(dialect: str, text: str, now: float) -> Signals:
    """Read waiting, running and KV use from Prometheus text; no text raises.

    Requests are summed and KV use averaged over the `engine` (or dp_rank) label. A signal that is
    missing, or not finite in any of its series, is None. `now`: monotonic seconds of the reading.
    """
    spoken = DIALECTS[dialect].signals
    found = by_name(text, [alias for aliases in spoken.values() for alias in aliases])

    def values(signal: str) -> list[float]:
        return next((found[alias] for alias in spoken[signal] if alias in found), [])

    return Signals(
        as_of=now,
        waiting=count(values("waiting")),
        running=count(values("running")),
        kv_used=_share(values("kv_used")),
    )


def unknown_signals(dialect: str, signals: Signals) -> tuple[str, ...]:
    """Name the signals this engine should give and did not: drifted names, or metrics off."""
    spoken = DIALECTS[dialect].signals
    return tuple(name for name in spoken if spoken[name] and getattr(signals, name) is None)


def is_sleeping(text: str) -> bool | None:
    """Tell from vLLM's metrics whether an engine of it sleeps; None when they do not say."""
    awake = [s.value for s in samples(text, _SLEEP) if s.labels.get("sleep_state") == "awake"]
    return any(value == 0 for value in awake) if awake else None


_SLEEP: Final = frozenset({"vllm:engine_sleep_state"})


def by_name(text: str, names: Iterable[str]) -> dict[str, list[float]]:
    """Collect values by metric, one a scheduler: no copies by rank, no parts by priority."""
    series: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for sample in samples(text, frozenset(names)):
        if sample.labels.get("priority"):  # SGLang: the total stands under priority=""
            continue
        key = frozenset(item for item in sample.labels.items() if item[0] not in _COPIES)
        series.setdefault(sample.name, {}).setdefault(key, sample.value)
    return {name: list(values.values()) for name, values in series.items()}


def count(values: list[float]) -> int | None:
    """Sum whole numbers; None when there are none, or one is not a count."""
    if not values or not all(math.isfinite(v) and v >= 0 for v in values):
        return None
    total = sum(values)
    return int(total) if math.isfinite(total) else None


def _share(values: list[float]) -> float | None:
    if not values or not all(math.isfinite(v) and v >= 0 for v in values):
        return None
    return min(1.0, sum(min(v, 1.0) for v in values) / len(values))
