"""FlowControl: which request runs now and where, which waits, and which is refused.

Rule: tell it what happened and what time it is; carry out the effects it returns, in order; call
`advance` no later than `next_deadline`. It never reads a clock and never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

from surgetank.policy.degrading import degrade
from surgetank.policy.effect import Effect
from surgetank.policy.fairness import Lane
from surgetank.policy.flowspec import (
    Budget,
    Counts,
    FlowSettings,
    FlowSpec,
    LevelBudget,
    ReplicaView,
    Standing,
)
from surgetank.policy.ingress import Ingress, measure
from surgetank.policy.job import Account, Job
from surgetank.policy.ladder import LadderSpec
from surgetank.policy.lessons import Lesson, lessons
from surgetank.policy.levels import NO_BUDGET
from surgetank.policy.limiting import take
from surgetank.policy.model import Model
from surgetank.policy.placement import Load
from surgetank.policy.reconfiguring import reconfigure
from surgetank.policy.refusing import RetryCause, give_up, reject
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.policy.request import ENDINGS, Kind, Outcome, Request, Usage
from surgetank.policy.session import SessionView, views
from surgetank.policy.standing import counts, replica_views, standings
from surgetank.policy.state import FEW_REPLAYS, REMEMBERED, FlowState
from surgetank.policy.tasks import come
from surgetank.policy.tenant import Tenant, Tier
from surgetank.policy.waiting import dispatch, expire, start_at_once, wait

__all__ = [
    "ANY_MODEL",
    "NO_BUDGET",
    "Budget",
    "Counts",
    "FlowControl",
    "FlowSettings",
    "FlowSpec",
    "LevelBudget",
    "ReplicaView",
    "RetryCause",
    "Standing",
]

ANY_MODEL: Final = "*"
"""A replica of this model serves every name that no other replica has."""

_NO_REPLICA_RETRY_AFTER: Final = 5.0  # a cold start takes longer, a reconnect less
_REMEMBERED_FAILURES: Final = 16  # replicas a request is kept away from
# A member looked up in its enum takes 0.15 us, a global nothing: those that every request asks for.
_COMPLETED: Final = Outcome.COMPLETED
_WELL: Final = Kind.COMPLETED
_NOTHING: Final[Sequence[Effect]] = ()
_LADDER: Final = LadderSpec()


class FlowControl:
    """Admission, fair queues and placement for one fleet (all models, all tenants).

    Every request that is offered ends exactly once: by a Refuse from here, or by `finish` or
    `abandon` from the shell, which also finishes what it was told to Cancel: only the shell knows
    what that has used. After that its id is unknown, and naming it again raises KeyError. Its quota
    is settled at that end, with real usage; what was refused costs nothing.

    Each method first takes in what happened, then drops what has expired by `now`, then dispatches.
    A `now` before an earlier one counts as that earlier one.

    `models` declares names that are known before a replica joins; none: any name is, once a replica
    has joined with it. `draw` gives numbers in [0, 1) for jitter. `learned` is what an earlier
    `learned()` returned.
    """

    def __init__(
        self,
        spec: FlowSpec,
        *,
        tenants: Iterable[Tenant] = (),
        tiers: Iterable[Tier] = (),
        models: Iterable[str] = (),
        draw: Callable[[], float] = lambda: 0.5,
        learned: Mapping[str, Any] | None = None,
        ladder: LadderSpec = _LADDER,
    ) -> None:
        self._state = FlowState(spec, tenants, tiers, models, draw, learned, ladder)
        self.steps = self._state.ladders.steps  # of the degradation ladder; the shell clears them

    # What happened.

    def offer(self, request: Request, now: float) -> Sequence[Effect]:
        """A request arrived: it is dispatched, waits or is refused.

        Raises ValueError when a request of this id is still here.
        """
        state = self._state
        if request.id in state.jobs:
            raise ValueError(f"request {request.id} was offered before and has not ended")
        out: list[Effect] = []
        if now < state.now:
            now = state.now
        state.now = now
        if now >= state.alarm:
            expire(state, now, out)
        account = state.accounts.get(request.tenant) or state.admission.account(request.tenant)
        account.offered += 1
        state.offered += 1
        job = self._admit(request, account, now, out)
        if job is not None and not start_at_once(state, job, now, out):
            before = len(out)
            wait(state, job, now, out)
            if (
                job.waiting is not None
                and len(out) == before
                and len(state.queues) == 1
                and job.model.window is None
                and not account.open
            ):
                return out  # it was looked at whether anything fits, and nothing has changed since
        if state.queues:
            dispatch(state, now, out)
        return out

    def first_token(self, request_id: str, now: float) -> Sequence[Effect]:
        """The first token of a running request came; later calls for it change nothing."""
        state = self._state
        job = state.jobs.get(request_id)
        if job is None or not job.legs:
            job = self._running_job(request_id)
        if now < state.now:
            now = state.now
        state.now = now
        if not job.started:
            state.first_token(job, now)
        return self._proceed(now) if now >= state.alarm or state.queues else _NOTHING

    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]:
        """A request ended with `outcome` (one that waits too: SHUTDOWN, say).

        Without `usage` a completed request is charged its estimate, a failed one its estimate when
        its first token was seen, else no tokens, a refused one nothing at all.
        """
        state = self._state
        job = state.jobs.get(request_id) or self._job(request_id)
        if now < state.now:
            now = state.now
        state.now = now
        if outcome is _COMPLETED:
            if usage is None:
                state.end(job, _WELL, usage, now)
            else:
                state.admission.learn(job, usage)
                usual = job.started and len(job.legs) == 1 and job.session is None
                if usual and not job.hashed and job.account.quota is None:
                    state.served(job, usage, now)
                else:
                    state.end(job, _WELL, usage, now)
        else:
            cut = outcome is Outcome.REQUEST_TIMEOUT
            state.end(job, ENDINGS[outcome].kind, usage, now, cut=cut)
        return self._proceed(now) if now >= state.alarm or state.queues else _NOTHING

    def abandon(self, request_id: str, usage: Usage | None, now: float) -> Sequence[Effect]:
        """The client left. The shell aborts the upstream call, if there is one.

        Without `usage` what ran is charged its prompt, and its estimate once a first token was
        seen; what waited is charged nothing.
        """
        state = self._state
        job = self._job(request_id)
        state.now = now = max(now, state.now)
        state.end(job, Kind.ABANDONED, usage, now, cut=True)
        return self.advance(now)

    def retry(
        self, request_id: str, cause: RetryCause, retry_after: float | None, now: float
    ) -> Sequence[Effect]:
        """A running request got nothing: its replica `failed`, was `busy` or `unreached`.

        It goes back to the front of its tenant's line, with its times as they were, to be
        dispatched again; or it is refused when its attempts are used up: one more after `busy`
        (ENGINE_BUSY), `spec.replays` more after `failed` (UPSTREAM_FAILED), of which there are
        never more than `spec.retry_ratio` of the requests (ten are always allowed). What was never
        sent (`unreached`) is not counted: its own times bound it. `retry_after`: seconds the engine
        asked for.
        """
        state = self._state
        job = self._running_job(request_id)
        out: list[Effect] = []
        state.now = now = max(now, state.now)
        legs = job.legs
        state.stop(job)
        job.model.queue.settle(job.lane, job.cost, 0.0)
        for load, _ in legs:
            alone = job.model.alone(load, now)
            if cause == "busy":
                load.shed(job.dispatched, retry_after, now, alone=alone)
            else:
                load.pause(None, now, alone=alone)
                job.failed_on = (*job.failed_on, load.id)[-_REMEMBERED_FAILURES:]
        if cause == "busy":
            job.busy += 1
            if retry_after is not None and retry_after > job.asked_wait:
                job.asked_wait = retry_after
        elif cause == "failed":
            job.failed += 1
        spent = cause == "failed" and not self._may_replay()
        if job.busy > 1 or job.failed > state.spec.replays or spent:
            give_up(state, job, cause, now, out)
        else:
            state.replayed += cause == "failed"
            job.started = False
            state.queue(job, now, front=True)
        if now >= state.alarm:
            expire(state, now, out)
        if state.queues:
            dispatch(state, now, out)
        if state.spec.when_full == "refuse" and job.waiting is not None and not job.account.open:
            give_up(state, job, cause, now, out)
        return out

    def join(self, replica: Replica, now: float) -> Sequence[Effect]:
        """A replica is ready, ready again, or described anew."""
        state = self._state
        spec = state.spec
        load = state.loads.get(replica.id)
        if load is None:
            load = state.loads[replica.id] = Load(replica, spec.max_in_flight, spec.prefill_budget)
        else:
            state.models[load.replica.model].leave(load)
            load.describe(replica, spec.max_in_flight, spec.prefill_budget)
            load.joined = True
        if replica.model not in state.models:
            state.know(replica.model)
        state.models[replica.model].join(load)
        return self.advance(now)

    def leave(self, replica_id: str, now: float) -> Sequence[Effect]:
        """A replica takes no more; what runs on it is counted until it ends. Unknown: no matter."""
        state = self._state
        load = state.loads.get(replica_id)
        if load is not None and load.joined:
            state.models[load.replica.model].leave(load)
            load.joined = False
            if not load.in_flight:
                del state.loads[replica_id]
        return self.advance(now)

    def expect(self, model: str, etas: Iterable[float], now: float) -> Sequence[Effect]:
        """These replicas of a model are starting, and likely to serve at these times.

        It takes the place of what was expected before. Waits and Retry-After count on it; a time
        that passes without a `join` counts for nothing more.
        """
        known = self._state.models.get(model)
        if known is not None:
            known.expected = tuple(sorted(etas))
        return self.advance(now)

    def observe(self, replica_id: str, signals: Signals, now: float) -> Sequence[Effect]:
        """An engine spoke of itself. Unknown replicas and older signals: no matter."""
        load = self._state.loads.get(replica_id)
        if load is not None:
            load.observe(signals, now)
        return self.advance(now)

    def reconfigure(self, settings: FlowSettings, now: float) -> Sequence[Effect]:
        """The settings changed. Raises ValueError, with nothing changed, for wrong ones.

        What is here stays, with its times and its room; what waits goes with its tenant into its
        new tier and weight. Buckets keep the part of them that is filled. A model that is named no
        more, and has neither replicas nor requests, is unknown again.
        """
        state = self._state
        state.now = now = max(now, state.now)
        reconfigure(state, settings, now)
        return self.advance(now)

    # What time it is.

    def advance(self, now: float) -> Sequence[Effect]:
        """Drop what expired, dispatch what fits."""
        state = self._state
        if now < state.now:
            now = state.now
        state.now = now
        return self._proceed(now) if now >= state.alarm or state.queues else _NOTHING

    def _proceed(self, now: float) -> Sequence[Effect]:
        state = self._state
        out: list[Effect] = []
        if now >= state.alarm:
            expire(state, now, out)
        if state.queues:
            dispatch(state, now, out)
        return out

    def next_deadline(self) -> float | None:
        """When `advance` has to be called at the latest; None for never."""
        deadline = self._state.next_deadline()
        return None if deadline == inf else deadline

    def sleeps_until(self, moment: float) -> bool:
        """Whether nothing is due before then, at a glance; False: `next_deadline` knows."""
        state = self._state
        return moment <= state.alarm and moment <= state.wake and not state.queues

    # What can be asked; changes nothing.

    def budget(self, tenant: str, now: float, key: str = "", model: str = "") -> Budget:
        """What is left to a tenant's requests with this key for this model, on all their levels."""
        account = self._state.accounts.get(tenant)
        if account is None or account.quota is None:
            return NO_BUDGET
        return account.quota.chain(key, model).left(now)

    def levels(self, tenant: str, now: float) -> list[LevelBudget]:
        """What each of a tenant's levels with limits has left."""
        account = self._state.accounts.get(tenant)
        return [] if account is None or account.quota is None else account.quota.each(now)

    def counts(self, tenant: str | None = None) -> Counts:
        """Of one tenant (zeros when it never sent anything), or of all."""
        return counts(self._state, tenant)

    def standings(self, now: float) -> list[Standing]:
        """What each tenant seen or configured has waiting and running."""
        return standings(self._state, now)

    def sessions(self, now: float, most: int | None = None) -> list[SessionView]:
        """Sessions under way, those that burn most tokens first; `most` of them."""
        accounts = self._state.accounts
        found = [
            view
            for name, account in accounts.items()
            if account.sessions is not None
            for view in views(name, account.sessions, now)
        ]
        found.sort(key=lambda view: -view.tokens_per_second)
        return found[:most]

    def sessions_under_way(self) -> dict[str, int]:
        """Sessions known, of the tenants that name theirs; those that ended lately included."""
        accounts = self._state.accounts.items()
        return {name: len(a.sessions) for name, a in accounts if a.sessions is not None}

    def queued_by_tenant(self) -> dict[str, int]:
        """Requests waiting, of the tenants that have any."""
        return {name: a.queued for name, a in self._state.accounts.items() if a.queued}

    def queued_bytes(self) -> int:
        """Bodies waiting, in bytes."""
        return self._state.queued_bytes

    def tenants(self) -> list[str]:
        """Names of all tenants seen or configured."""
        return list(self._state.accounts)

    def tier(self, tenant: str) -> Tier:
        """The tier a tenant is served in."""
        account = self._state.accounts.get(tenant)
        return self._state.admission.tiers["standard"] if account is None else account.tier

    def ttft_objective(self, tenant: str) -> float:
        """The TTFT objective that counts for a tenant, seconds."""
        account = self._state.accounts.get(tenant)
        if account is not None:
            return account.objective
        own = self._state.admission.tiers["standard"].ttft_objective
        return self._state.spec.ttft_objective if own is None else own

    def replicas(self) -> list[ReplicaView]:
        """All replicas, those that left and still run something included."""
        return replica_views(self._state)

    def ingress(self, name: str, role: Role, now: float, *, gateway: str = "") -> Ingress:
        """What came for a model and is here of it, for scaling. `gateway`: this process's name."""
        state = self._state
        loads, jobs = state.loads.values(), state.jobs.values()
        return measure(state.models.get(name), loads, jobs, role, now, gateway=gateway)

    def came_since(self, since: float) -> list[tuple[float, int]]:
        """Arrival and prompt tokens of the requests that came since then and are still here."""
        return [(j.arrived, j.prompt) for j in self._state.jobs.values() if j.arrived >= since]

    def degradation(self) -> dict[str, int]:
        """The step of the degradation ladder each model is on."""
        return {name: model.level for name, model in self._state.models.items()}

    def shadows(self) -> bool:
        """Whether the admission of anybody is in shadow (see `policy.shadow`)."""
        state = self._state
        opened = any(account.open for account in state.accounts.values())
        return opened or state.spec.admission == "shadow"

    def settings(self) -> FlowSettings:
        """The settings in force; of tenants, those seen or configured."""
        state = self._state
        tenants = tuple(account.tenant for account in state.accounts.values())
        tiers = tuple(state.admission.tiers.values())
        ladder = state.ladders.spec
        return FlowSettings(state.spec, tenants, tiers, tuple(state.models), ladder)

    def described(self) -> list[Replica]:
        """The replicas that take requests, as they were described."""
        return [load.replica for load in self._state.loads.values() if load.joined]

    def estimate_as(self, other: FlowControl) -> None:
        """Estimate lengths by what `other` learns of the same requests."""
        self._state.admission.follow(other._state.admission)

    def learned(self) -> dict[str, Any]:
        """Estimates worth keeping over a restart, JSON-able."""
        state = self._state
        models = {**state.remembered, **{n: m.learned() for n, m in state.models.items()}}
        return state.admission.learned() | {"models": models}

    def lessons(self) -> list[Lesson]:
        """What was learnt of each model, and what that rests on."""
        return lessons(self._state)

    # Arrival.

    def _admit(
        self, request: Request, account: Account, now: float, out: list[Effect]
    ) -> Job | None:
        """Check what does not depend on load, and reserve the quota; None: it was refused."""
        state = self._state
        models = state.models
        model = models.get(request.model) or models.get(ANY_MODEL)
        if model is None and models:
            reject(state, request, account, Outcome.UNKNOWN_MODEL, "not served here", out)
            return None
        if model is None or not model.served:
            if model is not None:
                model.came(state.admission.job(request, account, model, now))
            pause = _NO_REPLICA_RETRY_AFTER
            if model is not None:
                pause = model.soon(pause, now)
            reject(
                state,
                request,
                account,
                Outcome.NO_REPLICA,
                "none is ready",
                out,
                pause,
                model=model,
            )
            return None
        job = state.admission.job(request, account, model, now)
        if not model.holds(job):
            reason = f"at least {job.least} prompt tokens: more than any replica can hold"
            reject(state, request, account, Outcome.TOO_LARGE, reason, out)
            return None
        if now >= model.look and not account.open:
            asked = degrade(state, job, now, out)
            if asked is None:
                return None
            job, model = asked, asked.model
        if request.session and not come(state, job, now, out):
            return None
        if account.limited and not take(state, job, now, out):
            return None
        job.lane = account.lanes.get(model.name) or self._lane(account, model)
        state.jobs[request.id] = job
        model.outstanding += job.to_come
        model.came(job)
        if job.session is not None:
            state.enter(job, job.session, now)
        return job

    def _may_replay(self) -> bool:
        """Whether one more replay is within their part of the requests, or of the few allowed."""
        state = self._state
        if state.offered > REMEMBERED:
            state.offered //= 2
            state.replayed //= 2
        return state.replayed < max(FEW_REPLAYS, int(state.spec.retry_ratio * state.offered))

    def _lane(self, account: Account, model: Model) -> Lane[Job]:
        lane = model.queue.lane(account.tier.priority, account.tenant.weight)
        account.lanes[model.name] = lane
        if account.full:
            model.queue.suspend(lane)
        return lane

    # Requests by id.

    def _job(self, request_id: str) -> Job:
        job = self._state.jobs.get(request_id)
        if job is None:
            raise KeyError(f"no request {request_id} here: it has ended, or was never offered")
        return job

    def _running_job(self, request_id: str) -> Job:
        job = self._job(request_id)
        if not job.legs:
            raise KeyError(f"request {request_id} waits: it was not dispatched")
        return job
