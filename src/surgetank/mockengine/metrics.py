"""The engine's metrics under vLLM's names, labels and buckets."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from surgetank.engine.profile import EngineProfile
from surgetank.mockengine.batcher import Batcher

_LABELS: Final = ("engine", "model_name")
_TTFT: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_WHOLE: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
_BOUNDS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")


def _token_buckets(most: int) -> list[float]:
    """1, 2, 5, 10, ... up to the longest request, as vLLM builds them."""
    buckets = []
    decade = 1
    while decade <= most:
        buckets += [float(m * decade) for m in (1, 2, 5) if m * decade <= most]
        decade *= 10
    return buckets


class EngineMetrics:
    """What happened, counted; gauges are as the latest step left them, as vLLM's are.

    So a request that came while a step runs is not told as waiting: the next step may well take it.
    """

    def __init__(
        self, model: str, profile: EngineProfile, batcher: Batcher, *, caches: bool = False
    ) -> None:
        self._registry = CollectorRegistry()
        self._batcher = batcher
        self._model = model
        self._left = (0, 0)  # running and waiting after the latest step
        self._running = self._gauge(
            "num_requests_running", "Number of requests in model execution batches."
        )
        self._waiting = self._gauge(
            "num_requests_waiting", "Number of requests waiting to be processed."
        )
        self._kv = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self.preemptions = self._counter(
            "num_preemptions", "Cumulative number of preemption from the engine."
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self.generation_tokens = self._counter(
            "generation_tokens", "Number of generation tokens processed."
        )
        self.cache_queries = self._counter(
            "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."
        )
        self.cache_hits = self._counter(
            "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."
        )
        success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self.success = {reason: success.labels("0", model, reason) for reason in _REASONS}
        rejections = Counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            ("model_name", "reason"),
            registry=self._registry,
        )
        self.rejections = {bound: rejections.labels(model, bound) for bound in _BOUNDS}
        sizes = _token_buckets(profile.max_model_len)
        self.prompt_size = self._histogram(
            "request_prompt_tokens", "Number of prefill tokens processed.", sizes
        )
        self.generation_size = self._histogram(
            "request_generation_tokens", "Number of generation tokens processed.", sizes
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT
        )
        self.itl = self._histogram(
            "inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            _PER_TOKEN,
        )
        self.tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _PER_TOKEN,
        )
        self.e2e = self._histogram(
            "e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            _WHOLE,
        )
        cache = {
            "block_size": str(profile.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(caches),
            "engine": "0",
            "num_gpu_blocks": str(profile.kv_blocks),
        }
        Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            list(cache),
            registry=self._registry,
        ).labels(**cache).set(1)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(
            "0", self._model
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(
            "0", self._model
        )

    def _histogram(
        self, name: str, text: str, buckets: list[float] | tuple[float, ...]
    ) -> Histogram:
        return Histogram(
            f"vllm:{name}", text, _LABELS, registry=self._registry, buckets=buckets
        ).labels("0", self._model)

    def stepped(self) -> None:
        """Take note of what a step left."""
        self._left = self._batcher.running, self._batcher.waiting

    @property
    def waiting(self) -> int:
        """Requests that the latest step had no room for."""
        return self._left[1] if self._batcher.due is not None else self._batcher.waiting

    @property
    def running(self) -> int:
        """Requests that the latest step left running."""
        return self._left[0] if self._batcher.due is not None else self._batcher.running

    def kv_usage(self) -> float:
        """Return the share of KV blocks in use, 0 to 1."""
        return self._batcher.kv_blocks_used / self._batcher.profile.kv_blocks

    def render(self, lie: tuple[int, int, float] | None = None) -> bytes:
        """Write the text format; `lie` replaces (running, waiting, KV use)."""
        running, waiting, kv = lie or (self.running, self.waiting, self.kv_usage())
        self._running.set(running)
        self._waiting.set(waiting)
        self._kv.set(kv)
        return generate_latest(self._registry)
