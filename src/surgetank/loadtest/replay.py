"""A log sent again: its arrivals, tenants and sizes, faster or denser if need be.

Rule: every request that came is sent, also those that were refused or failed then: they will be
asked anew. Rows without a time are left out, and counted. What a log does not say of a request's
size is drawn, and said so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.loadtest.phases import Phase, phases_between
from surgetank.loadtest.schedule import MOST_REQUESTS, NO_ROOT, Schedule
from surgetank.traffic.analysis import Episode
from surgetank.traffic.arrivals import superposed
from surgetank.traffic.burstiness import analyse
from surgetank.traffic.tokencounts import TokenCounts
from surgetank.traffic.trace import UNKNOWN, Batch, Codes, Counts, Labels, Trace

UNNAMED: Final = "default"  # tenant of rows that name none
_AFTER: Final = 0.001  # seconds: the last request lies within the run, however stamps are rounded
_JITTER: Final = 0.5  # seconds (of the log) by which a scaled-up log's copies are moved


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """How a log is replayed.

    `speed`: log seconds per second; `scale`: requests sent for each one logged; `window`: seconds
    of the log, its busiest ones (None: all of it). `prompt` and `output` where the log has none.
    """

    prompt: TokenCounts
    output: TokenCounts
    speed: float = 1.0
    scale: float = 1.0
    window: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("speed", "scale", "window"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise InputError(f"--{name} {value:g}: must be above 0")


@dataclass(frozen=True, slots=True)
class Replay:
    """A schedule, and what a reader of its figures must know."""

    schedule: Schedule
    notes: tuple[str, ...] = ()


def replay(trace: Trace, spec: ReplaySpec, *, name: str, most: int = MOST_REQUESTS) -> Replay:
    """Make a schedule of a log. Raises InputError when nothing or too much is in it.

    Its phases are the episodes that `analyze` finds: each is a pulse.
    """
    rng = np.random.default_rng([spec.seed, 0x10C])
    timed = trace.batch.take(np.isfinite(trace.batch.arrived))
    if not len(timed):
        raise InputError(f"{name}: no request with a time in it")
    batch = timed if spec.window is None else busiest(timed, spec.window)
    expected = len(batch) * spec.scale
    if expected > most:
        raise InputError(
            f"{name}: {expected:,.0f} requests, more than {most:,}: take a --window of it, a lower"
            " --scale, or raise --max-requests"
        )
    origin = float(batch.arrived[0])
    span = float(batch.arrived[-1]) - origin
    jitter = _JITTER if spec.scale > 1 else 0.0
    at, rows = superposed(
        rng, batch.arrived - origin, spec.scale, jitter=min(jitter, span / 2), duration=span or None
    )
    if not len(rows):
        raise InputError(f"{name}: --scale {spec.scale:g} leaves no request of {len(batch):,}")
    phases = _phases(batch, origin, spec.speed, span)
    made, notes = _schedule(batch.take(rows), at / spec.speed, spec, rng, phases)
    described: dict[str, Any] = {"replay": name, "speed": spec.speed, "scale": spec.scale}
    if spec.window is not None:
        described |= {"window": spec.window, "from": origin}
    left_out = len(trace.batch) - len(timed)
    if left_out:
        notes.append(f"{left_out:,} rows without a time were left out")
    return Replay(replace(made, description=described | {"seed": spec.seed}), tuple(notes))


def busiest(batch: Batch, window: float) -> Batch:
    """Take the `window` seconds with the most requests; the first of equals."""
    at = batch.arrived
    ends = np.searchsorted(at, at + window, side="left")
    first = int(np.argmax(ends - np.arange(len(at))))
    return batch.take(slice(first, int(ends[first])))


def _schedule(
    batch: Batch,
    at: NDArray[np.float64],
    spec: ReplaySpec,
    rng: Generator,
    phases: tuple[Phase, ...],
) -> tuple[Schedule, list[str]]:
    notes: list[str] = []
    prompt = _sizes(batch.prompt_tokens, len(batch), spec.prompt, rng, "prompt tokens", notes)
    output = _sizes(batch.output_tokens, len(batch), spec.output, rng, "output tokens", notes)
    session = _codes(batch.session, len(batch))
    tenant = _named(batch.tenant, len(batch))
    root, shared = np.full(len(batch), NO_ROOT, np.int32), np.zeros(len(batch), np.int64)
    if batch.cached_tokens is not None:
        # What was in the cache then is a prefix that others had: of its session, else its tenant.
        whose = session if batch.session is not None else tenant.codes
        shared = np.clip(batch.cached_tokens, 0, prompt)
        root = np.where((shared > 0) & (whose >= 0), whose, NO_ROOT).astype(np.int32)
        shared = np.where(root >= 0, shared, 0)
    return Schedule(
        at=at,
        tenant=tenant,
        prompt_tokens=prompt,
        max_tokens=output,
        root=root,
        shared=shared,
        session=session,
        phases=phases,
        duration=phases[-1].end,
        description={},
    ), notes


def _sizes(  # noqa: PLR0917 - a column, how to fill its gaps, and where to say so
    column: Counts | None,
    rows: int,
    otherwise: TokenCounts,
    rng: Generator,
    name: str,
    notes: list[str],
) -> Counts:
    known = np.full(rows, UNKNOWN, np.int64) if column is None else column
    missing = known < 0
    if missing.any():
        known = np.where(missing, otherwise.draw(rows, rng), known)
        notes.append(f"{name}: {int(missing.sum()):,} of {rows:,} requests say none; drawn")
    return np.maximum(1, known)


def _codes(labels: Labels | None, rows: int) -> Codes:
    return np.full(rows, -1, np.int32) if labels is None else labels.codes


def _named(labels: Labels | None, rows: int) -> Labels:
    if labels is None:
        return Labels(np.zeros(rows, np.int32), (UNNAMED,))
    present = np.unique(labels.codes)
    names = [UNNAMED if code < 0 else labels.names[code] for code in present.tolist()]
    return Labels.of([names[i] for i in np.searchsorted(present, labels.codes).tolist()])


def _phases(batch: Batch, origin: float, speed: float, span: float) -> tuple[Phase, ...]:
    """Each episode of the log is a pulse; those that touch are one."""
    duration = max(span / speed + _AFTER, 1.0)
    pulses: list[tuple[float, float]] = []
    for start, end in sorted(_stretch(e, origin, speed, duration) for e in _episodes(batch)):
        if pulses and start <= pulses[-1][1]:
            pulses[-1] = (pulses[-1][0], max(pulses[-1][1], end))
        elif end > start:
            pulses.append((start, end))
    return phases_between(pulses, duration)


def _episodes(batch: Batch) -> tuple[Episode, ...]:
    return analyse(Trace(batch)).episodes if len(batch) > 1 else ()


def _stretch(episode: Episode, origin: float, speed: float, duration: float) -> tuple[float, float]:
    start = (episode.start - origin) / speed
    return max(0.0, start), min(duration, start + episode.duration / speed)
