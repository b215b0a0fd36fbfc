"""Latencies of a run's requests as columns, and whether each kept what was promised.

Rule: every request counts. One that was refused, timed out or failed has no first token and no end
that its client wanted: infinite, and a miss. `DEFINITIONS` stands in every report.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest.runfile import OUTCOMES, Objective, Samples
from surgetank.policy.request import ENDINGS, Kind, Outcome

Seconds = NDArray[np.float64]

DEFINITIONS: Final = MappingProxyType(
    {
        "TTFT": "first token's arrival - the moment the request was due; from the send: - its send",
        "TPOT": "(end - first token) / (output tokens - 1), of completed requests with two or more",
        "E2E": "last byte - the moment the request was due; from the send: - its send",
        "percentile": "by nearest rank over every request of the phase: one that was refused, timed"
        " out or failed counts as infinite, one that left before its first token as well",
        "attainment": "part of all requests that completed within the objectives; refusals,"
        " timeouts and failures are misses",
        "from the schedule": "from the moment the request was due, whoever made it late",
        "from the send": "from its first attempt's first byte on the wire",
        "amplification": "attempts / requests",
    }
)

KINDS: Final = tuple(Kind)
_KIND_OF: Final = np.array(
    [KINDS.index(ENDINGS[Outcome(outcome)].kind) for outcome in OUTCOMES], np.int8
)
_COMPLETED: Final = KINDS.index(Kind.COMPLETED)
_ABANDONED: Final = KINDS.index(Kind.ABANDONED)


@dataclass(frozen=True, slots=True)
class Seen:
    """Each request as its client saw it; columns of one length. Seconds; infinite: never.

    `tpot` is NaN where it is not defined; `waited`: until the first token, or until the client knew
    that there will be none; `kind` holds codes into KINDS.
    """

    due: Seconds
    ttft: Seconds
    ttft_sent: Seconds
    e2e: Seconds
    e2e_sent: Seconds
    tpot: Seconds
    waited: Seconds
    kind: NDArray[np.int8]
    attained: NDArray[np.bool_]
    attempts: NDArray[np.int32]
    tenant: NDArray[np.int32]
    phase: NDArray[np.int8]
    cycle: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.due)

    def take(self, rows: NDArray[Any]) -> Seen:
        """Keep some rows: a mask or their numbers."""
        return Seen(*(getattr(self, name)[rows] for name in self.__slots__))

    def of_kind(self, kind: Kind) -> NDArray[np.bool_]:
        """Tell which requests ended so."""
        found: NDArray[np.bool_] = self.kind == KINDS.index(kind)
        return found


def seen(
    samples: Samples,
    objective: Objective,
    phase: NDArray[np.int8],
    cycle: NDArray[np.int32],
) -> Seen:
    """Work them out; `phase` and `cycle` of each request as `phases.locate` gives them."""
    kind = _KIND_OF[samples.outcome]
    done = kind == _COMPLETED
    due, sent = samples.scheduled, samples.sent
    first = np.where(done | (kind == _ABANDONED), samples.first_token, np.nan)
    ended = np.where(done, samples.ended, np.nan)
    many = done & (samples.output_tokens >= 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(many, (ended - first) / (samples.output_tokens - 1), np.nan)
    ttft = _latency(first, due)
    return Seen(
        due=due,
        ttft=ttft,
        ttft_sent=_latency(first, sent),
        e2e=_latency(ended, due),
        e2e_sent=_latency(ended, sent),
        tpot=tpot,
        waited=_waited(samples, ttft),
        kind=kind,
        attained=_attained(samples, objective, done, ttft, tpot),
        attempts=samples.attempts,
        tenant=samples.tenant.codes,
        phase=phase,
        cycle=cycle,
    )


def _latency(moment: Seconds, since: Seconds) -> Seconds:
    return np.where(np.isnan(moment) | np.isnan(since), np.inf, moment - since)


def _waited(samples: Samples, ttft: Seconds) -> Seconds:
    """Time in the backlog: to the first token, else to the end, else 0 (it never got there)."""
    left = samples.ended - samples.scheduled
    waited = np.where(np.isfinite(ttft), ttft, left)
    return np.maximum(0.0, np.where(np.isnan(waited), 0.0, waited))


def _attained(
    samples: Samples,
    objective: Objective,
    done: NDArray[np.bool_],
    ttft: Seconds,
    tpot: Seconds,
) -> NDArray[np.bool_]:
    limits = np.array(
        [objective.tenants.get(name, objective.ttft) for name in samples.tenant.names] or [0.0]
    )
    kept: NDArray[np.bool_] = done & (ttft <= limits[samples.tenant.codes])
    if objective.tpot is not None:
        kept &= ~(tpot > objective.tpot)
    return kept


def rank(values: Seconds, quantile: float) -> float | None:
    """Give a percentile by nearest rank; None where it is infinite, or where there is no value."""
    if not len(values):
        return None
    # 1e-9: 0.95 * 20 is 19.000000000000004 in floating point, and must stay rank 19.
    place = max(0, int(np.ceil(quantile * len(values) - 1e-9)) - 1)
    found = float(np.partition(values, place)[place])
    return found if np.isfinite(found) else None
