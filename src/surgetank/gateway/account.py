"""What is known of one request, stamped as it happens, and the record made of it at the end.

Rule: stamps are the loop's monotonic seconds; the record's are Unix seconds. What happens is only
put down here: all that the record needs beyond it is worked out when the record is made.
"""

from __future__ import annotations

from typing import Any, Final

from surgetank.policy.effect import Dispatch, Refuse
from surgetank.policy.request import Outcome, Request, Usage

_WAITED: Final = 0.001  # seconds: what is refused sooner has not waited


class Account:
    """Stamps of one request. `shown_id`: the request id its client knows, in ASCII."""

    __slots__ = (
        "_decided", "_dispatched", "_ended", "_outcome", "_queued", "_reason", "_sent", "_shown_id",
        "_status", "_usage", "arrived", "first_token", "max_tokens", "request",
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
        self._shown_id = shown_id
        self._queued: float | None = None
        self._dispatched: float | None = None
        self._sent: Dispatch | None = None
        self._decided: Dispatch | Refuse | None = None

    def dispatch(self, effect: Dispatch, now: float) -> None:
        self._sent = self._decided = effect
        self._dispatched = now
        self.first_token = None
        if effect.queued_for > 0:
            self._queued = self.arrived
        if effect.max_tokens is not None:
            self.max_tokens = effect.max_tokens

    def refuse(self, effect: Refuse, now: float) -> None:
        self._decided = effect
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

    def row(self, tier: str, ttft_objective: float, wall_offset: float) -> tuple[Any, ...]:
        """Give a closed request's values in the order of RequestRecord's fields, the first 25."""
        request, dispatched, first_token = self.request, self._dispatched, self.first_token
        sent, decided = self._sent, self._decided
        prompt_tokens, output_tokens, cached_tokens = self._usage or (None, None, None)
        return (
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
        )
