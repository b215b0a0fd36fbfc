"""What the degradation ladder does to requests: shorter waits, caps, refusals, another model.

Rule: the core is never touched; what is taken from a request is told with its answer; what is
refused has a time to come back, no sooner than the ladder may be down.
"""

from __future__ import annotations

from math import inf
from typing import Final
from zlib import crc32

from surgetank.policy.effect import Effect
from surgetank.policy.job import Job
from surgetank.policy.ladder import (
    CAP,
    CAPPED,
    CORE_ONLY,
    FALLBACK,
    NO_BATCH,
    SESSIONS,
    DegradationLadder,
    LadderSpec,
    Rung,
)
from surgetank.policy.model import Model
from surgetank.policy.pressure import pressure
from surgetank.policy.promise import key_of
from surgetank.policy.refusing import refuse, reject
from surgetank.policy.request import Outcome, Request
from surgetank.policy.state import FlowState

_LEAST_WAIT: Final = 1.0  # seconds


def degrade(state: FlowState, job: Job, now: float, out: list[Effect]) -> Job | None:
    """Ask the ladder of a request's model about it, as it comes; None: it was refused.

    To be called when `now` is at the model's `look` or after it.
    """
    model, ladder = job.model, job.model.ladder
    if ladder is None:
        return job
    if now >= ladder.due:
        _look(state, model, ladder, now, out)
    level = ladder.level
    if not level:
        return job
    spec, rung = ladder.spec, state.ladders.rungs[job.account.tier.name]
    if not rung:
        ladder.offered.add(rung, job.cost, job.cost, now)
        return job
    told, asked = [str(level)], job.cost
    if job.patience > spec.queue_timeout:
        job.patience = spec.queue_timeout
        told.append(f"queue_timeout={spec.queue_timeout:g}")
    capped = state.admission.cap(job, spec.max_tokens) if level >= CAPPED else None
    if capped is not None:
        asked = capped
        told.append(f"{CAP}{spec.max_tokens}")
    ladder.offered.add(rung, asked, _capped(state, job, spec.max_tokens), now)
    job.degraded = "; ".join(told)
    if level < NO_BATCH:
        return job
    reason = _gives_way(ladder, job, rung)
    if not reason:
        return job
    other = _fallback(state, ladder, job)
    if other is not None:
        return _moved(state, job, other, now)
    model.came(job)
    wait = _wait(ladder, rung, job, now)
    reject(
        state, job.request, job.account, Outcome.DEGRADED, reason, out, wait, degraded=job.degraded
    )
    return None


def look_at_all(state: FlowState, now: float, out: list[Effect]) -> None:
    """Look at every ladder that is not at 0: to be called when `state.wake` is due."""
    for model in state.models.values():
        ladder = model.ladder
        if ladder is not None and ladder.level and now >= ladder.due:
            _look(state, model, ladder, now, out)
    _set_wake(state)


def make_room(state: FlowState, job: Job, now: float, out: list[Effect]) -> bool:
    """The queue is full for a request: if it is of the core, the newest of the lowest tier go.

    True when there is room then; nobody goes in vain.
    """
    model, ladder, rungs, spec = job.model, job.model.ladder, state.ladders.rungs, state.spec
    if ladder is None or rungs[job.account.tier.name]:
        return False
    ladder.overflowed = now
    if not ladder.level:
        _look(state, model, ladder, now, out)
    waiting = [j for j in reversed(state.jobs.values()) if j.waiting is not None]
    lower = [j for j in waiting if rungs[j.account.tier.name]]
    lower.sort(key=lambda j: -rungs[j.account.tier.name])  # stable: the newest first
    many, size = state.queued - spec.max_queued, state.queued_bytes - spec.max_queued_bytes
    going: list[Job] = []
    for other in lower:
        if many <= 0 and size <= 0:
            break
        going.append(other)
        many -= 1
        size -= other.request.body_bytes
    if not ladder.level or many > 0 or size > 0:
        return False
    for other in going:
        other.degraded = other.degraded or str(ladder.level)
        rung = rungs[other.account.tier.name]
        _send_back(state, ladder, other, rung, "gives way to a higher tier", now, out)
    return True


def reladder(state: FlowState, spec: LadderSpec) -> None:
    """Take other settings of the ladder: who is on a step stays on it."""
    state.ladders.configure(spec, state.admission.tiers.values())
    for name, model in state.models.items():
        model.ladder = ladder = state.ladders.of(name, model.ladder)
        model.look = inf if ladder is None else -inf
        model.level = 0 if ladder is None else ladder.level
        _share(state, model)
    _set_wake(state)


def _look(
    state: FlowState, model: Model, ladder: DegradationLadder, now: float, out: list[Effect]
) -> None:
    """Take the step that is due."""
    seen = pressure(state, model, ladder, state.ladders, now)
    part = seen.seconds / ladder.spec.ttft_objective
    waiting = model.queue.size > 0
    step = ladder.look(part, model.rate.capacity(), seen.reason, now, waiting=waiting)
    if step is not None:
        state.ladders.steps.append(step)
        model.level = step.level
        _share(state, model)
        if step.level > step.was:
            _stepped_up(state, model, ladder, now, out)
    model.look = -inf if ladder.level else ladder.due
    if step is not None or ladder.level:
        _set_wake(state)


def _share(state: FlowState, model: Model) -> None:
    """Lower tiers have no share of their own on a step: they get what the core leaves."""
    shares, core = state.admission.shares, state.ladders.core
    if model.level:
        shares = {priority: x for priority, x in shares.items() if priority in core}
    model.queue.reshare(shares)


def _set_wake(state: FlowState) -> None:
    ladders = (model.ladder for model in state.models.values())
    state.wake = min((x.due for x in ladders if x is not None and x.level), default=inf)
    state.alarm = min(state.alarm, state.wake)


def _stepped_up(
    state: FlowState, model: Model, ladder: DegradationLadder, now: float, out: list[Effect]
) -> None:
    """What waits is held to the new step as well, the newest first."""
    rungs, patience = state.ladders.rungs, ladder.spec.queue_timeout
    waiting = [j for j in state.jobs.values() if j.waiting is not None and j.model is model]
    for job in reversed(waiting):
        rung = rungs[job.account.tier.name]
        if not rung:
            continue
        told = f"{ladder.level}; queue_timeout={patience:g}"
        if ladder.level >= NO_BATCH:
            reason = _gives_way(ladder, job, rung)
            if reason:
                job.degraded = job.degraded or told
                _send_back(state, ladder, job, rung, reason, now, out)
                continue
        if job.patience > patience:
            job.patience = patience
            job.degraded = job.degraded or told
            state.due(job, min(job.queued_at + patience, job.ends_at))


def _send_back(
    state: FlowState,
    ladder: DegradationLadder,
    job: Job,
    rung: Rung,
    reason: str,
    now: float,
    out: list[Effect],
) -> None:
    job.asked_wait = max(job.asked_wait, _wait(ladder, rung, job, now))
    refuse(state, job, Outcome.DEGRADED, reason, now, out)


def _gives_way(ladder: DegradationLadder, job: Job, rung: Rung) -> str:
    """Why a request of a lower tier is not served on this step, from 3 on; "" when it is."""
    level, spec = ladder.level, ladder.spec
    if rung is Rung.BATCH:
        return f"step {level}: batch gives way to higher tiers"
    if level >= CORE_ONLY:
        return f"step {level}: only the core tier is served"
    if job.prompt > spec.long_prompt_tokens:
        return f"step {level}: prompts of more than {spec.long_prompt_tokens} tokens are to wait"
    if level >= SESSIONS and session_share(job.request) >= spec.kept_sessions:
        return f"step {level}: only a part of the sessions is served"
    return ""


def session_share(request: Request) -> float:
    """Where a session stands in [0, 1): always at the same place, in every process.

    What has no session is taken by what it looks like, so that a retry stands where it stood.
    """
    text = f"{request.tenant}\0{request.session}" if request.session else repr(key_of(request))
    return crc32(text.encode("utf-8", "surrogatepass")) / 2**32


def _wait(ladder: DegradationLadder, rung: Rung, job: Job, now: float) -> float:
    """Seconds until the ladder may be so far down that it is served."""
    served = NO_BATCH - 1
    long = job.prompt > ladder.spec.long_prompt_tokens
    if rung is Rung.STANDARD and not long:
        served = SESSIONS - 1
    return max(_LEAST_WAIT, ladder.returns(served, now))


def _fallback(state: FlowState, ladder: DegradationLadder, job: Job) -> Model | None:
    """Another model for a long prompt, if one is named, is served, and is not pressed itself."""
    if job.prompt <= ladder.spec.long_prompt_tokens:
        return None
    for fallback in ladder.spec.fallbacks:
        if fallback.model == job.request.model:
            other = state.models.get(fallback.to)
            if other is not None and other.served and not other.level and other.holds(job):
                return other
    return None


def _moved(state: FlowState, job: Job, other: Model, now: float) -> Job:
    """The same request, for another model."""
    moved = state.admission.job(job.request, job.account, other, now)
    moved.patience = job.patience
    if job.bound is not None:
        state.admission.cap(moved, job.bound)
    moved.degraded = f"{job.degraded}; {FALLBACK}{other.name}"
    return moved


def _capped(state: FlowState, job: Job, most: int) -> float:
    """What it costs with its answer capped."""
    spec = state.spec
    output = min(job.output, most) * job.choices
    return spec.prefill_weight * job.fresh + spec.decode_weight * output
