"""Fit an engine profile to RequestRecords, and say how far off it is on requests it was not shown.

Rule: the error that is told is that of held-out requests: the last ones of the records, in a run of
the model over all of them. Each replica is modelled by itself; they share the coefficients.

A record's TTFT counts from when it went to the engine (`dispatched`, else `sent`, else `arrived`).
TPOT = (ended - first token) / (output tokens - 1), from 8 output tokens on: the end of a shorter
answer may come in one packet with its beginning. Requests that did not
complete are modelled with the output they had; only those that completed are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.bulk import run_trace
from surgetank.engine.fit import Error, Fit, Modelled, Observed, begin_from, fit
from surgetank.engine.profile import EngineProfile
from surgetank.errors import InputError
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome

HELD_OUT: Final = 0.3
"""The last part of the records that the fit is not shown."""

LEAST: Final = 24
"""Requests with all that is needed, below which there is no fit."""

_TOLD: Final = 8  # output tokens, at least, for a TPOT
_MOST: Final = 50_000  # requests; more do not better it, and cost minutes


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit, and what it was made from."""

    fit: Fit
    records: int
    used: int
    left_out: dict[str, int]  # by why
    replicas: int

    def as_json(self) -> dict[str, Any]:
        """Give the numbers stable names; errors are relative."""
        profile = self.fit.profile
        return {
            "name": profile.name,
            "records": self.records,
            "used": self.used,
            "left_out": self.left_out,
            "replicas": self.replicas,
            "step": {
                key: getattr(profile, key)
                for key in ("a_ms", "b_us", "c_ns", "d_us", "e_ns", "f_ms")
            },
            "kv_blocks": profile.kv_blocks,
            "block_size": profile.block_size,
            "max_num_seqs": profile.max_num_seqs,
            "max_num_batched_tokens": profile.max_num_batched_tokens,
            "fitted": asdict(self.fit.fitted),
            "held_out": asdict(self.fit.held_out),
        }


def calibrate(
    records: Iterable[RequestRecord],
    limits: EngineProfile,
    *,
    begin: EngineProfile | None = None,
    hold_out: Callable[[Sequence[RequestRecord]], NDArray[np.bool_]] | None = None,
) -> Calibration:
    """Fit the step time of `limits` (its scheduler limits and KV stay) to what `records` saw.

    `begin`: coefficients to begin with; without it they are guessed from the records. `hold_out`
    chooses what the fit is not shown, of the requests in order of arrival; the last 30 % without
    it. Raises InputError when too few records can be used.
    """
    left_out: Counter[str] = Counter()
    kept: list[RequestRecord] = []
    count = 0
    for record in records:
        count += 1
        why = _unusable(record, limits)
        if why:
            left_out[why] += 1
        else:
            kept.append(record)
    kept.sort(key=_given)
    if len(kept) > _MOST:
        left_out[f"beyond the last {_MOST:,}"] = len(kept) - _MOST
        kept = kept[-_MOST:]
    if len(kept) < LEAST:
        why = ", ".join(f"{n:,} {reason}" for reason, n in left_out.most_common(3))
        raise InputError(
            f"{len(kept)} of {count} records can be used: must be >= {LEAST}"
            f"{f' ({why})' if why else ''}"
        )
    fleet = [_Engine(kept, rows) for rows in _by_replica(kept)]
    seen = _observed(kept)
    held = (hold_out or _last)(kept)

    def run(profile: EngineProfile) -> Modelled:
        ttft, tpot = np.full(len(kept), np.nan), np.full(len(kept), np.nan)
        for engine in fleet:
            engine.run(profile, ttft, tpot)
        return Modelled(ttft, tpot)

    try:
        found = min(
            (fit(begin_with, run, seen, held) for begin_with in _beginnings(seen, limits, begin)),
            key=_misfit,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    return Calibration(found, count, len(kept), dict(left_out), len(fleet))


def _beginnings(
    seen: Observed, limits: EngineProfile, begin: EngineProfile | None
) -> Iterator[EngineProfile]:
    """Give what to begin the fit from: with the limits told, and with what ran at once at most.

    An engine seldom tells how many sequences it runs at once; when more were there, the most that
    were seen decoding side by side is that number.
    """
    start = begin or begin_from(seen, limits)
    yield start
    most = _side_by_side(seen)
    if 1 <= most < limits.max_num_seqs:
        yield replace(start, max_num_seqs=most)


def _side_by_side(seen: Observed) -> int:
    """Count the most requests of one engine that decoded at one time."""
    most = 0
    for engine in np.unique(seen.engine):
        mine = (seen.engine == engine) & np.isfinite(seen.ttft) & np.isfinite(seen.tpot)
        first = seen.arrived[mine] + seen.ttft[mine]
        ended = first + seen.tpot[mine] * (seen.output[mine] - 1)
        times = np.concatenate([first, ended])
        change = np.repeat([1, -1], len(first))
        order = np.lexsort((change, times))  # at one time, those that end go first
        most = max(most, int(np.cumsum(change[order]).max(initial=0)))
    return most


def _misfit(found: Fit) -> float:
    """Add up the errors, held-out requests included: they alone may have filled the engine."""
    errors = (found.fitted, found.held_out)
    return sum((error.ttft_mean or 0.0) + (error.tpot_mean or 0.0) for error in errors)


def described(calibration: Calibration, name: str, source: str) -> EngineProfile:
    """Name the fitted profile, and write its source and its error into it."""
    held = calibration.fit.held_out
    told = ", ".join(
        f"{what} {mean:.1%} (95th percentile {p95:.1%})"
        for what, mean, p95 in (
            ("TTFT", held.ttft_mean, held.ttft_p95),
            ("TPOT", held.tpot_mean, held.tpot_p95),
        )
        if mean is not None and p95 is not None
    )
    return replace(
        calibration.fit.profile,
        name=name,
        description=f"fitted to {calibration.used:,} requests",
        source=source,
        error=f"mean error on {held.requests:,} held-out requests: {told or 'unknown'}",
    )


def _unusable(record: RequestRecord, limits: EngineProfile) -> str:
    """Say why a record tells nothing of the engine; empty when it does."""
    if record.outcome and record.outcome not in _RAN:
        return "never ran"
    if not record.prompt_tokens:
        return "without prompt tokens"
    if not record.output_tokens or record.ended is None:
        return "without output"
    if record.prompt_tokens + record.output_tokens > limits.max_model_len:
        return f"longer than {limits.max_model_len:,} tokens"
    return ""


_RAN: Final = frozenset(
    {
        Outcome.COMPLETED.value,
        Outcome.ABANDONED.value,
        Outcome.REQUEST_TIMEOUT.value,
        Outcome.UPSTREAM_FAILED.value,
    }
)


def _given(record: RequestRecord) -> float:
    """Tell when the engine got it."""
    if record.dispatched is not None:
        return record.dispatched
    return record.sent if record.sent is not None else record.arrived


def _by_replica(kept: Sequence[RequestRecord]) -> list[NDArray[np.intp]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for i, record in enumerate(kept):
        rows[record.replica].append(i)
    return [np.array(indices, np.intp) for indices in rows.values()]


def chosen(kept: Sequence[RequestRecord], ids: Container[str]) -> NDArray[np.bool_]:
    """Hold out the requests of these ids."""
    return np.array([record.id in ids for record in kept])


def _last(kept: Sequence[RequestRecord]) -> NDArray[np.bool_]:
    return np.arange(len(kept)) >= round(len(kept) * (1 - HELD_OUT))


def _observed(kept: Sequence[RequestRecord]) -> Observed:
    given = np.array([_given(r) for r in kept])
    first = np.array([np.nan if r.first_token is None else r.first_token for r in kept])
    ended = np.array([np.nan if r.ended is None else r.ended for r in kept])
    output = np.array([r.output_tokens or 0 for r in kept])
    whole = np.array([not r.stream for r in kept])  # its first token is its end
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where((output >= _TOLD) & ~whole, (ended - first) / (output - 1), np.nan)
    ttft = np.where(whole, np.nan, first - given)
    cached = np.array([r.cached_tokens or 0 for r in kept])
    prompt = np.array([r.prompt_tokens or 0 for r in kept])
    names = {name: i for i, name in enumerate(dict.fromkeys(r.replica for r in kept))}
    return Observed(
        arrived=given - given[0],
        engine=np.array([names[r.replica] for r in kept]),
        computed=prompt - np.minimum(cached, prompt - 1),
        prompt=prompt,
        output=output,
        ttft=np.where(ttft > 0, ttft, np.nan),
        tpot=np.where(tpot > 0, tpot, np.nan),
        counts=np.array([r.outcome in {"", Outcome.COMPLETED.value} for r in kept]),
    )


class _Engine:
    """The requests of one replica, ready to be run again and again."""

    def __init__(self, kept: Sequence[RequestRecord], rows: NDArray[np.intp]) -> None:
        chosen = [kept[i] for i in rows]
        self._rows = rows
        self._arrived = np.array([_given(r) for r in chosen])
        self._arrived -= self._arrived[0]
        self._prompt = np.array([r.prompt_tokens or 1 for r in chosen])
        self._output = np.array([r.output_tokens or 1 for r in chosen])
        cached = np.array([r.cached_tokens or 0 for r in chosen])
        self._cached = np.minimum(cached, self._prompt - 1)

    def run(
        self, profile: EngineProfile, ttft: NDArray[np.float64], tpot: NDArray[np.float64]
    ) -> None:
        """Model these requests, and write their figures at their rows."""
        results = run_trace(profile, self._arrived, self._prompt, self._output, cached=self._cached)
        ttft[self._rows] = results.first_token_at - self._arrived
        with np.errstate(divide="ignore", invalid="ignore"):
            took = (results.finished_at - results.first_token_at) / (self._output - 1)
        tpot[self._rows] = np.where(self._output > 1, took, np.nan)


def explain(error: Error) -> str:
    """Put an error into words."""
    parts = []
    for name, mean, bias, p95 in (
        ("TTFT", error.ttft_mean, error.ttft_bias, error.ttft_p95),
        ("TPOT", error.tpot_mean, error.tpot_bias, error.tpot_p95),
    ):
        if mean is None or bias is None or p95 is None:
            parts.append(f"{name} unknown")
        else:
            parts.append(f"{name} {mean:.1%} (median {bias:+.1%}, 95th percentile {p95:.1%})")
    return "; ".join(parts)
