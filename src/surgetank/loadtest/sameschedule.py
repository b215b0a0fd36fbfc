"""Whether two runs were asked the same, and if not, what differs first.

Rule: runs of different schedules are not compared: what the arrivals did would be taken for what
the service did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from surgetank.loadtest.runfile import UNKNOWN, Run

_MILLISECOND: Final = 0.001
_MOST: Final = 3  # differences that are told


def difference(a: Run, b: Run) -> str | None:
    """Say in words how the schedules differ; None when they are the same."""
    told = list(_parameters(a.description, b.description))
    if told:
        more = len(told) - _MOST
        return "; ".join(told[:_MOST]) + (f"; and {more} more" if more > 0 else "")
    if a.duration != b.duration:
        return f"duration {a.duration:g} s and {b.duration:g} s"
    if a.phases != b.phases:
        return _phases(a, b)
    return _requests(a, b)


def _parameters(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            value = a.get(name, b.get(name))
            yield f"{name} = {value} only in {'A' if name in a else 'B'}"
        elif a[name] != b[name]:
            yield f"{name} = {a[name]} in A and {b[name]} in B"


def _phases(a: Run, b: Run) -> str:
    for one, other in zip(a.phases, b.phases, strict=False):
        if one != other:
            return (
                f"{one.name} {one.cycle} from {one.start:g} to {one.end:g} s in A,"
                f" {other.name} {other.cycle} from {other.start:g} to {other.end:g} s in B"
            )
    return f"{len(a.phases)} phases in A and {len(b.phases)} in B"


def _requests(a: Run, b: Run) -> str | None:
    """Compare row by row as far as both runs went, then what the schedules say of themselves."""
    one, other = a.samples, b.samples
    until = min(_reached(a), _reached(b))
    rows = [int(np.searchsorted(s.scheduled, until, side="right")) for s in (one, other)]
    both = min(rows)
    at = (one.scheduled[:both], other.scheduled[:both])
    tenants = [np.array(s.tenant.names, object)[s.tenant.codes[:both]] for s in (one, other)]
    sizes = (one.prompt_tokens[:both], other.prompt_tokens[:both])
    known = (sizes[0] != UNKNOWN) & (sizes[1] != UNKNOWN)
    late = np.abs(at[0] - at[1]) > _MILLISECOND + 1e-9
    named = tenants[0] != tenants[1]
    sized = known & (sizes[0] != sizes[1])
    differs = np.flatnonzero(late | named | sized)
    if len(differs):
        row = int(differs[0])
        told = [f"request {row + 1}"]
        if late[row]:
            told.append(f"due at {at[0][row]:.3f} s in A and {at[1][row]:.3f} s in B")
        if named[row]:
            told.append(f"of {tenants[0][row]!r} in A and {tenants[1][row]!r} in B")
        if sized[row]:
            told.append(f"with {sizes[0][row]} prompt tokens in A and {sizes[1][row]} in B")
        return told[0] + " is " + ", ".join(told[1:])
    if rows[0] != rows[1]:
        return f"{rows[0]:,} requests in A and {rows[1]:,} in B until {until:g} s"
    if a.fingerprint != b.fingerprint and a.done is None and b.done is None:
        return f"fingerprints {a.fingerprint[:16]} in A and {b.fingerprint[:16]} in B"
    return None


def _reached(run: Run) -> float:
    return run.duration if run.done is None else min(run.done, run.duration)
