"""What its tier and its levels' limits say of a request that arrives.

Rule: what asks for too much is refused before anything is taken; what is taken is taken whole.
"""

from __future__ import annotations

from surgetank.policy.effect import Effect
from surgetank.policy.job import Job
from surgetank.policy.promise import key_of
from surgetank.policy.quota import Cap
from surgetank.policy.refusing import LATE, MOST_RETRY_AFTER, UNKNOWN_SERVICE, reject
from surgetank.policy.request import Outcome
from surgetank.policy.state import FlowState


def take(state: FlowState, job: Job, now: float, out: list[Effect]) -> bool:
    """Take what a request needs of its levels; False: it was refused, and nothing is taken."""
    account, request = job.account, job.request
    if account.tier.when_above == "refuse" and (reason := _above(job)) is not None:
        reject(state, request, account, Outcome.OUTPUT_TOO_LONG, reason, out)
        return False
    if account.quota is None:
        return True
    chain = job.chain = account.quota.chain(request.key, request.model)
    amounts = job.taken = job.amounts
    service = job.model.service or UNKNOWN_SERVICE
    short = chain.reserve(amounts, request, service, now)
    if short is None:
        return True
    if isinstance(short, Cap):
        wait = _place(state, job, short, service, now)
        level = short.words
        reject(state, request, account, Outcome.TENANT_BUSY, level, out, wait, level=level)
        return False
    key, again = key_of(request), request.client_retry > 0
    told = chain.promise(amounts, now, MOST_RETRY_AFTER, key, again=again)
    reason = short.words
    never = chain.never(amounts) if told is None else None
    if never is not None:
        reason = f"{never.words}: {never.of(amounts):g} are more than its bucket ever holds"
    level, tokens = short.words, job.estimate
    reject(state, request, account, short.outcome, reason, out, told, level=level, tokens=tokens)
    return False


def _above(job: Job) -> str | None:
    """How far it asks for more output than its tier gives; None when it does not."""
    most, asked = job.account.most_tokens, job.request.max_tokens
    if most is None or asked is None or asked <= most or not job.outputs:
        return None
    tier = job.account.tier.name
    return f"{asked} output tokens are asked for: tier {tier} gives {most} at most"


def _place(state: FlowState, job: Job, cap: Cap, service: float, now: float) -> float:
    """Seconds until one of its places is free for it, which is promised."""
    key, places = key_of(job.request), cap.places
    if job.request.client_retry:
        left = places.of(key, now)
        if left:  # it came before its time
            return left
    places.expire(now)
    # Those who wait leave later than those who run: the first end is what all others follow.
    ends = [
        j.dispatched + service
        for j in state.jobs.values()
        if j.legs and j.account is job.account and cap in j.chain.caps
    ]
    first = max(0.0, min(ends, default=now + service) - now)
    wait = places.wait(cap.most - cap.used, cap.pace(service), 1.0, now)
    wait = max(wait, (first + len(places) // cap.most * service) * LATE) if wait else wait
    return places.keep(wait, 1.0, now, key) if wait <= MOST_RETRY_AFTER else wait
