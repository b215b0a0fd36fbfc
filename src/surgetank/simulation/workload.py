"""What a simulation is sent: requests as columns, from a log or from a pulse.

Rule: every policy of a comparison gets the same columns, and nothing of a policy is in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.traffic.trace import UNKNOWN, Batch, Codes, Counts, Labels, Seconds, Trace

ALL: Final = "all"
"""The one phase of a log that says nothing of phases."""

_EPOCH: Final = 1e8  # later stamps are Unix seconds (1973), earlier ones a log's own clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests to come, sorted by arrival; all columns are of one length.

    `arrived`: seconds after `origin`, which records add again. `max_tokens` and `cached` may be
    None; UNKNOWN in a row is none. `priority`: lower goes first; None is 0 for all. `span`: seconds
    that the arrivals stand for. `cached` is what a log says was in the cache; where `shared` says
    what prompts begin with, caches are simulated instead. `session`: number of the session, -1 for
    none; its prompts begin as its earlier ones did.
    """

    arrived: Seconds
    prompt: Counts
    output: Counts  # what the engine would generate if nobody cuts it off
    tenant: Codes
    tenants: tuple[str, ...]
    model: Codes
    models: tuple[str, ...]
    phase: NDArray[np.int8]
    phases: tuple[str, ...]
    span: float
    origin: float = 0.0
    max_tokens: Counts | None = None
    priority: Counts | None = None
    cached: Counts | None = None
    shared: Codes | None = None  # number of the text that the prompt begins with, -1 for none
    shared_tokens: int = 0  # of each such text
    session: Codes | None = None
    sessions: tuple[str, ...] = ()
    left_out: int = 0  # rows of the log without tokens to simulate

    def __len__(self) -> int:
        return len(self.arrived)

    def first(self, rows: int) -> Workload:
        """Keep the first so many requests."""
        if rows >= len(self):
            return self
        span = float(self.arrived[rows - 1]) if rows else 0.0
        return replace(self.only(slice(rows)), span=span)

    def only(self, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Workload:
        """Keep the requests that `rows` selects, in its order; the span stays."""
        cut: dict[str, object] = {}
        for name in _COLUMNS:
            column = getattr(self, name)
            cut[name] = None if column is None else column[rows]
        return replace(self, **cut)  # type: ignore[arg-type]  # each name has its column


_COLUMNS: Final = (
    "arrived",
    "prompt",
    "output",
    "tenant",
    "model",
    "phase",
    "max_tokens",
    "priority",
    "cached",
    "shared",
    "session",
)


def from_trace(trace: Trace, *, model: str = "model", output: int | None = None) -> Workload:
    """Take a log's requests as they came, refused ones too: they will be asked anew.

    `model` names those that the log does not; `output` are the output tokens of rows that state
    none (they are left out without it). Raises InputError when nothing is left to simulate.
    """
    batch = trace.batch
    if batch.prompt_tokens is None:
        raise InputError(
            f"{trace.source.path or 'the log'}: no prompt tokens in it: a simulation needs arrival,"
            " prompt and output tokens of each request"
        )
    asked = np.full(len(batch), UNKNOWN, np.int64)
    outputs = asked if batch.output_tokens is None else batch.output_tokens
    if output is not None:
        outputs = np.where(outputs < 0, output, outputs)
    fit = (batch.prompt_tokens >= 1) & (outputs >= 0) & np.isfinite(batch.arrived)
    if not fit.any():
        what = "rows" if len(batch) == 0 else "output tokens"
        raise InputError(
            f"{trace.source.path or 'the log'}: no {what} in it to simulate; "
            "give what is expected of each request: --output 200"
        )
    kept = batch.take(fit)
    first = float(kept.arrived[0])
    origin = float(np.floor(first)) if first > _EPOCH else 0.0
    arrived = kept.arrived - origin if origin else kept.arrived
    tenant, tenants = _labels(kept.tenant, len(kept), "default")
    names, models = _labels(kept.model, len(kept), model)
    return Workload(
        arrived=np.ascontiguousarray(arrived),
        prompt=_counts(kept.prompt_tokens),
        output=np.maximum(1, outputs[fit]),
        tenant=tenant,
        tenants=tenants,
        model=names,
        models=models,
        phase=np.zeros(len(kept), np.int8),
        phases=(ALL,),
        span=float(arrived[-1] - arrived[0]) if len(kept) > 1 else 0.0,
        origin=origin,
        max_tokens=kept.max_tokens,
        priority=kept.priority,
        cached=kept.cached_tokens,
        session=None if kept.session is None else kept.session.codes,
        sessions=() if kept.session is None else kept.session.names,
        left_out=int(len(batch) - len(kept)),
    )


def of_batch(batch: Batch) -> Workload:
    """Take columns made in memory."""
    return from_trace(Trace.of([batch]))


def _counts(column: Counts | None) -> Counts:
    if column is None:
        raise ValueError("no column")
    return column


def _labels(labels: Labels | None, rows: int, missing: str) -> tuple[Codes, tuple[str, ...]]:
    """Codes without gaps: rows without a name get `missing`."""
    if labels is None:
        return np.zeros(rows, np.int32), (missing,)
    codes = labels.codes
    if (codes >= 0).all():
        return codes, labels.names
    names = labels.names if missing in labels.names else (*labels.names, missing)
    return np.where(codes < 0, names.index(missing), codes).astype(np.int32), names
