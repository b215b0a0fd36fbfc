"""What FlowControl answers when asked how things stand.

Rule: looking changes nothing.
"""

from __future__ import annotations

from surgetank.policy.flowspec import Counts, ReplicaView, Standing
from surgetank.policy.job import Job
from surgetank.policy.state import FlowState


def counts(state: FlowState, tenant: str | None) -> Counts:
    """Of one tenant (zeros when it never sent anything), or of all."""
    known = state.accounts
    if tenant is not None:
        known = {tenant: known[tenant]} if tenant in known else {}
    offered = completed = refused = abandoned = failed = queued = running = 0
    for account in known.values():
        offered += account.offered
        completed += account.completed
        refused += account.refused
        abandoned += account.abandoned
        failed += account.failed
        queued += account.queued
        running += account.running
    return Counts(offered, completed, refused, abandoned, failed, queued, running)


def standings(state: FlowState, now: float) -> list[Standing]:
    """What each tenant seen or configured has waiting and running."""
    waiting: dict[str, list[Job]] = {name: [] for name in state.accounts}
    running = dict.fromkeys(waiting, 0)
    for job in state.jobs.values():
        if job.legs:
            running[job.account.name] += job.estimate
        else:
            waiting[job.account.name].append(job)
    return [
        Standing(
            tenant=account.tenant,
            tier=account.tier,
            waiting=account.queued,
            waiting_bytes=account.queued_bytes,
            waiting_tokens=sum(job.estimate for job in waiting[name]),
            oldest=max((now - job.arrived for job in waiting[name]), default=0.0),
            running=account.running,
            running_tokens=running[name],
        )
        for name, account in state.accounts.items()
    ]


def replica_views(state: FlowState) -> list[ReplicaView]:
    """All replicas, those that left and still run something included."""
    return [
        ReplicaView(
            id=load.id,
            model=load.replica.model,
            role=load.role,
            in_flight=load.in_flight,
            kv_reserved=load.kv_reserved,
            kv_tokens=load.replica.kv_tokens,
            prefill_backlog=load.prefill_backlog,
            limit=int(load.limit),
            paused=state.now < load.paused_until,
            joined=load.joined,
        )
        for load in state.loads.values()
    ]
