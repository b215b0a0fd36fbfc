"""How FlowControl refuses: with an outcome, and the time after which a retry will be served.

Rule: those refused together are not told to come back together; what is told is a promise wherever
it can be one (see promise.py).
"""

from __future__ import annotations

from typing import Final, Literal

from surgetank.policy.effect import Effect, Refuse
from surgetank.policy.fullness import why_full
from surgetank.policy.job import Account, Job
from surgetank.policy.model import Model
from surgetank.policy.promise import key_of
from surgetank.policy.request import ENDINGS, Kind, Outcome, Request
from surgetank.policy.state import FlowState

_SHORTEST: Final = 1e-3  # seconds: an engine answers no sooner, whatever a clock that stood says
_LEAST_RETRY_AFTER: Final = 0.1
MOST_RETRY_AFTER: Final = 110.0  # openai-python does not retry at all above 120 s
_JITTER: Final = 0.1  # so that those refused together do not come back together
_SOON_AFTER: Final = 1.0  # seconds after a first replica comes, in which they come back
UNKNOWN_SERVICE: Final = 1.0  # seconds a request is taken to run before any has ended
FEW: Final = 8  # running requests
LATE: Final = 1.05
_PROMISED: Final = frozenset(
    {
        Outcome.QUOTA_REQUESTS,
        Outcome.QUOTA_TOKENS,
        Outcome.QUOTA_SESSIONS,
        Outcome.QUOTA_SESSION_TOKENS,
        Outcome.TENANT_BUSY,
    }
)
_FULL: Final = frozenset(
    {Outcome.TENANT_QUEUE_FULL, Outcome.QUEUE_FULL, Outcome.TENANT_BUSY, Outcome.NO_SLOT}
)
_NO_ROOM: Final = _FULL | {
    Outcome.QUEUE_BYTES,
    Outcome.PREDICTED_WAIT,
    Outcome.QUEUE_TIMEOUT,
    Outcome.ENGINE_BUSY,
    Outcome.REQUEST_TIMEOUT,
}

RetryCause = Literal["failed", "busy", "unreached"]


def reject(
    state: FlowState,
    request: Request,
    account: Account,
    outcome: Outcome,
    reason: str,
    out: list[Effect],
    wait: float | None = None,
    *,
    model: Model | None = None,
    level: str = "",
    tokens: int | None = None,
    degraded: str = "",
) -> None:
    """Refuse what was never let in; no `wait`: a retry would be no better."""
    account.count(Kind.REFUSED)
    soon = wait is not None and wait <= MOST_RETRY_AFTER
    exact = soon and outcome in _PROMISED and wait is not None
    told = _bounded(wait) if exact and wait is not None else _spread(state, model, wait)
    refusal = Refuse(
        request, outcome, reason, told, soon, level=level, tokens=tokens, degraded=degraded
    )
    out.append(refusal)


def refuse(
    state: FlowState,
    job: Job,
    outcome: Outcome,
    reason: str,
    now: float,
    out: list[Effect],
) -> None:
    """Refuse what was let in; not to come back before the longest wait an engine asked for."""
    retry_after: float | None = None
    soon = True
    kind = ENDINGS[outcome].kind
    if kind is Kind.REFUSED:
        told, promised = _again(state, job, outcome, now)
        asked = job.asked_wait
        if promised and told >= asked:
            retry_after = _bounded(told)
        else:
            told = max(told, asked)
            soon = told <= MOST_RETRY_AFTER
            retry_after = _spread(state, job.model, told)
            if retry_after is not None and retry_after < asked:
                retry_after = min(MOST_RETRY_AFTER, 2 * asked - retry_after)  # spread upwards
    full = why_full(job, now) if outcome in _NO_ROOM else ()
    state.end(job, kind, None, now)
    out.append(
        Refuse(
            job.request,
            outcome,
            reason,
            retry_after,
            should_retry=soon,
            predicted_wait=job.predicted,
            position=job.position,
            full=full,
            tokens=job.estimate,
            degraded=job.degraded,
        )
    )


def give_up(state: FlowState, job: Job, cause: RetryCause, now: float, out: list[Effect]) -> None:
    """Refuse what found no replica that would serve it."""
    if cause == "busy":
        refuse(state, job, Outcome.ENGINE_BUSY, "the engines shed it", now, out)
    elif cause == "unreached":
        refuse(state, job, Outcome.NO_REPLICA, "its replica cannot be reached", now, out)
    else:
        refuse(state, job, Outcome.UPSTREAM_FAILED, "its replica failed", now, out)


def _again(state: FlowState, job: Job, outcome: Outcome, now: float) -> tuple[float, bool]:
    """Seconds until a retry will be served, and whether its room was promised.

    By what it was refused for: a place in a queue is free when those promised before it and its own
    have been dispatched; a wait is short enough when the tenant's share has worked off the excess.
    """
    account, model, lane, spec = job.account, job.model, job.lane, state.spec
    tenant, key = account.tenant, key_of(job.request)
    rate = model.rate.at_least()
    if job.request.client_retry:
        for promises in (lane.promises, account.places, state.places):
            left = promises.of(key, now)
            if left:  # it came before its time
                return left, True
    if outcome in _FULL:
        each = place_time(job, now)
        if outcome is Outcome.NO_SLOT or outcome is Outcome.QUEUE_FULL:
            promises, free = state.places, float(spec.max_queued - state.queued + 1)
            if outcome is Outcome.NO_SLOT:
                free = model.free()
        else:
            most = account.most if outcome is Outcome.TENANT_BUSY else tenant.max_queued
            used = account.running if outcome is Outcome.TENANT_BUSY else account.queued - 1
            promises, free = account.places, (most or 0.0) - used
        promises.expire(now)
        wait = promises.wait(free, 1 / each, 1.0, now)
        if wait > 0:
            wait = max(wait, _in_step(state, job, len(promises), now))
        if wait > MOST_RETRY_AFTER:
            return wait, False
        return promises.keep(wait, 1.0, now, key), True
    waits = job.waiting is not None
    if outcome is Outcome.PREDICTED_WAIT and rate is not None and (job.predicted or not waits):
        share, before = rate, lane.cost  # of the service, in cost per second
        if job.predicted and waits:
            share, before = lane.cost / job.predicted, lane.cost - job.cost
        limit = waits_at_most(job)
        lane.promises.expire(now)
        level = limit * share - before
        wait = lane.promises.wait(level, share, job.cost, now)
        if wait > MOST_RETRY_AFTER:
            return wait, False
        return lane.promises.keep(wait, job.cost, now, key), True
    return _backlog_time(job, now), False


def waits_at_most(job: Job) -> float:
    """Seconds of predicted wait beyond which its tier does not let it in.

    What its prompt takes once it runs is taken off, but half is always left: a long prompt that
    could not keep the objective in any case is not refused at every queue.
    """
    whole = job.account.tier.theta * job.objective
    return min(job.patience, max(whole / 2, whole - job.model.prefill_time(job.prompt)))


def _in_step(state: FlowState, job: Job, before: int, now: float) -> float:
    """Seconds until there is room behind so many, where few run and may end together.

    Four places every half second are not one every eighth. Of many that is no matter.
    """
    model = job.model
    service, running = model.service, model.running
    if service is None or not 0 < running <= FEW:
        return 0.0
    ends = (j.dispatched + service for j in state.jobs.values() if j.legs and j.model is model)
    first = max(0.0, min(ends, default=now) - now)
    return (first + before // running * service) * LATE


def place_time(job: Job, now: float) -> float:
    """Seconds between two dispatches from where it waits, or would; more than 0."""
    return max(_SHORTEST, _place_time(job, now))


def _place_time(job: Job, now: float) -> float:
    model, lane, account = job.model, job.lane, job.account
    rate = model.rate.at_least()
    if rate is not None and job.waiting is not None and lane.size and not lane.suspended:
        if account.tenant.max_queued is not None and account.queued > account.tenant.max_queued:
            return model.soon(model.queue.wait(lane, rate), now) / lane.size
        return model.soon(model.queue.cost / rate, now) / max(1, model.queue.size)
    running = max(1, account.running if account.full else model.running)
    return (UNKNOWN_SERVICE if model.service is None else model.service) / running


def _backlog_time(job: Job, now: float) -> float:
    """Seconds until what waits, and this request, would be served."""
    model = job.model
    rate = model.rate.at_least()
    if not model.served and model.expected:
        return model.soon(UNKNOWN_SERVICE, now)
    if rate is None:
        rounds = 1 + len(model.queue) / max(1, model.running)
        return UNKNOWN_SERVICE * rounds
    if job.waiting is not None and not job.lane.suspended:
        return model.soon(model.queue.wait(job.lane, rate), now)
    return model.soon((model.queue.cost + job.cost) / rate, now)


def _bounded(told: float) -> float:
    """What was promised stands as it is: those times are spread already."""
    return min(MOST_RETRY_AFTER, max(_LEAST_RETRY_AFTER, told))


def _spread(state: FlowState, model: Model | None, wait: float | None) -> float | None:
    """Tell those refused together apart; none is served before a first replica is there."""
    if wait is None:
        return None
    if model is not None and model.expected and not model.served:
        return _bounded(wait + _SOON_AFTER * state.draw())
    # Bounded before it is spread, too: those of a long backlog would come back together.
    wait = min(max(wait, _LEAST_RETRY_AFTER / (1 - _JITTER)), MOST_RETRY_AFTER / (1 + _JITTER))
    spread = 1 + _JITTER * (2 * state.draw() - 1)
    return min(MOST_RETRY_AFTER, max(_LEAST_RETRY_AFTER, wait * spread))
