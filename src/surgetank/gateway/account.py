"""What is known of one request, stamped as it happens, and the record made of it at the end.

Rule: stamps are the loop's monotonic seconds; the record's are Unix seconds. What happens is only
put down here: all that the record needs beyond it is worked out when the record is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from surgetank.gateway.decision import admitted
from surgetank.policy.effect import Dispatch, Refuse
from surgetank.policy.request import Outcome, Request, Usage

_UNCHANGED: Final[Mapping[str, bytes]] = MappingProxyType({})
_WAITED: Final = 0.001  # seconds: what is refused sooner has not waited


class Account:
    """Stamps of one request. `shown_id`: the request id its client knows, in ASCII."""

    __slots__ = (
        "_decided", "_dispatched", "_ended", "_outcome", "_queued", "_reason", "_sent", "_shown_id",
        "_status", "_usage", "arrived", "degraded", "first_token", "max_tokens", "request", "told",
    )  # fmt: skip

    _ended: float
    _outcome: Outcome
    _reason: str
    _status: int
    _usage: Usage | None

    def __init__(self, request: Request, shown_id: bytes, arrived: float) -> None:
        self.request = request
        self.arrived = arrived
        self.max_tokens = request.max_tokens
        self.first_token: float | None = None
        self.degraded = ""  # what the degradation ladder took from it
        self.told = b""  # the header line that tells the client of the decision
        self._shown_id = shown_id
        self._queued: float | None = None
        self._dispatched: float | None = None
        self._sent: Dispatch | None = None
        self._decided: Dispatch | Refuse | None = None

    def dispatch(self, effect: Dispatch, now: float) -> None:
        self._sent = self._decided = effect
        self._dispatched = now
        self.degraded = effect.degraded
        self.first_token = None
        if effect.queued_for > 0:
            self._queued = self.arrived
        if effect.max_tokens is not None:
            self.max_tokens = effect.max_tokens
        if effect.queued_for > 0 or effect.attempt > 1:
            self.told = admitted(effect)

    def refuse(self, effect: Refuse, now: float) -> None:
        self._decided = effect
        self.degraded = effect.degraded
        if self._dispatched is None and now - self.arrived >= _WAITED:
            self._queued = self.arrived

    def close(
        self, outcome: Outcome, reason: str, status: int, usage: Usage | None, now: float
    ) -> None:
        """Put down how it ended; once."""
        self._outcome = outcome
        self._reason = reason
        self._status = status
        self._usage = usage
        self._ended = now

    def members(self) -> Mapping[str, bytes]:
        """Members of the body that are others than the client's: a fallback model's name."""
        sent = self._sent
        if sent is None or sent.model is None:
            return _UNCHANGED
        return {"model": json.dumps(sent.model).encode()}

    def row(self, tier: str, ttft_objective: float, wall_offset: float) -> tuple[Any, ...]:
        """Give a closed request's values in the order of RequestRecord's fields, the first 26.

        Of a refused one some more.
        """
        request, dispatched, first_token = self.request, self._dispatched, self.first_token
        sent, decided = self._sent, self._decided
        prompt_tokens, output_tokens, cached_tokens = self._usage or (None, None, None)
        values = (
            self._shown_id.decode("ascii"),
            request.tenant,
            tier,
            request.model,
            request.route,
            request.session,
            request.stream,
            self.arrived + wall_offset,
            None if self._queued is None else self._queued + wall_offset,
            None if dispatched is None else dispatched + wall_offset,
            None if first_token is None else first_token + wall_offset,
            self._ended + wall_offset,
            prompt_tokens,
            cached_tokens,
            output_tokens,
            self.max_tokens,
            ttft_objective,
            self._outcome.value,
            self._reason,
            self._status,
            "" if sent is None else sent.legs[-1].replica,
            0 if sent is None else sent.attempt,
            request.client_retry,
            None if decided is None else decided.predicted_wait,
            0 if decided is None else decided.position,
            self.degraded,
        )
        if type(decided) is not Refuse:
            return values
        return (*values, decided.retry_after, decided.level, decided.tokens, decided.full)
