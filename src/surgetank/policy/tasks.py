"""Sessions in the flow: a task that has begun is finished before another begins.

Within a tenant's share, whatever that is, requests of sessions that have begun go before all
others, and those of an older session before those of a younger. Where there is no room, the
youngest is refused, and as a whole: with all that waits of it, and all that comes of it before it
was told to return. So under overload some tasks are served whole and others not at all, instead of
all of them in part. What tenants get of the fleet is not touched by it.

Rule: requests that name no session take part in none of this, and pay for none of it.
"""

from __future__ import annotations

from typing import Final

from surgetank.policy.effect import Effect, Refuse
from surgetank.policy.job import Job
from surgetank.policy.promise import key_of
from surgetank.policy.refusing import refuse, reject
from surgetank.policy.request import Outcome
from surgetank.policy.session import Session, Sessions
from surgetank.policy.state import FlowState

_LOOKED_AT: Final = 64  # last in line, among whom the one to go is looked for
_TOLD: Final = "its session was told to come back later"
_REASON: Final = "a session that came earlier goes before it"
_WITHOUT: Final = frozenset({Outcome.TENANT_QUEUE_FULL, Outcome.QUEUE_FULL, Outcome.PREDICTED_WAIT})


def come(state: FlowState, job: Job, now: float, out: list[Effect]) -> bool:
    """Know the session of a request; False: it was refused, its tenant or it has had enough."""
    account, request, idle = job.account, job.request, state.spec.session_timeout
    sessions = account.sessions
    if sessions is None:
        sessions = account.sessions = Sessions()
    session = sessions.find(request.session, now, idle)
    tenant = account.tenant
    most, per_minute = tenant.max_sessions, tenant.session_tokens_per_minute
    if account.open:
        most = per_minute = None
    if session is None:
        told = sessions.told(request.session, now)
        if told is not None and job.model.queue.size:
            reject(state, request, account, told[1], _TOLD, out, told[0])
            return False
        key = key_of(request)
        if most is not None and not sessions.has_place(most, key, now):
            again = request.client_retry > 0
            wait = sessions.next_place(most, key, now, idle, again=again)
            reason = f"{most} of this tenant's sessions are under way"
            reject(state, request, account, Outcome.QUOTA_SESSIONS, reason, out, wait)
            return False
        session = Session(request.session, now)
    elif per_minute is not None and session.burn.at(now) >= per_minute / 60:
        wait = session.burn.wait(per_minute / 60, now)
        reason = f"its session burns more than {per_minute:g} tokens per minute"
        reject(state, request, account, Outcome.QUOTA_SESSION_TOKENS, reason, out, wait)
        return False
    job.session = session
    return True


def make_way(state: FlowState, job: Job, outcome: Outcome, now: float, out: list[Effect]) -> bool:
    """Where there is no room for a session, refuse one that came later; False: none waits.

    Whoever has begun goes before all that have not.
    """
    if job.session is None or outcome not in _WITHOUT:
        return False
    size = job.request.body_bytes if outcome is Outcome.TENANT_QUEUE_FULL else 0
    last, turn = job, _turn(job)
    for _, _, _, waiting in job.lane.heap[-_LOOKED_AT:]:
        other = waiting.item
        if waiting.alive and not other.attempt and other.request.body_bytes >= size:
            turns = _turn(other)
            if turns > turn:
                last, turn = other, turns
    if last is job or last.session is job.session:
        return False
    refuse(state, last, outcome, _REASON, now, out)
    turn_away(state, last, now, out)
    job.back = True  # the room is the other's own: nobody else was promised it
    rate = job.model.rate.capacity()
    if rate is not None:
        job.predicted = job.model.soon(job.model.queue.wait(job.lane, rate), now)
    return True


def turn_away(state: FlowState, job: Job, now: float, out: list[Effect]) -> None:
    """A request of a session was refused last: refuse the rest, when it has not begun."""
    refusal, session, sessions = out[-1], job.session, job.account.sessions
    if session is None or session.begun or sessions is None or not isinstance(refusal, Refuse):
        return
    if refusal.retry_after is not None:
        sessions.shed(session.name, now + refusal.retry_after, refusal.outcome)
    for other in list(session.waiting):
        refuse(state, other, refusal.outcome, _TOLD, now, out)


def _turn(job: Job) -> tuple[bool, float]:
    """When a request's session comes in turn: it has not begun, and when it came."""
    session = job.session
    return (True, job.arrived) if session is None else (not session.begun, session.came)
