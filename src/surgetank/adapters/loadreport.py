"""The load that an engine tells on an answer's head: ORCA's `endpoint-load-metrics`.

    endpoint-load-metrics: JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, ...}}
    endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, ...

The forms are those of vLLM (`entrypoints/openai/orca_metrics.py`) and of Triton's TensorRT-LLM
backend (`docs/user_guide/metrics.md`, "ORCA header metrics"); both tell it to who asks with
`endpoint-load-metrics-format`, vLLM on whole answers only.

Rule: nothing an engine writes there can raise; what is not told, or is no sane number, is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from surgetank.policy.replica import Signals

HEADER: Final = b"endpoint-load-metrics"
ASK: Final = b"endpoint-load-metrics-format: JSON\r\n"
_LONGEST: Final = 4096
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {  # by the field of Signals: newest first
    "waiting": ("num_requests_waiting",),
    "running": ("num_requests_running",),
    "kv_used": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "kv_cache_utilization"),
}


def read_load(value: bytes, now: float) -> Signals | None:
    """Read the header's value; None when it tells nothing of use. `now`: monotonic seconds."""
    if len(value) > _LONGEST:
        return None
    form, _, text = value.decode("latin-1").strip().partition(" ")
    told = _json(text) if form.upper() == "JSON" else _text(text) if form.upper() == "TEXT" else {}
    found = {
        field: next((n for name in names if (n := _number(told.get(name))) is not None), None)
        for field, names in _NAMES.items()
    }
    waiting, running, kv = found["waiting"], found["running"], found["kv_used"]
    if waiting is None and running is None and kv is None:
        return None
    return Signals(
        now,
        None if waiting is None else int(waiting),
        None if running is None else int(running),
        None if kv is None else min(1.0, kv),
    )


def _json(text: str) -> Mapping[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    named = told.get("named_metrics") if isinstance(told, dict) else None
    return named if isinstance(named, dict) else {}


def _text(text: str) -> Mapping[str, Any]:
    pairs = (item.strip().partition("=") for item in text.split(","))
    return {name.strip().removeprefix("named_metrics."): value for name, _, value in pairs}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and 0 <= number < 1e9 else None
