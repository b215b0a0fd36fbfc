"""The queue of FlowControl: who has to wait, for how long, and who goes next.

Rule: a request that may not wait is refused at once; one that waits is started as soon as its turn
comes and it fits, and never after its patience has ended.
"""

from __future__ import annotations

from heapq import heappop
from math import inf
from typing import Final

from surgetank.policy.degrading import look_at_all, make_room
from surgetank.policy.effect import Cancel, Effect
from surgetank.policy.job import Job
from surgetank.policy.model import Model
from surgetank.policy.passthrough import place_anyway
from surgetank.policy.promise import Promises, key_of
from surgetank.policy.pushing import push_out
from surgetank.policy.refusing import FEW, place_time, refuse, waits_at_most
from surgetank.policy.request import Outcome
from surgetank.policy.state import FlowState
from surgetank.policy.tasks import make_way, turn_away

_FULL: Final = frozenset({Outcome.QUEUE_FULL, Outcome.QUEUE_BYTES})  # of all, not of a tenant
_SOON: Final = 2  # times the time between two ends
_BACK: Final = 2.0  # times the limit: who comes as told is not refused for an estimate's error
_MORE: Final = 0.25  # of it for each time a client says it was refused: SDKs give up after two
_MOST_MORE: Final = 2  # of which it can say as many as it likes


def start_at_once(state: FlowState, job: Job, now: float, out: list[Effect]) -> bool:
    """Start what finds nobody waiting for its model, and room: it never enters the queue."""
    most = state.spec.max_running
    account, model = job.account, job.model
    queue = model.queue
    if queue.size or account.running >= account.most:
        return False
    if most is not None and state.running >= most:
        return False
    if state.places.kept and state.spec.when_full == "refuse" and not _may_start(state, job, now):
        return False
    legs = model.place(job, now)
    if not legs:
        return False
    job.predicted = 0.0
    if job.lane.promises.kept:
        job.back = job.lane.promises.take(key_of(job.request), now)
        if job.back:
            job.lane.promises.came(0.0, now)
        elif _soon_taken(job, now):
            return False
    queue.passed(job.lane, job.cost)
    state.start(job, legs, now, out)
    return True


def _soon_taken(job: Job, now: float) -> bool:
    """Whether the last free slots are for those who come back any moment, of many that run.

    Within the time in which two end, so that no slot is left idle for longer.
    """
    model, account = job.model, job.account
    if model.queue.size or model.service is None or model.running <= FEW or account.open:
        return False
    if not account.tier.predicted_wait:
        return False
    until = now + _SOON * model.service / model.running
    return job.lane.promises.until(until) >= model.free()


def _may_start(state: FlowState, job: Job, now: float) -> bool:
    """Where nobody waits: whether slots promised to others are still there with this one taken."""
    if state.places.take(key_of(job.request), now):
        return True
    state.places.expire(now)
    rate = 1 / place_time(job, now)
    return state.places.leaves(job.model.free() - 1.0, rate, now)


def wait(state: FlowState, job: Job, now: float, out: list[Effect]) -> None:
    """Queue it where it belongs; refuse it when it is not dispatched at once and may not wait.

    It is dispatched at once when its turn comes before those who wait (they do not fit, or are at
    their own cap); the bounds of the queue are for those who stay.
    """
    account, model, spec = job.account, job.model, state.spec
    if account.open:
        _let_through(state, job, now, out)
        return
    job.back = _came_back(state, job, now)
    if spec.when_full == "refuse":
        if account.full:
            refuse(state, job, Outcome.TENANT_BUSY, "at its concurrency cap", now, out)
        else:
            refuse(state, job, Outcome.NO_SLOT, "every replica is full", now, out)
        return
    if job.lane.promises.kept and not job.back and _soon_taken(job, now):
        text = "others were told to come back now, to the last slots"
        refuse(state, job, Outcome.PREDICTED_WAIT, text, now, out)
        return
    job.position = model.queue.ahead(account.tier.priority)
    state.queue(job, now, front=False)
    dispatch(state, now, out)
    if job.waiting is None:
        return
    rate = model.rate.capacity()
    if rate is not None:
        job.predicted = model.soon(model.queue.wait(job.lane, rate), now)
    overflow = _overflow(state, job, now)
    if overflow is not None and make_way(state, job, overflow[0], now, out):
        overflow = _overflow(state, job, now)
    if overflow is not None and (
        (overflow[0] in _FULL and make_room(state, job, now, out))
        or (overflow[0] is Outcome.QUEUE_FULL and push_out(state, job, now, out))
    ):
        overflow = _within(state, job, now)
    if overflow is not None:
        refuse(state, job, *overflow, now, out)
        if job.session is not None:
            turn_away(state, job, now, out)


def _let_through(state: FlowState, job: Job, now: float, out: list[Effect]) -> None:
    """Start it wherever least runs; it waits for no more than the end of a pause."""
    legs = place_anyway(job.model, job, now)
    if legs:
        job.model.queue.passed(job.lane, job.cost)
        state.start(job, legs, now, out)
    else:
        state.queue(job, now, front=True)


def _came_back(state: FlowState, job: Job, now: float) -> bool:
    """It was refused before: take what it was promised, if that is due."""
    places = (job.lane.promises, job.account.places, state.places)
    if not any(map(len, places)):
        return False
    key = key_of(job.request)
    return any(promises.take(key, now) for promises in places)


def _overflow(state: FlowState, job: Job, now: float) -> tuple[Outcome, str] | None:
    """Which bound of the queue this waiting request breaks, or would make break a promise."""
    spec, account = state.spec, job.account
    tenant = account.tenant
    if tenant.max_queued is not None:
        free = tenant.max_queued - account.queued
        if free < 0 or not _leaves(account.places, job, free, now):
            return Outcome.TENANT_QUEUE_FULL, f"{tenant.max_queued} of this tenant wait"
    most = spec.max_queued_bytes_per_tenant
    if tenant.max_queued_bytes is not None:
        most = min(most, tenant.max_queued_bytes)
    if account.queued_bytes > most:
        return Outcome.TENANT_QUEUE_FULL, f"{most} bytes of this tenant wait"
    free = spec.max_queued - state.queued
    if free < 0 or not _leaves(state.places, job, free, now):
        return Outcome.QUEUE_FULL, f"{spec.max_queued} requests wait"
    return _within(state, job, now)


def _within(state: FlowState, job: Job, now: float) -> tuple[Outcome, str] | None:
    """Which other bound it breaks where it has a place in the queue."""
    spec, tier = state.spec, job.account.tier
    if state.queued_bytes > spec.max_queued_bytes:
        return Outcome.QUEUE_BYTES, f"{spec.max_queued_bytes} bytes wait"
    if tier.predicted_wait and job.predicted is not None:
        if job.session is not None and job.session.begun:
            return None  # a task that has begun is finished: it waits as long as it may
        return _too_long(job, now)
    return None


def _leaves(promises: Promises, job: Job, free: float, now: float) -> bool:
    """Whether the places promised to others are still there with this one in the queue."""
    if job.back or not len(promises):
        return True
    promises.expire(now)
    return not len(promises) or promises.leaves(free, 1 / place_time(job, now), now)


def _too_long(job: Job, now: float) -> tuple[Outcome, str] | None:
    """Whether it would wait too long, or make those wait too long who were told to come back."""
    limit, predicted, lane = waits_at_most(job), job.predicted or 0.0, job.lane
    again = 1.0
    if not lane.promises.of(key_of(job.request), now):  # or it comes before its time
        again += _MORE * min(job.request.client_retry, _MOST_MORE)
    if job.back:
        lane.promises.came(predicted / limit, now)
    if predicted > limit * max(again, _BACK if job.back else 1.0):
        return Outcome.PREDICTED_WAIT, f"would wait {predicted:.1f} s of {limit:.1f}"
    promises = lane.promises
    if job.back or job.session is not None or not len(promises):
        return None  # sessions go by their own order, and are told to come back as a whole
    promises.expire(now)
    # What the service gains on the promises is theirs, not whoever's comes at the right moment:
    # a newcomer waits only beside all of them. One that finds nobody waiting has started before.
    share = lane.cost / predicted if predicted else inf
    if share < inf and not promises.leaves(limit * share - lane.cost, 0.0, now):
        return (
            Outcome.PREDICTED_WAIT,
            f"others were told to come back before it, within {limit:.1f} s",
        )
    return None


def expire(state: FlowState, now: float, out: list[Effect]) -> None:
    """Drop what has expired by now: to be called when the alarm is due."""
    if now >= state.wake:
        look_at_all(state, now, out)
    while (job := state.expired(now)) is not None:
        _expire(state, job, now, out)
    while state.lingering and state.lingering[0][0] <= now:
        state.let_go(heappop(state.lingering)[2])
    state.set_alarm()


def _expire(state: FlowState, job: Job, now: float, out: list[Effect]) -> None:
    if job.waiting is None:
        job.deadline = inf
        out.append(Cancel(job.request, Outcome.REQUEST_TIMEOUT, "ran out of its total time"))
    elif job.ends_at <= now:
        refuse(state, job, Outcome.REQUEST_TIMEOUT, "ran out of its total time", now, out)
    elif not job.model.served:
        refuse(state, job, Outcome.NO_REPLICA, "none became ready in time", now, out)
    else:
        refuse(state, job, Outcome.QUEUE_TIMEOUT, "waited as long as it may", now, out)


def dispatch(state: FlowState, now: float, out: list[Effect]) -> None:
    """Start heads of line until none fits.

    A model does not wait for another. Under a cap on all that runs, the head that arrived first
    goes first, whatever its model.
    """
    most = state.spec.max_running
    if most is None:
        for model in list(state.queues.values()):
            while _start_head(state, model, now, out):
                pass
        return
    models = list(state.queues.values())
    while models and state.running < most:
        heads = [(w.item.arrived, i) for i, m in enumerate(models) if (w := m.queue.peek())]
        if not heads:
            return
        _, first = min(heads)
        if not _start_head(state, models[first], now, out):
            del models[first]


def _start_head(state: FlowState, model: Model, now: float, out: list[Effect]) -> bool:
    """Dispatch the head of one queue; False when it has to wait."""
    head = model.queue.peek()
    if head is None:
        return False
    job = head.item
    legs = model.place(job, now)
    if not legs and job.account.open:
        legs = place_anyway(model, job, now)
    if legs:
        model.queue.pop(head)
        state.unqueue(job, now)
        state.start(job, legs, now, out)
        return True
    if model.served and not model.holds(job):
        refuse(state, job, Outcome.NO_REPLICA, "none left that could hold it", now, out)
        return True
    return False
