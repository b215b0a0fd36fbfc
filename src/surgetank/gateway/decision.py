"""What a client is told of the decision on its request: a header, and the same in an error's body.

`x-surgetank-decision` is a structured field (RFC 9651): a token, then parameters, such as
`refused; reason=predicted_wait; predicted_wait=12.300; position=41; retry_after=9.000`.
Rule: replicas are never named to clients. A request that ran at once has no such header: its answer
says so, and most requests are spared the bytes.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from surgetank.policy.effect import Dispatch
from surgetank.policy.request import Outcome

HEADER: Final = b"x-surgetank-decision"
MAX_RETRY_AFTER: Final = 110.0  # SDKs ignore more than 120 s

_TOKEN: Final = re.compile(r"[A-Za-z*][A-Za-z0-9_.:/*-]*|[0-9]+")
_LINE: Final = b"%b: %b\r\n"
_ADMITTED: Final = b"x-surgetank-decision: admitted; waited=%.3f; position=%d; attempt=%d\r\n"


def admitted(effect: Dispatch) -> bytes:
    """Return the header's line for a request that waited, or was sent again; else nothing."""
    if effect.queued_for <= 0 and effect.attempt == 1:
        return b""
    return _ADMITTED % (effect.queued_for, effect.position, effect.attempt)


def milliseconds(retry_after: float) -> int:
    """Seconds as clients are told them: whole milliseconds, never less, within what SDKs obey."""
    return math.ceil(min(max(retry_after, 0.001), MAX_RETRY_AFTER) * 1000)


def refused(
    outcome: Outcome,
    *,
    retry_after: float | None = None,
    predicted_wait: float | None = None,
    position: int = 0,
    level: str = "",
) -> dict[str, Any]:
    """Return what is told of a refusal; members that are not known are left out."""
    told: dict[str, Any] = {"reason": outcome.value}
    if level:
        told["level"] = level
    if predicted_wait is not None and math.isfinite(predicted_wait):
        told["predicted_wait"] = round(predicted_wait, 3)
    if position:
        told["position"] = position
    if retry_after is not None:
        told["retry_after"] = milliseconds(retry_after) / 1000
    return told


def header(told: dict[str, Any]) -> bytes:
    """Return the header's line for what `refused` gave."""
    words = (f"; {name}={_item(value)}" for name, value in told.items())
    return _LINE % (HEADER, b"refused" + "".join(words).encode("ascii", "replace"))


def _item(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    if _TOKEN.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'
