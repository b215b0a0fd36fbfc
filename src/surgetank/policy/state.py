"""What FlowControl knows: the requests that are here, in the queue or running, and their deadlines.

Rule: plain state and its transitions; none of them decides anything. Each keeps all counts right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final

from surgetank.policy.admission import Admission
from surgetank.policy.effect import Dispatch, Effect
from surgetank.policy.flowspec import FlowSpec
from surgetank.policy.job import Account, Job
from surgetank.policy.ladder import FALLBACK, Ladders, LadderSpec
from surgetank.policy.model import Model
from surgetank.policy.ordering import order, place
from surgetank.policy.placement import Load, Placed
from surgetank.policy.promise import Promises
from surgetank.policy.quota import Amounts
from surgetank.policy.request import Kind, Usage
from surgetank.policy.session import Session
from surgetank.policy.tenant import Tenant, Tier

_GARBAGE: Final = 64  # void deadlines kept beyond as many as there are requests; looked at so often
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more
# A member looked up in its enum takes 0.15 us, a global nothing: those that every request asks for.
_WELL: Final = Kind.COMPLETED
_REFUSED: Final = Kind.REFUSED


_Deadline = tuple[float, int, Job]
"""When, in which order it was set, and whose; void unless it is the request's `deadline`."""


FEW_REPLAYS: Final = 10  # that need no traffic: a replica's death costs some
REMEMBERED: Final = 4000  # requests of which replays are a part


class FlowState:
    """One fleet: all models, all tenants. `now`: the latest time there was.

    `alarm`: nothing expires before it. Deadlines that come in order, as those of one timeout do,
    stand in `line`, the others in `heap`.
    """

    __slots__ = (
        "accounts",
        "admission",
        "alarm",
        "draw",
        "heap",
        "jobs",
        "ladders",
        "line",
        "lingering",
        "loads",
        "models",
        "now",
        "offered",
        "order",
        "places",
        "queued",
        "queued_bytes",
        "queues",
        "remembered",
        "replayed",
        "running",
        "spec",
        "wake",
    )

    def __init__(
        self,
        spec: FlowSpec,
        tenants: Iterable[Tenant],
        tiers: Iterable[Tier],
        models: Iterable[str],
        draw: Callable[[], float],
        learned: Mapping[str, Any] | None,
        ladder: LadderSpec,
    ) -> None:
        self.spec = spec
        self.draw = draw
        self.admission = Admission(spec, tenants, tiers, learned)
        self.accounts = self.admission.accounts
        self.ladders = Ladders(ladder, self.admission.tiers.values())
        self.wake = inf  # when a ladder is to be looked at, though nothing may come
        self.remembered: Mapping[str, Any] = {} if learned is None else learned.get("models", {})
        for name in self.remembered:
            Model(name, {}, draw).remember(
                self.remembered[name]
            )  # what does not fit is told at once
        self.models: dict[str, Model] = {}
        for name in models:
            self.know(name)
        self.loads: dict[str, Load] = {}
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, Model] = {}  # models with something waiting
        self.queued = 0
        self.queued_bytes = 0
        self.running = 0
        self.line: deque[_Deadline] = deque()
        self.heap: list[_Deadline] = []
        self.alarm = inf
        self.lingering: list[tuple[float, int, Placed]] = []  # room of cut requests
        self.offered = self.replayed = 0  # lately: halved when there are many
        self.order = count()
        self.places = Promises()  # of the queue of all
        self.now = -inf

    def know(self, name: str) -> Model:
        """Serve a model of this name from now on, by what was learnt of it before."""
        model = self.models[name] = Model(name, self.admission.shares, self.draw)
        model.batching_window = self.spec.batching_window
        model.ladder = self.ladders.of(name)
        if model.ladder is not None:
            model.look = -inf
        if name in self.remembered:
            model.remember(self.remembered[name])
        return model

    # The queue.

    def queue(self, job: Job, now: float, *, front: bool) -> None:
        """It waits from now on."""
        account, model, spec = job.account, job.model, self.spec
        if job.session is not None:
            job.session.waiting[job] = None
        order(job, spec)
        slack, rank = place(job, spec, front=front)
        job.waiting = model.queue.push(job.lane, job, job.cost, slack, rank)
        job.queued_at = now
        self.queues[model.name] = model
        size = job.request.body_bytes
        self.queued += 1
        self.queued_bytes += size
        account.queued += 1
        account.queued_bytes += size
        self.due(job, min(now + job.patience, job.ends_at))
        model.mark(now)

    def unqueue(self, job: Job, now: float) -> None:
        """It is out of its model's queue: forget that it waits."""
        waited = now - job.queued_at
        account, size = job.account, job.request.body_bytes
        job.waiting = None
        if job.session is not None:
            job.session.waiting.pop(job, None)
        job.waited += waited
        job.patience -= waited
        self.queued -= 1
        self.queued_bytes -= size
        account.queued -= 1
        account.queued_bytes -= size
        if not job.model.queue.size:
            del self.queues[job.model.name]

    def due(self, job: Job, at: float) -> None:
        """Its one deadline is `at` now."""
        job.deadline = at
        number = next(self.order)
        entry = (at, number, job)
        line, heap = self.line, self.heap
        if not line or at >= line[-1][0]:
            line.append(entry)
        else:
            heappush(heap, entry)
        if at < self.alarm:
            self.alarm = at
        if not number % _GARBAGE and len(line) + len(heap) > 2 * len(self.jobs) + _GARBAGE:
            self.line = deque(entry for entry in line if entry[2].deadline == entry[0])
            self.heap = [entry for entry in heap if entry[2].deadline == entry[0]]
            heapify(self.heap)

    def _first(self) -> _Deadline | None:
        """The deadline that comes first, void or not."""
        line, heap = self.line, self.heap
        if not line:
            return heap[0] if heap else None
        return heap[0] if heap and heap[0] < line[0] else line[0]

    def _drop(self, entry: _Deadline) -> None:
        """Take out the first."""
        if self.line and self.line[0] is entry:
            self.line.popleft()
        else:
            heappop(self.heap)

    def expired(self, now: float) -> Job | None:
        """Take out the first request whose deadline has come."""
        while (entry := self._first()) is not None and entry[0] <= now:
            self._drop(entry)
            if entry[2].deadline == entry[0]:
                return entry[2]
        return None

    def set_alarm(self) -> float:
        """Drop void deadlines; return when the first thing expires, inf for never."""
        line = self.line
        if not self.heap:  # as most have but one timeout
            while line and line[0][2].deadline != line[0][0]:
                line.popleft()
        while (entry := self._first()) is not None and entry[2].deadline != entry[0]:
            self._drop(entry)
        alarm = inf if entry is None else entry[0]
        if self.lingering and self.lingering[0][0] < alarm:
            alarm = self.lingering[0][0]
        if self.wake < alarm:
            alarm = self.wake
        self.alarm = alarm
        return alarm

    def next_deadline(self) -> float:
        """When time alone may change something; inf for never."""
        deadline = self.set_alarm()
        for model in self.queues.values():
            deadline = min(deadline, model.wakes(self.now))
        return deadline

    # Running.

    def start(self, job: Job, legs: tuple[Placed, ...], now: float, out: list[Effect]) -> None:
        """It runs from now on, where it was placed."""
        account, request, model = job.account, job.request, job.model
        job.legs = legs
        job.dispatched = now
        job.attempt = attempt = job.attempt + 1
        load, tokens = legs[0]
        load.take(tokens, job.fresh, streams=job.streams)
        job.ahead = load.pending
        if job.hashed:
            prefixes, prefix = model.routing.prefixes, request.prefix
            there = prefixes.replicas.get(load)
            if there is None or prefix[-1] not in there.young:
                prefixes.hold(load, prefix, job.prompt / request.prompt_chars, now)
        if job.session is not None:
            self.begin(job.session, load, model)
        sent_to = load.legs
        if len(legs) == 2:
            load, tokens = legs[1]
            load.take(tokens, 0, streams=False)
            sent_to += load.legs
        model.running = running = model.running + 1
        self.running += 1
        account.running = own = account.running + 1
        if own >= account.most:
            self._suspend(account)
        self.due(job, job.ends_at)
        waiting = model.queue.size > 0
        if running == 1 or waiting is not model.rate.backlogged:
            model.rate.mark(now, waiting=waiting, running=True)
        bound = job.bound if load.preempts and job.outputs else job.max_tokens(load)
        if bound is not None and bound == request.max_tokens:
            bound = None
        degraded, name = job.degraded, None
        if degraded and model.name != request.model and FALLBACK in degraded:
            name = model.name
        effect = (
            request, sent_to, bound, job.waited, attempt, job.predicted, job.position, degraded,
            name,
        )  # fmt: skip
        out.append(_new(Dispatch, effect))

    def first_token(self, job: Job, now: float) -> None:
        """Its prompt is computed: a prefill leg gives its room back."""
        job.started = True
        job.answered = now
        legs, model, prompt = job.legs, job.model, job.prompt
        dispatched, fresh = job.dispatched, job.fresh
        model.prefilled(fresh, now - dispatched if now > dispatched else 0.0)
        model.first_tokens.append((now, now - job.arrived))
        load, tokens = legs[0]
        load.first_token(fresh, job.ahead, dispatched, now, streams=job.streams)
        if len(legs) == 2:
            load.release(tokens, served=True)
            load, tokens = legs[1]
        load.held += prompt if prompt < tokens else tokens

    def stop(self, job: Job, *, cut: bool = False, served: bool = False) -> None:
        """It no longer runs: give its room back.

        `cut`: its upstream call was closed, not ended. An engine that cannot preempt notices a
        little later (llama.cpp: 0.06 to 0.16 s), and filling its KV before that kills all streams:
        there the room is given back only after `spec.release_grace`.
        """
        legs, prompt, model, account = job.legs, job.prompt, job.model, job.account
        if not job.started:
            legs[0][0].unsent(job.fresh, streams=job.streams)
        else:
            if len(legs) == 2:
                legs = legs[1:]  # a prefill leg gave its room back at the first token
            load, tokens = legs[0]
            load.held -= prompt if prompt < tokens else tokens
        for load, tokens in legs:
            if cut and not load.preempts:
                load.lingering += tokens
                until = self.now + self.spec.release_grace
                heappush(self.lingering, (until, next(self.order), (load, tokens)))
                self.alarm = min(self.alarm, until)
            else:
                load.release(tokens, served=served)
                if not load.in_flight and not load.joined:
                    self._forget(load)
        job.legs = ()
        model.running -= 1
        self.running -= 1
        account.running = own = account.running - 1
        if own + 1 >= account.most > own:
            self._resume(account)

    def let_go(self, placed: Placed) -> None:
        """A cut request's room is free at last."""
        load, tokens = placed
        load.lingering -= tokens
        load.release(tokens, served=False)
        if not load.in_flight and not load.joined:
            self._forget(load)

    def _forget(self, load: Load) -> None:
        """It left, and nothing of it is here any more."""
        if self.loads.get(load.id) is load:
            del self.loads[load.id]

    def end(
        self, job: Job, kind: Kind, usage: Usage | None, now: float, *, cut: bool = False
    ) -> None:
        """The one way out: room, queue, quota, counter and count are settled here."""
        del self.jobs[job.request.id]
        job.deadline = inf
        account, model, lane = job.account, job.model, job.lane
        queue, quota = model.queue, account.quota
        model.outstanding -= job.to_come
        ran = bool(job.legs)
        if ran:
            self.stop(job, cut=cut, served=kind is _WELL)
        elif job.waiting is not None:
            queue.remove(job.waiting)
            self.unqueue(job, now)
        if kind is _WELL:
            account.completed += 1
            if ran:
                model.ran(now - job.dispatched)
        else:
            account.count(kind)
            # Who asks again was counted when it was lost first.
            begun = job.started and job.answered <= job.arrived + job.objective
            if begun and not job.request.client_retry:
                model.paces.append((now, inf))
        if ran and (usage is not None or kind is not _REFUSED):
            prompt, output, cost, cached = self.admission.used(job, kind, usage)
            if quota is not None:
                job.chain.settle(job.request.id, job.taken, _new(Amounts, (prompt, output)), now)
            queue.settle(lane, job.cost, cost)
            model.rate.settle(cost, now)
            if usage is not None:
                if cached or model.found:
                    model.answered(prompt, cached)
                if job.hit or job.hashed:
                    model.routing.answered(job, cached)
        else:
            if quota is not None:
                job.chain.refund(job.request.id, job.taken, now)
            if ran:
                queue.settle(lane, job.cost, 0.0)
        if job.session is not None:
            self._settle_session(job, job.session, usage, now)
            job.session.served += kind is _WELL
        model.rate.mark(now, waiting=queue.size > 0, running=model.running > 0)

    def served(self, job: Job, usage: Usage, now: float) -> None:
        """`end` of what has nothing unusual: completed on one replica, its first token seen.

        In one piece, as each request that is served comes through here.
        """
        ((load, tokens),) = job.legs
        account, model, lane, own = job.account, job.model, job.lane, job.prompt
        del self.jobs[job.request.id]
        job.deadline = inf
        job.legs = ()
        model.outstanding -= job.to_come
        load.held -= own if own < tokens else tokens
        load.release(tokens, served=True)
        if not load.in_flight and not load.joined:
            self._forget(load)
        model.running = running = model.running - 1
        self.running -= 1
        account.running = own = account.running - 1
        if own + 1 >= account.most > own:
            self._resume(account)
        account.completed += 1
        model.ran(now - job.dispatched)
        prompt, output, cached = usage
        if output > 1 and job.answered <= job.arrived + job.objective:
            model.paces.append((now, (now - job.answered) / (output - 1)))
        if prompt is None:
            prompt = job.prompt
        spec, charged = self.spec, job.cost
        fresh = prompt - cached if prompt > cached else 0
        cost = spec.prefill_weight * fresh + spec.decode_weight * output
        lane.running -= charged
        lane.counter += (cost - charged) / lane.weight
        if lane.size and not lane.suspended:
            lane.level.place(lane)
        rate = model.rate
        rate.settle(cost, now)
        if cached or model.found:
            model.answered(prompt, cached)
        if (running > 0) is not rate.working or (
            running and model.queue.size > 0
        ) is not rate.backlogged:
            model.mark(now)

    # Sessions.

    def enter(self, job: Job, session: Session, now: float) -> None:
        """A request of it was let in, and is expected to burn so much."""
        if job.account.sessions is not None:
            job.account.sessions.enter(session, now)
        session.burn.add(job.estimate, now)

    def begin(self, session: Session, load: Load, model: Model) -> None:
        """A request of it is sent there: what waits of it goes before what has not begun."""
        session.home = load
        if session.begun:
            return
        session.begun = True
        for job in session.waiting:
            if job.waiting is not None and job.model is model:
                model.queue.hasten(job.waiting, *place(job, self.spec))

    def _settle_session(self, job: Job, session: Session, usage: Usage | None, now: float) -> None:
        used = 0
        if usage is not None:
            prompt = job.prompt if usage.prompt_tokens is None else usage.prompt_tokens
            used = prompt + usage.output_tokens
            session.context = used
        elif job.started:
            used = job.estimate
        session.burn.add(used - job.estimate, now)
        if job.account.sessions is not None:
            job.account.sessions.left(session, now)

    # Tenants at their cap.

    def _suspend(self, account: Account) -> None:
        for name, lane in account.lanes.items():
            self.models[name].queue.suspend(lane)

    def _resume(self, account: Account) -> None:
        for name, lane in account.lanes.items():
            self.models[name].queue.resume(lane)
