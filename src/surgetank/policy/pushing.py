"""The queue of all is nobody's own: who has less of it than its share may push out who has more.

A tenant's share is max_queued x its weight / the weights of those that have something waiting. When
the queue is full, a newcomer whose tenant is below its share takes the place of the last in line of
a tenant above its own (longest-queue push-out, in shares): of the least urgent tier, but never of a
tier before the newcomer's, and there of whoever has most for its weight.

Rule: nobody below its share is pushed out; who came back for a place that was promised is the last
to go.
"""

from __future__ import annotations

from surgetank.policy.effect import Effect
from surgetank.policy.job import Account, Job
from surgetank.policy.refusing import refuse
from surgetank.policy.request import Outcome
from surgetank.policy.state import FlowState


def push_out(state: FlowState, job: Job, now: float, out: list[Effect]) -> bool:
    """Make room for a request that waits and is one too many; False: it has no right to any."""
    account, most = job.account, state.spec.max_queued
    if 2 * account.queued > most + 1 and account.queued == state.queued:
        return False  # it is alone, as whoever floods a queue mostly is
    waiting = [a for a in state.accounts.values() if a.queued]
    each = most / sum(a.tenant.weight for a in waiting)
    if account.queued > each * account.tenant.weight:
        return False
    above = [
        a
        for a in waiting
        if a.queued > each * a.tenant.weight and a.tier.priority >= account.tier.priority
    ]
    above.sort(key=lambda a: (a.tier.priority, a.queued / a.tenant.weight), reverse=True)
    for other in above:
        last = _last(other)
        if last is not None:
            text = f"{other.queued} of this tenant wait, more than its share of {most}"
            refuse(state, last, Outcome.QUEUE_FULL, text, now, out)
            return True
    return False


def _last(account: Account) -> Job | None:
    """Who of a tenant is served last, before any that came back when it was told to."""
    found = None
    for lane in account.lanes.values():
        for slack, rank, order, waiting in lane.heap:
            if waiting.alive:
                key = (not waiting.item.back, slack, rank, order)
                if found is None or key > found[0]:
                    found = key, waiting.item
    return None if found is None else found[1]
