"""What a number may be, by the name of its field: one name means one thing in every Spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DAY: Final = 86_400.0  # no time here is longer; more is milliseconds written by mistake
# No number is larger or, where it divides, smaller: products of a few of them stay finite.
_MOST: Final = 1e15
_LEAST: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Bound:
    """`low` <= value <= `high`, or `above` < value where 0 makes no sense."""

    low: float | None = 0
    above: float | None = None
    high: float | None = None

    def problem(self, value: float) -> str | None:
        """Say what would be right, None when the value is."""
        if self.above is not None and value <= self.above:
            return f"must be > {self.above:g}"
        if self.low is not None and value < self.low:
            return f"must be >= {self.low:g}"
        if self.high is not None and value > self.high:
            return f"must be <= {self.high:.10g}"
        return None

    def to_schema(self) -> dict[str, float]:
        words = {"minimum": self.low, "exclusiveMinimum": self.above, "maximum": self.high}
        return {word: limit for word, limit in words.items() if limit is not None}


_AT_LEAST_0: Final = Bound(high=_MOST)
_AT_LEAST_1: Final = Bound(low=1, high=_MOST)
_POSITIVE: Final = Bound(low=_LEAST, above=0, high=_MOST)
_TIME: Final = Bound(low=_LEAST, above=0, high=_DAY)
_UP_TO_A_DAY: Final = Bound(low=0, high=_DAY)
_PART: Final = Bound(low=0, high=1)
_FILL: Final = Bound(low=_LEAST, above=0, high=1)

_BOUNDS: Final = {
    "port": Bound(low=0, high=65_535),
    "priority": Bound(low=-1000, high=1000),
    "replays": Bound(low=0, high=10),
    "retry_ratio": Bound(low=0, high=1),
    "min_share": _PART,
    "standby_cost": _PART,
    "attainment": _FILL,
    "kept_sessions": _PART,
    "token_gap_tolerance": _PART,
    "max_head_bytes": Bound(low=1024, high=1 << 20),
    "max_line_bytes": Bound(low=1024, high=_MOST),
    "max_buffered_bytes": Bound(low=4096, high=_MOST),
    "max_log_bytes": Bound(low=4096, high=_MOST),
    "max_file_bytes": Bound(low=4096, high=_MOST),
    "max_total_bytes": Bound(low=4096, high=_MOST),
    **dict.fromkeys(("kv_fill", "utilisation", "prefill_share"), _FILL),
    # Factors: below 1 they would take away what they are there to add.
    **dict.fromkeys(("ttft_ratio_limit", "surge_factor", "factor"), Bound(low=1, high=_MOST)),
    **dict.fromkeys(
        (
            "theta",
            "weight",
            "requests_per_minute",
            "tokens_per_minute",
            "input_tokens_per_minute",
            "output_tokens_per_minute",
            "session_tokens_per_minute",
            "decode_weight",
            "ttft_slope_limit",
            "prompt_tokens_per_replica",
            "output_tokens_per_replica",
            "kv_tokens_per_replica",
        ),
        _POSITIVE,
    ),
    **dict.fromkeys(
        (
            "slack",
            "slack_bucket",
            "burst_seconds",
            "ttft_objective",
            "tpot_objective",
            "ttft_slope_window",
            "influx_window",
            "token_gap_window",
            "kv_horizon",
            "interval",
            "step_period",
            "start_time",
            "stale_after",
        ),
        _TIME,
    ),
    **dict.fromkeys(
        (
            "batching_window",
            "drain_timeout",
            "queue_age_gate",
            "surge_confirm",
            "scale_down_delay",
            "standby_memory",
        ),
        _UP_TO_A_DAY,
    ),
    **dict.fromkeys(
        (
            "max_connections",
            "max_body_bytes",
            "max_buffered",
            "max_in_flight",
            "max_running",
            "max_requests",
            "max_concurrent",
            "max_output_tokens",
            "default_output_tokens",
            "max_default_output_tokens",
            "slots",
            "kv_tokens",
            "block_size",
            "max_context",
            "max_replicas",
            "max_step",
            "budget",
            "units",
        ),
        _AT_LEAST_1,
    ),
}


def bound_of(name: str) -> Bound:
    """Return the bound of a number called `name`; what is not listed is >= 0."""
    if name in _BOUNDS:
        return _BOUNDS[name]
    return _TIME if name.endswith(("_timeout", "_interval", "_grace")) else _AT_LEAST_0
