"""Scenarios that the tests start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from surgetank.engine.profile import EngineProfile
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.workload import Workload, of_batch
from surgetank.traffic.trace import Batch, Labels

MODEL = "model"


def engine(**settings: Any) -> EngineProfile:
    """A step of 10 ms whatever is in it, and KV for 100 requests of 1,000 tokens."""
    values: dict[str, Any] = {
        "name": "even",
        "a_ms": 10.0,
        "b_us": 0.0,
        "c_ns": 0.0,
        "d_us": 0.0,
        "e_ns": 0.0,
        "kv_blocks": 6250,
        "max_model_len": 16384,
    }
    return EngineProfile(**{**values, **settings})


def load(
    arrived: Sequence[float] | np.ndarray[Any, Any],
    *,
    prompt: int = 100,
    output: int | Sequence[int] | np.ndarray[Any, Any] = 20,
    tenants: Sequence[str] | None = None,
) -> Workload:
    at = np.asarray(arrived, np.float64)
    return of_batch(
        Batch(
            arrived=at,
            prompt_tokens=np.full(len(at), prompt, np.int64),
            output_tokens=np.broadcast_to(np.asarray(output, np.int64), len(at)),
            tenant=None if tenants is None else Labels.of(tenants),
        )
    )


def scenario(workload: Workload, **settings: Any) -> Scenario:
    """One replica of the even engine, unless settings say something else."""
    pool: dict[str, Any] = {"model": MODEL, "profile": engine()}
    own = {"profile", "replicas", "standbys", "max_replicas", "start", "scale", "nodes", "slots"}
    pool |= {name: settings.pop(name) for name in own & set(settings)}
    values = {"pools": (PoolPlan(**pool),), **settings}
    return Scenario(workload=workload, **values)


def bursts(rows: int, rate: float, seed: int) -> np.ndarray[Any, Any]:
    """Poisson arrivals whose rate is four times as high in every second ten seconds."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, rows)
    at = np.cumsum(gaps)
    return np.where(at % 20 < 10, at, at - 0.75 * (at % 20 - 10))
