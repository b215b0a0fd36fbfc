"""What admission would have done, from records that were written while it was in shadow.

Rule: what was measured and what is an estimate are told apart; a record whose fate was not decided
when it was written is counted as such, and as nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from surgetank.policy.record import RequestRecord

_ADMITTED: Final = "admitted"
_WAITING: Final = "waiting"


@dataclass(slots=True)
class ShadowReport:
    """Counts by tenant and reason; TTFT in seconds. None: no record tells it."""

    records: int = 0  # in all
    shadowed: int = 0  # of these, written while admission was in shadow
    refused: dict[str, dict[str, int]] = field(default_factory=dict)
    undecided: int = 0  # had ended in truth while they would still have waited
    admitted: int = 0
    within: int = 0  # of those with an estimate: within their objective
    within_now: int = 0  # of those with a first token: within it as they were served
    waits: array[float] = field(default_factory=lambda: array("d"))
    ttft: array[float] = field(default_factory=lambda: array("d"))
    ttft_now: array[float] = field(default_factory=lambda: array("d"))

    def to_json(self) -> dict[str, Any]:
        """The same figures, JSON-able."""
        return {
            "v": 1,
            "records": self.records,
            "shadowed": self.shadowed,
            "refused": self.refused,
            "refused_total": self.refused_total,
            "undecided": self.undecided,
            "admitted": self.admitted,
            "ttft_p95": quantile(self.ttft, 0.95),
            "ttft_p95_now": quantile(self.ttft_now, 0.95),
            "wait_p95": quantile(self.waits, 0.95),
            "attainment": self.within / len(self.ttft) if self.ttft else None,
            "attainment_now": self.within_now / len(self.ttft_now) if self.ttft_now else None,
        }

    @property
    def refused_total(self) -> int:
        return sum(n for reasons in self.refused.values() for n in reasons.values())

    def sentences(self) -> list[str]:
        """The same as text."""
        if not self.shadowed:
            return [f"None of {self.records:,} records was written with admission in shadow."]
        told = self.to_json()
        rest = f", {self.undecided:,} not decided when they had ended" if self.undecided else ""
        decided = f"{self.refused_total:,} refused, {self.admitted:,} admitted{rest}"
        said = [f"Had admission been on for these {self.shadowed:,} requests: {decided}."]
        for tenant in sorted(self.refused, key=lambda name: -sum(self.refused[name].values())):
            reasons = sorted(self.refused[tenant].items(), key=lambda row: -row[1])
            words = ", ".join(f"{count:,} {reason}" for reason, count in reasons)
            said.append(f"  {tenant or 'unknown'}: {words}")
        if told["ttft_p95"] is not None:
            now = "unknown" if told["ttft_p95_now"] is None else f"{told['ttft_p95_now']:.2f} s"
            said.append(
                f"TTFT P95 of those admitted would have been about {told['ttft_p95']:.2f} s"
                f" (an estimate); that of all, as they were served, was {now}."
            )
        if told["attainment"] is not None and told["attainment_now"] is not None:
            said.append(
                f"Within their TTFT objective: about {told['attainment']:.1%} of those admitted;"
                f" as served, {told['attainment_now']:.1%} of those that got a token."
            )
        return said


def summarise(records: Iterable[RequestRecord]) -> ShadowReport:
    """Add up the records of a time in shadow; others are counted and left out."""
    report = ShadowReport()
    for record in records:
        report.records += 1
        if record.shadow:
            report.shadowed += 1
            _add(report, record)
    return report


def _add(report: ShadowReport, record: RequestRecord) -> None:
    objective = record.ttft_objective
    if record.ttft is not None:
        report.ttft_now.append(record.ttft)
        report.within_now += objective is None or record.ttft <= objective
    if record.shadow == _WAITING:
        report.undecided += 1
    elif record.shadow != _ADMITTED:
        reasons = report.refused.setdefault(record.tenant, {})
        reasons[record.shadow] = reasons.get(record.shadow, 0) + 1
    else:
        report.admitted += 1
        if record.shadow_wait is not None:
            report.waits.append(record.shadow_wait)
        if record.shadow_ttft is not None:
            report.ttft.append(record.shadow_ttft)
            report.within += objective is None or record.shadow_ttft <= objective


def quantile(values: array[float], q: float) -> float | None:
    """The least value that at least a part `q` of them does not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * q) - 1)]
