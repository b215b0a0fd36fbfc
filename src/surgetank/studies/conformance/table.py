"""The one table of all checks, by number.

1-36 come from what users reported of gateways; 37-60 and 81 are more of their kind on slots,
queues and the wire, 61-76 on cancellation, streaming and operation.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from surgetank.studies.conformance import (
    answering,
    cancellation,
    framing,
    operation,
    outages,
    queues,
    retries,
    routes,
    slots,
    streaming,
    survival,
    waiting,
)
from surgetank.studies.conformance.verdict import Check

_MODULES: Final[tuple[ModuleType, ...]] = (
    slots, queues, waiting, retries, cancellation, streaming, operation, outages, survival, framing,
    routes, answering,
)  # fmt: skip


def _all() -> tuple[Check, ...]:
    found = [c for module in _MODULES for c in vars(module).values() if isinstance(c, Check)]
    numbers = [check.number for check in found]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"two checks have one number: {sorted(numbers)}")
    return tuple(sorted(found, key=lambda check: check.number))


CHECKS: Final = _all()
