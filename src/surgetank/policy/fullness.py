"""Why a request found no room: the replicas that were looked at, and what stood in the way on each.

Rule: asked of refusals alone, and bounded; what it says is for operators, never for clients.
"""

from __future__ import annotations

from typing import Final

from surgetank.policy.job import Job
from surgetank.policy.placement import Load
from surgetank.policy.replica import Role

MOST_NAMED: Final = 4  # replicas; of the rest their number


def why_full(job: Job, now: float) -> tuple[str, ...]:
    """One text a replica, `ID REASON`, of at most `MOST_NAMED`; then `+N more`.

    Reasons: `limit 4/4` requests at once; `prompts 2100/2048` tokens that wait for a first token;
    `kv 900+120/1000` tokens held, wanted and allowed; `batch`, which is filled and not done;
    `paused` after it shed or failed; `small` for what it asks; `failed_it` before; `had_room` where
    something else kept it waiting, such as its tenant's cap or those ahead of it.
    """
    model = job.model
    loads = [load for role in Role for load in model.group(role).loads]
    named = tuple(f"{load.id} {_obstacle(load, job, now)}" for load in loads[:MOST_NAMED])
    return named if len(loads) <= MOST_NAMED else (*named, f"+{len(loads) - MOST_NAMED} more")


def _obstacle(load: Load, job: Job, now: float) -> str:
    if load.id in job.failed_on:
        return "failed_it"
    if load.most < min(job.needs, job.model.group(load.role).most):
        return "small"
    if now < load.paused_until:
        return "paused"
    if load.in_flight + 1 > load.limit:
        return f"limit {load.in_flight}/{load.limit:.0f}"
    if load.static and now != load.batch_at:
        return "batch"
    if load.in_flight and load.pending >= load.window and not load.static:
        return f"prompts {load.pending}/{load.window:.0f}"
    tokens = job.on(load)
    if load.in_flight and load.kv_reserved + tokens > job.fill * load.kv:
        return f"kv {load.kv_reserved}+{tokens}/{job.fill * load.kv:.0f}"
    if load.in_flight and load.pending >= load.window:
        return f"prompts {load.pending}/{load.window:.0f}"
    return "had_room" if load.admits(tokens, job.fill, now) else "busy_by_its_own_word"
