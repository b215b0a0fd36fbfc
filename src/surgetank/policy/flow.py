"""FlowControl: which request runs now and where, which waits, and which is refused.

Rule: tell it what happened and what time it is; carry out the effects it returns, in order; call
`advance` no later than `next_deadline`. It never reads a clock and never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final, Literal

from surgetank.policy.admission import Admission
from surgetank.policy.effect import Cancel, Dispatch, Effect, Leg, Refuse
from surgetank.policy.fairness import Lane
from surgetank.policy.flowspec import Budget, Counts, FlowSpec, ReplicaView
from surgetank.policy.ingress import Ingress, measure
from surgetank.policy.job import Account, Job
from surgetank.policy.model import Model
from surgetank.policy.placement import Load, Placed
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.policy.request import ENDINGS, Kind, Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier

__all__ = ["ANY_MODEL", "Budget", "Counts", "FlowControl", "FlowSpec", "ReplicaView", "RetryCause"]

ANY_MODEL: Final = "*"
"""A replica of this model serves every name that no other replica has."""

_LEAST_RETRY_AFTER: Final = 0.1
_MOST_RETRY_AFTER: Final = 110.0  # openai-python does not retry at all above 120 s
_JITTER: Final = 0.1  # so that those refused together do not come back together
_NO_REPLICA_RETRY_AFTER: Final = 5.0  # a cold start takes longer, a reconnect less
_UNKNOWN_SERVICE: Final = 1.0  # seconds a request is taken to run before any has ended
_REMEMBERED_FAILURES: Final = 16  # replicas a request is kept away from
_GARBAGE: Final = 64  # void deadlines kept beyond as many as there are requests
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more
# A member looked up in its enum takes 0.15 us, a global nothing: those that every request asks for.
_COMPLETED: Final = Outcome.COMPLETED
_WELL: Final = Kind.COMPLETED
_NO_LIMIT: Final = (None, None, None)
_NO_QUOTA: Final = Budget(*_NO_LIMIT, *_NO_LIMIT)

RetryCause = Literal["failed", "busy", "unreached"]


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
    ) -> None:
        self._spec = spec
        self._draw = draw
        self._admission = Admission(spec, tenants, tiers, learned)
        self._accounts = self._admission.accounts
        self._models = {name: Model(name, self._admission.shares) for name in models}
        self._loads: dict[str, Load] = {}
        self._jobs: dict[str, Job] = {}
        self._queues: dict[str, Model] = {}  # models with something waiting
        self._queued = 0
        self._queued_bytes = 0
        self._running = 0
        self._deadlines: list[tuple[float, int, Job]] = []
        self._lingering: list[tuple[float, int, Placed]] = []  # room of cut requests
        self._order = count()
        self._now = -inf

    # What happened.

    def offer(self, request: Request, now: float) -> Sequence[Effect]:
        """A request arrived: it is dispatched, waits or is refused.

        Raises ValueError when a request of this id is still here.
        """
        if request.id in self._jobs:
            raise ValueError(f"request {request.id} was offered before and has not ended")
        out: list[Effect] = []
        now = self._enter(now, out)
        tenant = request.tenant
        account = self._accounts.get(tenant) or self._admission.account(tenant)
        account.offered += 1
        job = self._admit(request, account, now, out)
        if job is not None and not self._start_at_once(job, now, out):
            self._wait(job, now, out)
        if self._queues:
            self._dispatch(now, out)
        return out

    def first_token(self, request_id: str, now: float) -> Sequence[Effect]:
        """The first token of a running request came; later calls for it change nothing."""
        job = self._running_job(request_id)
        out: list[Effect] = []
        if not job.started:
            job.started = True
            job.model.prefilled(job.prompt, max(0.0, now - job.dispatched))
            job.model.first_tokens.append((now, now - job.arrived))
            first = job.legs[0]
            first.load.prefill_backlog -= job.prompt
            if len(job.legs) == 2:
                first.load.served()
                first.load.release(first.tokens)
        now = self._enter(now, out)
        if self._queues:
            self._dispatch(now, out)
        return out

    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]:
        """A request ended with `outcome` (one that waits too: SHUTDOWN, say).

        Without `usage` a completed request is charged its estimate, a failed one its estimate when
        its first token was seen, else no tokens, a refused one nothing at all.
        """
        job = self._jobs.get(request_id) or self._job(request_id)
        if now < self._now:
            now = self._now
        self._now = now
        completed = outcome is _COMPLETED
        if completed:
            for placed in job.legs[-1:] if job.started else job.legs:
                placed.load.served()
            if usage is not None:
                self._admission.learn(job, usage)
        kind = _WELL if completed else ENDINGS[outcome].kind
        self._end(job, kind, usage, now, cut=not completed and outcome is Outcome.REQUEST_TIMEOUT)
        out: list[Effect] = []
        if self._lingering or (self._deadlines and self._deadlines[0][0] <= now):
            self._enter(now, out)
        if self._queues:
            self._dispatch(now, out)
        return out

    def abandon(self, request_id: str, usage: Usage | None, now: float) -> Sequence[Effect]:
        """The client left. The shell aborts the upstream call, if there is one.

        Without `usage` what ran is charged its prompt, and its estimate once a first token was
        seen; what waited is charged nothing.
        """
        job = self._job(request_id)
        self._now = now = max(now, self._now)
        self._end(job, Kind.ABANDONED, usage, now, cut=True)
        return self.advance(now)

    def retry(
        self, request_id: str, cause: RetryCause, retry_after: float | None, now: float
    ) -> Sequence[Effect]:
        """A running request got nothing: its replica `failed`, was `busy` or `unreached`.

        It goes back to the front of its tenant's line, with its times as they were, to be
        dispatched again; or it is refused when its attempts are used up: one more after `busy`
        (ENGINE_BUSY), `spec.replays` more after `failed` (UPSTREAM_FAILED). What was never sent
        (`unreached`) is not counted: its own times bound it. `retry_after`: seconds the engine
        asked for.
        """
        job = self._running_job(request_id)
        out: list[Effect] = []
        self._now = now = max(now, self._now)
        legs = job.legs
        self._stop(job)
        job.model.queue.correct(job.lane, -job.cost)
        for load in (placed.load for placed in legs):
            alone = job.model.alone(load, now)
            if cause == "busy":
                load.shed(job.dispatched, retry_after, now, alone=alone)
            else:
                load.pause(None, now, alone=alone)
                job.failed_on = (*job.failed_on, load.id)[-_REMEMBERED_FAILURES:]
        if cause == "busy":
            job.busy += 1
        elif cause == "failed":
            job.failed += 1
        if job.busy > 1 or job.failed > self._spec.replays:
            self._give_up(job, cause, retry_after, now, out)
        else:
            job.started = False
            self._queue(job, now, front=True)
        now = self._enter(now, out)
        if self._queues:
            self._dispatch(now, out)
        if self._spec.when_full == "refuse" and job.waiting is not None:
            self._give_up(job, cause, retry_after, now, out)
        return out

    def join(self, replica: Replica, now: float) -> Sequence[Effect]:
        """A replica is ready, ready again, or described anew."""
        load = self._loads.get(replica.id)
        if load is None:
            load = self._loads[replica.id] = Load(replica, self._spec.max_in_flight)
        else:
            self._models[load.replica.model].leave(load)
            load.describe(replica, self._spec.max_in_flight)
            load.joined = True
        if replica.model not in self._models:
            self._models[replica.model] = Model(replica.model, self._admission.shares)
        self._models[replica.model].join(load)
        return self.advance(now)

    def leave(self, replica_id: str, now: float) -> Sequence[Effect]:
        """A replica takes no more; what runs on it is counted until it ends. Unknown: no matter."""
        load = self._loads.get(replica_id)
        if load is not None and load.joined:
            self._models[load.replica.model].leave(load)
            load.joined = False
            if not load.in_flight:
                del self._loads[replica_id]
        return self.advance(now)

    def observe(self, replica_id: str, signals: Signals, now: float) -> Sequence[Effect]:
        """An engine spoke of itself. Unknown replicas and older signals: no matter."""
        load = self._loads.get(replica_id)
        if load is not None:
            load.observe(signals, now)
        return self.advance(now)

    # What time it is.

    def advance(self, now: float) -> Sequence[Effect]:
        """Drop what expired, dispatch what fits."""
        out: list[Effect] = []
        now = self._enter(now, out)
        if self._queues:
            self._dispatch(now, out)
        return out

    def next_deadline(self) -> float | None:
        """When `advance` has to be called at the latest; None for never."""
        heap = self._deadlines
        while heap and heap[0][2].deadline != heap[0][0]:
            heappop(heap)
        deadline = heap[0][0] if heap else inf
        if self._lingering:
            deadline = min(deadline, self._lingering[0][0])
        for model in self._queues.values():
            deadline = min(deadline, model.wakes(self._now))
        return None if deadline == inf else deadline

    # What can be asked; changes nothing.

    def budget(self, tenant: str, now: float) -> Budget:
        """What is left of a tenant's quotas."""
        account = self._accounts.get(tenant)
        if account is None or account.quota is None:
            return _NO_QUOTA
        requests, tokens = account.quota.requests, account.quota.tokens
        limits = _NO_LIMIT if requests is None else requests.told(now)
        return _new(Budget, limits + (_NO_LIMIT if tokens is None else tokens.told(now)))

    def counts(self, tenant: str | None = None) -> Counts:
        """Of one tenant (zeros when it never sent anything), or of all."""
        if tenant is None:
            accounts = list(self._accounts.values())
        else:
            accounts = [self._accounts[tenant]] if tenant in self._accounts else []
        return Counts(
            offered=sum(a.offered for a in accounts),
            completed=sum(a.completed for a in accounts),
            refused=sum(a.refused for a in accounts),
            abandoned=sum(a.abandoned for a in accounts),
            failed=sum(a.failed for a in accounts),
            queued=sum(a.queued for a in accounts),
            running=sum(a.running for a in accounts),
        )

    def queued_by_tenant(self) -> dict[str, int]:
        """Requests waiting, of the tenants that have any."""
        return {name: a.queued for name, a in self._accounts.items() if a.queued}

    def queued_bytes(self) -> int:
        """Bodies waiting, in bytes."""
        return self._queued_bytes

    def tenants(self) -> list[str]:
        """Names of all tenants seen or configured."""
        return list(self._accounts)

    def tier(self, tenant: str) -> Tier:
        """The tier a tenant is served in."""
        account = self._accounts.get(tenant)
        return self._admission.tiers["standard"] if account is None else account.tier

    def ttft_objective(self, tenant: str) -> float:
        """The TTFT objective that counts for a tenant, seconds."""
        account = self._accounts.get(tenant)
        own = self._admission.tiers["standard"] if account is None else account.tier
        return self._spec.ttft_objective if own.ttft_objective is None else own.ttft_objective

    def replicas(self) -> list[ReplicaView]:
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
                paused=self._now < load.paused_until,
                joined=load.joined,
            )
            for load in self._loads.values()
        ]

    def ingress(self, name: str, role: Role, now: float, *, gateway: str = "") -> Ingress:
        """What came for a model and is here of it, for scaling. `gateway`: this process's name."""
        model = self._models.get(name)
        return measure(model, self._jobs.values(), role, now, gateway=gateway)

    def came_since(self, since: float) -> list[tuple[float, int]]:
        """Arrival and prompt tokens of the requests that came since then and are still here."""
        return [(j.arrived, j.prompt) for j in self._jobs.values() if j.arrived >= since]

    def learned(self) -> dict[str, Any]:
        """Estimates worth keeping over a restart, JSON-able."""
        return self._admission.learned()

    # Arrival.

    def _admit(
        self, request: Request, account: Account, now: float, out: list[Effect]
    ) -> Job | None:
        """Check what does not depend on load, and reserve the quota; None: it was refused."""
        model = self._models.get(request.model) or self._models.get(ANY_MODEL)
        if model is None and self._models:
            self._reject(request, account, Outcome.UNKNOWN_MODEL, "not served here", out)
            return None
        if model is None or not model.served:
            if model is not None:
                model.came(self._admission.demand(request, account, model))
            wait: float | None = _NO_REPLICA_RETRY_AFTER
            self._reject(request, account, Outcome.NO_REPLICA, "none is ready", out, wait)
            return None
        demand = self._admission.demand(request, account, model)
        if not model.holds(demand):
            reason = f"at least {demand.least} prompt tokens: more than any replica can hold"
            self._reject(request, account, Outcome.TOO_LARGE, reason, out)
            return None
        job = self._admission.job(request, account, model, demand, now)
        if account.quota is not None:
            outcome = account.quota.reserve(job.estimate, now)
            if outcome is not None:
                wait = account.quota.wait(job.estimate, now)
                reason = "the tenant's quota" if wait is not None else "more than the whole quota"
                self._reject(request, account, outcome, reason, out, wait)
                return None
        job.lane = account.lanes.get(model.name) or self._lane(account, model)
        self._jobs[request.id] = job
        model.came(demand)
        return job

    def _start_at_once(self, job: Job, now: float, out: list[Effect]) -> bool:
        """Nobody waits for this model and there is room: it never enters the queue."""
        most = self._spec.max_running
        account, model = job.account, job.model
        queue = model.queue
        if queue.size or account.running >= account.most:
            return False
        if most is not None and self._running >= most:
            return False
        legs = model.place(job, now)
        if not legs:
            return False
        job.predicted = 0.0
        queue.passed(job.lane, job.cost)
        self._start(job, legs, now, out)
        return True

    def _wait(self, job: Job, now: float, out: list[Effect]) -> None:
        """Queue it where it belongs; refuse it when it is not dispatched at once and may not wait.

        It is dispatched at once when its turn comes before those who wait (they do not fit, or are
        at their own cap); the bounds of the queue are for those who stay.
        """
        account, model, spec = job.account, job.model, self._spec
        if spec.when_full == "refuse":
            if account.full:
                self._refuse(job, Outcome.TENANT_BUSY, "at its concurrency cap", now, out)
            else:
                self._refuse(job, Outcome.NO_SLOT, "every replica is full", now, out)
            return
        job.position = model.queue.ahead(account.tier.priority)
        self._queue(job, now, front=False)
        self._dispatch(now, out)
        if job.waiting is None:
            return
        rate = model.rate.capacity()
        if rate is not None:
            job.predicted = model.queue.wait(job.lane, rate)
        overflow = self._overflow(job)
        if overflow is not None:
            self._refuse(job, *overflow, now, out)

    def _overflow(self, job: Job) -> tuple[Outcome, str] | None:
        """Which bound of the queue this waiting request breaks."""
        spec, account = self._spec, job.account
        tenant, tier = account.tenant, account.tier
        if tenant.max_queued is not None and account.queued > tenant.max_queued:
            return Outcome.TENANT_QUEUE_FULL, f"{tenant.max_queued} of this tenant wait"
        most = spec.max_queued_bytes_per_tenant
        if tenant.max_queued_bytes is not None:
            most = min(most, tenant.max_queued_bytes)
        if account.queued_bytes > most:
            return Outcome.TENANT_QUEUE_FULL, f"{most} bytes of this tenant wait"
        if self._queued > spec.max_queued:
            return Outcome.QUEUE_FULL, f"{spec.max_queued} requests wait"
        if self._queued_bytes > spec.max_queued_bytes:
            return Outcome.QUEUE_BYTES, f"{spec.max_queued_bytes} bytes wait"
        if tier.predicted_wait and job.predicted is not None:
            limit = min(job.patience, tier.theta * job.objective)
            if job.predicted > limit:
                return Outcome.PREDICTED_WAIT, f"would wait {job.predicted:.1f} s of {limit:.1f}"
        return None

    # The queue.

    def _queue(self, job: Job, now: float, *, front: bool) -> None:
        account, model, spec = job.account, job.model, self._spec
        slack = -inf
        if not front:
            prefill = model.prefill_time(job.demand.expected)
            slack = (job.arrived + job.objective - prefill) // spec.slack_bucket
        rank = job.arrived + job.cost / spec.ageing
        job.waiting = model.queue.push(job.lane, job, job.cost, slack, rank)
        job.queued_at = now
        self._queues[model.name] = model
        self._queued += 1
        self._queued_bytes += job.request.body_bytes
        account.queued += 1
        account.queued_bytes += job.request.body_bytes
        self._due(job, min(now + job.patience, job.ends_at))
        model.mark(now)

    def _unqueue(self, job: Job, now: float) -> None:
        """It is out of its model's queue: forget that it waits."""
        waited = now - job.queued_at
        job.waiting = None
        job.waited += waited
        job.patience -= waited
        self._queued -= 1
        self._queued_bytes -= job.request.body_bytes
        job.account.queued -= 1
        job.account.queued_bytes -= job.request.body_bytes
        if not len(job.model.queue):
            del self._queues[job.model.name]

    def _due(self, job: Job, at: float) -> None:
        job.deadline = at
        heap = self._deadlines
        heappush(heap, (at, next(self._order), job))
        if len(heap) > 2 * len(self._jobs) + _GARBAGE:
            self._deadlines = [entry for entry in heap if entry[2].deadline == entry[0]]
            heapify(self._deadlines)

    def _enter(self, now: float, out: list[Effect]) -> float:
        """Take the time, and drop what has expired by it."""
        if now < self._now:
            now = self._now
        self._now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            at, _, job = heappop(self._deadlines)
            if job.deadline == at:
                self._expire(job, now, out)
        while self._lingering and self._lingering[0][0] <= now:
            self._release(heappop(self._lingering)[2])
        return now

    def _expire(self, job: Job, now: float, out: list[Effect]) -> None:
        if job.waiting is None:
            job.deadline = inf
            out.append(Cancel(job.request, Outcome.REQUEST_TIMEOUT, "ran out of its total time"))
        elif job.ends_at <= now:
            self._refuse(job, Outcome.REQUEST_TIMEOUT, "ran out of its total time", now, out)
        elif not job.model.served:
            self._refuse(job, Outcome.NO_REPLICA, "none became ready in time", now, out)
        else:
            self._refuse(job, Outcome.QUEUE_TIMEOUT, "waited as long as it may", now, out)

    def _dispatch(self, now: float, out: list[Effect]) -> None:
        """Start heads of line until none fits.

        A model does not wait for another. Under a cap on all that runs, the head that arrived first
        goes first, whatever its model.
        """
        most = self._spec.max_running
        for model in list(self._queues.values()) if most is None else ():
            while self._start_head(model, now, out):
                pass
        if most is None:
            return
        models = list(self._queues.values())
        while models and self._running < most:
            heads = [(w.item.arrived, i) for i, m in enumerate(models) if (w := m.queue.peek())]
            if not heads:
                return
            _, first = min(heads)
            if not self._start_head(models[first], now, out):
                del models[first]

    def _start_head(self, model: Model, now: float, out: list[Effect]) -> bool:
        """Dispatch the head of one queue; False when it has to wait."""
        head = model.queue.peek()
        if head is None:
            return False
        job = head.item
        legs = model.place(job, now)
        if legs:
            model.queue.pop(head)
            self._unqueue(job, now)
            self._start(job, legs, now, out)
            return True
        if model.served and not model.holds(job.demand):
            self._refuse(job, Outcome.NO_REPLICA, "none left that could hold it", now, out)
            return True
        return False

    # Running.

    def _start(self, job: Job, legs: tuple[Placed, ...], now: float, out: list[Effect]) -> None:
        account, request, model = job.account, job.request, job.model
        job.legs = legs
        job.dispatched = now
        job.attempt += 1
        load, tokens = legs[0]
        load.take(tokens, job.prompt)
        sent_to: tuple[Leg, ...] = (load.leg,)
        if len(legs) == 2:
            load, tokens = legs[1]
            load.take(tokens, 0)
            sent_to = (*sent_to, load.leg)
        model.running += 1
        self._running += 1
        account.running += 1
        if account.running >= account.most:
            self._suspend(account)
        self._due(job, job.ends_at)
        model.mark(now)
        bound = job.demand.max_tokens(load)
        told = None if bound == request.max_tokens else bound
        effect = (request, sent_to, told, job.waited, job.attempt, job.predicted, job.position)
        out.append(_new(Dispatch, effect))

    def _stop(self, job: Job, *, cut: bool = False) -> None:
        """It no longer runs: give its room back.

        `cut`: its upstream call was closed, not ended. An engine that cannot preempt notices a
        little later (llama.cpp: 0.06 to 0.16 s), and filling its KV before that kills all streams:
        there the room is given back only after `spec.release_grace`.
        """
        legs = job.legs
        if not job.started:
            legs[0].load.prefill_backlog -= job.prompt
        elif len(legs) == 2:
            legs = legs[1:]  # a prefill leg gave its room back at the first token
        for placed in legs:
            if cut and not placed.load.preempts:
                until = self._now + self._spec.release_grace
                heappush(self._lingering, (until, next(self._order), placed))
            else:
                self._release(placed)
        job.legs = ()
        job.model.running -= 1
        self._running -= 1
        account = job.account
        account.running -= 1
        if account.running + 1 >= account.most > account.running:
            self._resume(account)

    def _release(self, placed: Placed) -> None:
        load, tokens = placed
        load.in_flight -= 1
        load.kv_reserved -= tokens
        if not load.in_flight and not load.joined and self._loads.get(load.id) is load:
            del self._loads[load.id]

    def _end(
        self, job: Job, kind: Kind, usage: Usage | None, now: float, *, cut: bool = False
    ) -> None:
        """The one way out: room, queue, quota, counter and count are settled here."""
        del self._jobs[job.request.id]
        job.deadline = inf
        ran = bool(job.legs)
        if job.waiting is not None:
            job.model.queue.remove(job.waiting)
            self._unqueue(job, now)
        elif ran:
            self._stop(job, cut=cut)
        account, model = job.account, job.model
        if kind is _WELL:
            account.completed += 1
        else:
            account.count(kind)
        quota = account.quota
        if not ran or (usage is None and kind is Kind.REFUSED):
            if quota is not None:
                quota.refund(job.estimate, now)
            if ran:
                model.queue.correct(job.lane, -job.cost)
        else:
            used, cost = self._admission.used(job, kind, usage)
            if quota is not None:
                quota.settle(job.estimate, used, now)
            model.queue.correct(job.lane, cost - job.cost)
            model.rate.settle(cost, now)
        model.mark(now)

    # Refusals.

    def _reject(
        self,
        request: Request,
        account: Account,
        outcome: Outcome,
        reason: str,
        out: list[Effect],
        wait: float | None = None,
    ) -> None:
        """Refuse what was never let in; no `wait`: a retry would be no better."""
        account.count(Kind.REFUSED)
        retry = wait is not None and wait <= _MOST_RETRY_AFTER
        out.append(Refuse(request, outcome, reason, self._jittered(wait), should_retry=retry))

    def _refuse(
        self,
        job: Job,
        outcome: Outcome,
        reason: str,
        now: float,
        out: list[Effect],
        wait: float | None = None,
    ) -> None:
        """Refuse what was let in; `wait`: seconds the engine asked for, at least."""
        retry_after: float | None = None
        kind = ENDINGS[outcome].kind
        if kind is Kind.REFUSED:
            retry_after = self._jittered(max(self._backlog_time(job), wait or 0.0))
        self._end(job, kind, None, now)
        out.append(
            Refuse(
                job.request,
                outcome,
                reason,
                retry_after,
                predicted_wait=job.predicted,
                position=job.position,
            )
        )

    def _give_up(
        self, job: Job, cause: RetryCause, wait: float | None, now: float, out: list[Effect]
    ) -> None:
        if cause == "busy":
            self._refuse(job, Outcome.ENGINE_BUSY, "the engines shed it", now, out, wait)
        elif cause == "unreached":
            self._refuse(job, Outcome.NO_REPLICA, "its replica cannot be reached", now, out, wait)
        else:
            self._refuse(job, Outcome.UPSTREAM_FAILED, "its replica failed", now, out)

    def _backlog_time(self, job: Job) -> float:
        """Seconds until what waits, and this request, would be served."""
        model = job.model
        rate = model.rate.at_least()
        if rate is None:
            rounds = 1 + len(model.queue) / max(1, model.running)
            return _UNKNOWN_SERVICE * rounds
        if job.waiting is not None and not job.lane.suspended:
            return model.queue.wait(job.lane, rate)
        return (model.queue.cost + job.cost) / rate

    def _jittered(self, wait: float | None) -> float | None:
        if wait is None:
            return None
        # Bounded before it is spread, too: those of a long backlog would come back together.
        wait = min(max(wait, _LEAST_RETRY_AFTER / (1 - _JITTER)), _MOST_RETRY_AFTER / (1 + _JITTER))
        spread = 1 + _JITTER * (2 * self._draw() - 1)
        return min(_MOST_RETRY_AFTER, max(_LEAST_RETRY_AFTER, wait * spread))

    # Tenants.

    def _lane(self, account: Account, model: Model) -> Lane[Job]:
        lane = model.queue.lane(account.tier.priority, account.tenant.weight)
        account.lanes[model.name] = lane
        if account.full:
            model.queue.suspend(lane)
        return lane

    def _suspend(self, account: Account) -> None:
        for name, lane in account.lanes.items():
            self._models[name].queue.suspend(lane)

    def _resume(self, account: Account) -> None:
        for name, lane in account.lanes.items():
            self._models[name].queue.resume(lane)

    # Requests by id.

    def _job(self, request_id: str) -> Job:
        job = self._jobs.get(request_id)
        if job is None:
            raise KeyError(f"no request {request_id} here: it has ended, or was never offered")
        return job

    def _running_job(self, request_id: str) -> Job:
        job = self._job(request_id)
        if not job.legs:
            raise KeyError(f"request {request_id} waits: it was not dispatched")
        return job
