"""What is known of one request, stamped as it happens, and the record made of it at the end.

Rule: stamps are the loop's monotonic seconds; the record's are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from surgetank.policy.effect import Dispatch, Refuse
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome, Request, Usage

_WAITED: Final = 0.001  # seconds: what is refused sooner has not waited


@dataclass(slots=True)
class Account:
    """Stamps of one request. `shown_id`: the request id its client knows."""

    request: Request
    tier: str
    arrived: float
    max_tokens: int | None
    shown_id: str
    ttft_objective: float
    queued: float | None = None
    dispatched: float | None = None
    first_token: float | None = None
    replica: str = ""
    attempt: int = 0
    position: int = 0
    predicted_wait: float | None = None

    def dispatch(self, effect: Dispatch, now: float) -> None:
        self.attempt = effect.attempt
        self.position = effect.position
        self.predicted_wait = effect.predicted_wait
        self.replica = effect.legs[-1].replica
        self.dispatched = now
        if effect.queued_for > 0:
            self.queued = self.arrived
        self.first_token = None
        if effect.max_tokens is not None:
            self.max_tokens = effect.max_tokens

    def refuse(self, effect: Refuse, now: float) -> None:
        if self.dispatched is None and now - self.arrived >= _WAITED:
            self.queued = self.arrived
        self.position = effect.position
        self.predicted_wait = effect.predicted_wait

    def close(
        self,
        outcome: Outcome,
        reason: str,
        status: int,
        *,
        usage: Usage | None,
        now: float,
        wall_offset: float,
    ) -> RequestRecord:
        """Make the record of an ended request."""
        request, dispatched, first_token = self.request, self.dispatched, self.first_token
        prompt_tokens, output_tokens, cached_tokens = usage or (None, None, None)
        # By position, in the record's own order: a call of a class puts keywords in a dict first.
        return RequestRecord(
            self.shown_id,
            request.tenant,
            self.tier,
            request.model,
            request.route,
            request.session,
            request.stream,
            self.arrived + wall_offset,
            None if self.queued is None else self.queued + wall_offset,
            None if dispatched is None else dispatched + wall_offset,
            None if first_token is None else first_token + wall_offset,
            now + wall_offset,
            prompt_tokens,
            cached_tokens,
            output_tokens,
            self.max_tokens,
            self.ttft_objective,
            outcome.value,
            reason,
            status,
            self.replica,
            self.attempt,
            request.client_retry,
            self.predicted_wait,
            self.position,
        )
