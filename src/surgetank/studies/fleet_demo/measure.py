"""What a run of the second act came to, from records, samples and decisions alone.

Rule: pure; nothing here asks a process. Times of lines are Unix seconds, and so are arguments.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from surgetank.loadtest.outcome import kind_of
from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.policy.request import Kind

_SAW_ITS_TOKEN: Final = frozenset({Kind.COMPLETED, Kind.ABANDONED})
_CLOCK_STEP: Final = 0.01  # seconds: an event loop tells the time of its last round


@dataclass(frozen=True, slots=True)
class Promotion:
    """A standby that was given requests: when it was decided, and its first token after that."""

    replica: str
    decided: float
    first_token: float | None


def occupied(sample: FleetSample) -> int:
    """Replicas that hold a machine: all but those that are gone."""
    return sample.starting + sample.refilling + sample.standby + sample.serving + sample.draining


def replica_seconds(samples: Sequence[FleetSample], begins: float, ends: float) -> float:
    """Integral of the replicas that hold a machine; each sample holds until the next."""
    total = 0.0
    moments = [*(sample.t for sample in samples[1:]), math.inf]
    for sample, until in zip(samples, moments, strict=False):  # no sample, no moment
        total += occupied(sample) * max(0.0, min(until, ends) - max(sample.t, begins))
    return total


def at_rest(sample: FleetSample, *, serving: int, standby: int) -> bool:
    """Nothing starts or drains, and as many serve and stand by as do when nothing happens."""
    moving = sample.starting + sample.refilling + sample.draining
    return not moving and (sample.serving, sample.standby) == (serving, standby)


def attainment(records: Iterable[RequestRecord], objective: float) -> float:
    """Part of all requests that saw their first token within `objective` seconds of being due.

    One that was refused or failed did not, whatever it saw; NaN without requests.
    """
    in_time = [
        kind_of(record.outcome) in _SAW_ITS_TOKEN
        and record.ttft is not None
        and record.ttft <= objective
        for record in records
    ]
    return sum(in_time) / len(in_time) if in_time else math.nan


def share(records: Sequence[RequestRecord], tenant: str) -> float:
    """Part of all output tokens of these requests that went to one tenant; NaN without any."""
    total = sum(record.output_tokens or 0 for record in records)
    own = sum(record.output_tokens or 0 for record in records if record.tenant == tenant)
    return own / total if total else math.nan


def promotions(
    decisions: Iterable[Mapping[str, Any]], records: Sequence[RequestRecord], after: float
) -> list[Promotion]:
    """List the standbys that a plan promoted at `after` or later, in order of decision.

    `records`: the gateway's own, which say who served. A replica that begins to serve because it
    has just started was no standby.
    """
    found = []
    for line in decisions:
        if "plan" not in line or line["t"] < after:
            continue
        for effect in line["effects"]:
            if effect["do"] == "attach":
                replica, decided = effect["replica"], line["t"]
                found.append(Promotion(replica, decided, _first_token(records, replica, decided)))
    return found


def _first_token(records: Iterable[RequestRecord], replica: str, decided: float) -> float | None:
    times = (
        record.first_token
        for record in records
        if record.replica == replica
        and record.first_token is not None
        and record.dispatched is not None
        and record.dispatched >= decided - _CLOCK_STEP
    )
    return min(times, default=None)


def cut_by_scale_down(
    decisions: Iterable[Mapping[str, Any]], records: Sequence[RequestRecord]
) -> list[RequestRecord]:
    """List the requests that failed on a replica after it had been told to go."""
    told: dict[str, float] = {}
    for line in decisions:
        for effect in line["effects"]:
            if effect["do"] in {"drain", "stop", "detach"}:
                told.setdefault(effect["replica"], line["t"])
            elif effect["do"] == "attach":
                told.pop(effect["replica"], None)
    return [
        record
        for record in records
        if kind_of(record.outcome) is Kind.FAILED
        and record.ended is not None
        and record.ended >= told.get(record.replica, math.inf)
    ]


def refilled(samples: Iterable[FleetSample], standbys: int, after: float) -> float | None:
    """When there were `standbys` again, once there were fewer after `after`; None for never."""
    missing = False
    for sample in samples:
        if sample.t < after:
            continue
        if sample.standby < standbys:
            missing = True
        elif missing:
            return sample.t
    return None


def read_decisions(text: str) -> list[dict[str, Any]]:
    """Read the decision log's lines; a torn last one is left out."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
