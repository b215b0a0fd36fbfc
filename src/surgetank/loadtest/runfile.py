"""The file of one run: what was due, what came of it, and what the target said meanwhile.

Rule: figures are computed anew from the samples by whoever reads the file; no prompt text, no key
and no secret of the target is in it. It is written whole, readable by its owner alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.loadtest.phases import ORDER, Phase, locate
from surgetank.loadtest.tokengaps import BINS, TokenGaps
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome

VERSION: Final = 1
KIND: Final = "surgetank.run"
UNKNOWN: Final = -1  # a count that nobody told

Seconds = NDArray[np.float64]
Counts = NDArray[np.int64]

OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)
_TIMES: Final = ("scheduled", "sent", "first_byte", "first_token", "ended")
_COUNTS: Final = ("prompt_tokens", "output_tokens")
_LONGEST: Final = 1e7  # seconds: four months
_DIGITS: Final = 6  # of a second: a microsecond


@dataclass(frozen=True, slots=True)
class Labels:
    """A column of few different texts: names[codes[i]]."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Labels:
        """Code texts in the order of their names."""
        names = tuple(sorted(set(texts)))
        code = {name: i for i, name in enumerate(names)}
        return cls(np.array([code[text] for text in texts], np.int32), names)

    def take(self, rows: NDArray[Any]) -> Labels:
        """Keep some rows, and every name."""
        return Labels(self.codes[rows], self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Requests in the order in which they were due, one row each whatever its attempts.

    Times are seconds from the run's start, NaN: it did not happen. `sent` is the first attempt's,
    `first_byte`, `first_token` and `ended` are the last one's. `outcome` holds codes into OUTCOMES.
    `prompt_tokens`: as asked, else as the engine told; UNKNOWN where neither is known.
    """

    scheduled: Seconds
    sent: Seconds
    first_byte: Seconds
    first_token: Seconds
    ended: Seconds
    status: NDArray[np.int32]
    outcome: NDArray[np.int16]
    tenant: Labels
    prompt_tokens: Counts
    output_tokens: Counts
    attempts: NDArray[np.int32]

    def __post_init__(self) -> None:
        columns = (*_TIMES, "status", "outcome", *_COUNTS, "attempts")
        for name in columns:
            if len(getattr(self, name)) != len(self.scheduled):
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} rows: must be {len(self.scheduled)}"
                )
        if len(self.tenant.codes) != len(self.scheduled):
            raise ValueError(
                f"tenant has {len(self.tenant.codes)} rows: must be {len(self.scheduled)}"
            )

    def __len__(self) -> int:
        return len(self.scheduled)

    @classmethod
    def of_records(cls, records: Iterable[RequestRecord], *, start: float) -> Samples:
        """Take one record for each request; `start`: Unix seconds of the run's start.

        Raises ValueError for a record without an outcome of the closed set.
        """
        rows = sorted(records, key=lambda r: r.arrived if r.scheduled is None else r.scheduled)
        code = {outcome: i for i, outcome in enumerate(OUTCOMES)}
        for row in rows:
            if row.outcome not in code:
                raise ValueError(f"record {row.id}: outcome = {row.outcome!r} is none")

        def times(values: Iterable[float | None]) -> Seconds:
            return np.array([np.nan if v is None else v - start for v in values], np.float64)

        def counts(values: Iterable[int | None]) -> Counts:
            return np.array([UNKNOWN if v is None else v for v in values], np.int64)

        return cls(
            scheduled=times(r.arrived if r.scheduled is None else r.scheduled for r in rows),
            sent=times(r.sent for r in rows),
            first_byte=times(r.first_byte for r in rows),
            first_token=times(r.first_token for r in rows),
            ended=times(r.ended for r in rows),
            status=np.array([r.status for r in rows], np.int32),
            outcome=np.array([code[r.outcome] for r in rows], np.int16),
            tenant=Labels.of([r.tenant for r in rows]),
            prompt_tokens=counts(r.prompt_tokens for r in rows),
            output_tokens=counts(r.output_tokens for r in rows),
            attempts=np.array([max(1, r.attempts) for r in rows], np.int32),
        )

    def take(self, rows: NDArray[Any]) -> Samples:
        """Keep some rows: a mask or their numbers."""
        kept: dict[str, Any] = {name: getattr(self, name)[rows] for name in _TIMES + _COUNTS}
        return Samples(
            **kept,
            status=self.status[rows],
            outcome=self.outcome[rows],
            tenant=self.tenant.take(rows),
            attempts=self.attempts[rows],
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """What was promised, in seconds: to the first token, and per token after it if it is given.

    `tenants`: a time to the first token of their own.
    """

    ttft: float = 2.0
    tpot: float | None = None
    tenants: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One rehearsal. `description`: the profile's parameters and seed, by name.

    `done`: seconds after which it was cut off, None when it ran to its end. `metrics`: samples of
    the target, each with "t" (seconds from the start) and any of queue, running, kv (0..1),
    preemptions (so far), replicas, gpu (0..1), gpu_memory (0..1). `gaps`: between tokens.
    """

    description: Mapping[str, Any]
    fingerprint: str
    duration: float
    phases: tuple[Phase, ...]
    samples: Samples
    objective: Objective = Objective()
    done: float | None = None
    target: Mapping[str, Any] = field(default_factory=dict)
    sender: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, float]] = ()
    gaps: TokenGaps = field(default_factory=TokenGaps.none)
    summary: Mapping[str, Any] = field(default_factory=dict)


def write_run(path: Path, run: Run) -> None:
    """Write it in one step, mode 0600; an older file is replaced. Raises InputError."""
    draft = path.with_name(f".{path.name[:60]}.{os.getpid()}")
    try:
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(encode(run))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_run(path: Path) -> Run:
    """Read one back. Raises InputError in one line that names the file and what is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return decode(data)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def encode(run: Run) -> bytes:
    """Make the JSON text."""
    samples = run.samples
    phase, cycle = locate(run.phases, samples.scheduled)
    columns: dict[str, Any] = {name: _seconds(getattr(samples, name)) for name in _TIMES}
    columns |= {name: _known(getattr(samples, name)) for name in _COUNTS}
    columns |= {
        "status": samples.status.tolist(),
        "outcome": {"names": OUTCOMES, "codes": samples.outcome.tolist()},
        "tenant": {"names": samples.tenant.names, "codes": samples.tenant.codes.tolist()},
        "attempts": samples.attempts.tolist(),
        "phase": {"names": ORDER, "codes": phase.tolist()},
        "cycle": cycle.tolist(),
    }
    return msgspec.json.encode(
        {
            "v": VERSION,
            "kind": KIND,
            "schedule": {
                "description": dict(run.description),
                "fingerprint": run.fingerprint,
                "duration_s": run.duration,
                "phases": [
                    {"name": p.name, "cycle": p.cycle, "start": float(p.start), "end": float(p.end)}
                    for p in run.phases
                ],
            },
            "done_s": run.done,
            "objective": {
                "ttft": run.objective.ttft,
                "tpot": run.objective.tpot,
                "tenants": dict(run.objective.tenants),
            },
            "target": dict(run.target),
            "sender": dict(run.sender),
            "summary": dict(run.summary),
            "samples": columns,
            "metrics": [dict(sample) for sample in run.metrics],
            "token_gaps": {name: getattr(run.gaps, name).tolist() for name in TokenGaps.__slots__},
        }
    )


def decode(data: bytes) -> Run:
    """Read the JSON text. Raises ValueError with what is wrong, and where."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a run file: {error}") from error
    if head.kind != KIND:
        raise ValueError(f'not a run file: kind = {head.kind!r}: must be "{KIND}"')
    if head.v != VERSION:
        raise ValueError(f"v = {head.v}: this version reads {VERSION}")
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError as error:
        raise ValueError(f"damaged run file: {error}") from error
    schedule = file.schedule
    if not 0 < schedule.duration_s <= _LONGEST:
        raise ValueError(
            f"schedule.duration_s = {schedule.duration_s:g}: must be > 0 and <= {_LONGEST:g}"
        )
    return Run(
        description=schedule.description,
        fingerprint=schedule.fingerprint,
        duration=schedule.duration_s,
        phases=_phases(schedule.phases, schedule.duration_s),
        samples=_samples(file.samples),
        objective=Objective(file.objective.ttft, file.objective.tpot, file.objective.tenants),
        done=file.done_s,
        target=file.target,
        sender=file.sender,
        metrics=[{k: v for k, v in row.items() if v is not None} for row in file.metrics],
        gaps=_gaps(file.token_gaps, len(file.samples.tenant.names)),
        summary=file.summary,
    )


class _Head(msgspec.Struct):
    v: int = 0
    kind: str = ""


class _Phase(msgspec.Struct):
    name: str
    cycle: int
    start: float
    end: float


class _Schedule(msgspec.Struct):
    fingerprint: str
    duration_s: float
    phases: list[_Phase]
    description: dict[str, Any] = {}


class _Labels(msgspec.Struct):
    names: list[str]
    codes: list[int]


class _Columns(msgspec.Struct):
    scheduled: list[float]
    sent: list[float | None]
    first_byte: list[float | None]
    first_token: list[float | None]
    ended: list[float | None]
    status: list[int]
    outcome: _Labels
    tenant: _Labels
    prompt_tokens: list[int | None]
    output_tokens: list[int | None]
    attempts: list[int]


class _Gaps(msgspec.Struct):
    tenant: list[int] = []
    phase: list[int] = []
    bin: list[int] = []
    count: list[int] = []


class _Objective(msgspec.Struct):
    ttft: float = Objective().ttft
    tpot: float | None = None
    tenants: dict[str, float] = {}


class _File(msgspec.Struct):
    schedule: _Schedule
    samples: _Columns
    objective: _Objective = msgspec.field(default_factory=_Objective)
    done_s: float | None = None
    target: dict[str, Any] = {}
    sender: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    metrics: list[dict[str, float | None]] = []
    token_gaps: _Gaps = msgspec.field(default_factory=_Gaps)


def _phases(rows: Sequence[_Phase], duration: float) -> tuple[Phase, ...]:
    at = 0.0
    for i, row in enumerate(rows):
        if row.name not in ORDER:
            raise ValueError(f"schedule.phases[{i}].name = {row.name!r}: one of {', '.join(ORDER)}")
        if not 0 <= row.cycle <= len(rows):
            raise ValueError(f"schedule.phases[{i}].cycle = {row.cycle}: from 0 to {len(rows)}")
        if not at - 1e-6 <= row.start < row.end <= duration + 1e-6:
            raise ValueError(
                f"schedule.phases[{i}] from {row.start:g} to {row.end:g} s:"
                f" must follow {at:g} s, within the run"
            )
        at = row.end
    return tuple(Phase(row.name, row.cycle, row.start, row.end) for row in rows)


def _samples(columns: _Columns) -> Samples:
    scheduled = np.array(columns.scheduled, np.float64)
    if (np.diff(scheduled) < 0).any():
        row = int(np.argmax(np.diff(scheduled) < 0)) + 1
        raise ValueError(f"samples.scheduled[{row}] = {scheduled[row]:g}: must be in order")
    known = {name: i for i, name in enumerate(OUTCOMES)}
    for name in columns.outcome.names:
        if name not in known:
            raise ValueError(f"samples.outcome: {name!r} is no outcome that this version knows")
    table = np.array([known[name] for name in columns.outcome.names], np.int16)
    try:
        return Samples(
            scheduled=scheduled,
            sent=_column(columns.sent),
            first_byte=_column(columns.first_byte),
            first_token=_column(columns.first_token),
            ended=_column(columns.ended),
            status=np.array(columns.status, np.int32),
            outcome=table[_codes("outcome", columns.outcome)],
            tenant=Labels(_codes("tenant", columns.tenant), tuple(columns.tenant.names)),
            prompt_tokens=_count_column(columns.prompt_tokens),
            output_tokens=_count_column(columns.output_tokens),
            attempts=np.array(columns.attempts, np.int32),
        )
    except OverflowError as error:
        raise ValueError(f"samples: a number is too large: {error}") from error
    except ValueError as error:
        raise ValueError(f"samples: {error}") from error


def _gaps(rows: _Gaps, tenants: int) -> TokenGaps:
    for name, values, low, high in (
        ("tenant", rows.tenant, 0, tenants),
        ("phase", rows.phase, -1, len(ORDER)),
        ("bin", rows.bin, 0, BINS),
    ):
        if values and not low <= min(values) <= max(values) < high:
            raise ValueError(f"token_gaps.{name}: must be from {low} to {high - 1}")
    try:
        return TokenGaps(
            np.array(rows.tenant, np.int32),
            np.array(rows.phase, np.int8),
            np.array(rows.bin, np.int16),
            np.array(rows.count, np.int64),
        )
    except OverflowError as error:
        raise ValueError(f"token_gaps: a number is too large: {error}") from error


def _codes(name: str, labels: _Labels) -> NDArray[np.int32]:
    codes = np.array(labels.codes, np.int32)
    if len(codes) and not (codes.min() >= 0 and codes.max() < len(labels.names)):
        raise ValueError(f"{name}.codes: must be from 0 to {len(labels.names) - 1}")
    return codes


def _column(values: Sequence[float | None]) -> Seconds:
    return np.array(values, np.float64)  # None becomes NaN


def _count_column(values: Sequence[int | None]) -> Counts:
    return np.array([UNKNOWN if v is None else v for v in values], np.int64)


def _seconds(column: Seconds) -> list[float | None]:
    rounded = np.round(column, _DIGITS)
    return [v if v == v else None for v in rounded.tolist()]  # noqa: PLR0124  (NaN is not itself)


def _known(column: Counts) -> list[int | None]:
    return [None if v < 0 else v for v in column.tolist()]
