"""The streams of the table that the figures are held against: published traces, and seeded ones."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from surgetank.traffic.trace import Batch, Trace

ROOT = Path(__file__).parents[2]
# Beside the repository, or one folder further up.
BESIDE = [ROOT / up / "shared" / "traces" for up in ("..", "../..")]
TRACES = next((folder for folder in BESIDE if folder.is_dir()), BESIDE[0])

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not here")


def trace(times: NDArray[np.float64], prompt: NDArray[np.int64] | None = None) -> Trace:
    return Trace.of([Batch(np.asarray(times, float), prompt_tokens=prompt)])


def azure_code() -> Trace:
    """Azure LLM inference trace 2023, code: 7-digit fractions, naive stamps taken as UTC."""
    rows = (TRACES / "azure_llm_2023_code.csv").read_text().splitlines()[1:]
    fields = [row.split(",") for row in rows]
    times = [datetime.fromisoformat(f[0][:26]).replace(tzinfo=UTC).timestamp() for f in fields]
    return trace(np.array(times), np.array([int(f[1]) for f in fields]))


def mooncake(name: str) -> Trace:
    """Mooncake trace: milliseconds from its own origin."""
    with gzip.open(TRACES / f"mooncake_{name}.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    return trace(
        np.array([row["timestamp"] for row in rows]) / 1000,
        np.array([row["input_length"] for row in rows]),
    )
