"""Random histories of FlowControl: what must hold after every step, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from surgetank.policy.effect import Cancel, Dispatch, Effect, Refuse
from surgetank.policy.flow import Counts, FlowSettings, FlowSpec, RetryCause
from surgetank.policy.journal import Journal, replay
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.policy.request import ENDINGS, Kind, Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier

# A bucket that hardly refills, so that its level shows every settlement there was.
QUOTA = 1e9
TENANTS = (
    Tenant("core", "gold", tokens_per_minute=60e-3, burst_seconds=QUOTA * 1e3),
    Tenant("web", weight=3, max_running=2, max_queued=4),
    Tenant("app", weight=1, requests_per_minute=60e-3, burst_seconds=QUOTA * 1e3),
    Tenant("batch", "bulk", max_queued_bytes=4000),
)
TIERS = (
    Tier("gold", 0, min_share=0.2, request_timeout=9.0),
    Tier("standard", 1, min_share=0.1, predicted_wait=True, theta=2.0),
    Tier("bulk", 2, min_share=0.1, max_output_tokens=300, kv_fill=0.8),
)
REPLICAS = (
    Replica("a", "m", slots=2, kv_tokens=4096),
    Replica("b", "m", slots=3, kv_tokens=2048, preempts=False, max_context=1024),
    Replica("c", "m"),
    Replica("d", "n", Role.PREFILL, slots=2, kv_tokens=4096),
    Replica("e", "n", Role.DECODE, slots=2, kv_tokens=4096, block_size=1),
)
SPECS = st.builds(
    FlowSpec,
    max_in_flight=st.sampled_from([2, 6]),
    when_full=st.sampled_from([*["wait"] * 6, "refuse"]),
    max_queued=st.sampled_from([12, 12, 3, 0]),
    max_queued_bytes=st.sampled_from([3000, 10**6]),
    max_running=st.sampled_from([None, None, 2, 5]),
    queue_timeout=st.sampled_from([5.0, 5.0, 0.5]),
    request_timeout=st.sampled_from([30.0, 30.0, 2.0]),
    replays=st.integers(0, 2),
)
TIMES = st.sampled_from([0.0, 0.0, 0.1, 0.1, 0.5, 3.0])
PICKS = st.integers(0, 20)
TOKENS = st.none() | st.tuples(st.integers(1, 4000), st.integers(0, 2000))


class FlowMachine(RuleBasedStateMachine):
    """Plays a shell that carries out every effect, and keeps its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.lines: list[str] = []
        self.state: dict[str, str] = {}  # id -> waiting, running
        self.requests: dict[str, Request] = {}
        self.offered_at: dict[str, float] = {}
        self.legs: dict[str, tuple[str, ...]] = {}
        self.max_tokens: dict[str, int | None] = {}
        self.started: set[str] = set()
        self.ended: dict[str, Kind] = {}
        self.unserved: set[str] = set()  # ended while nothing ran for them
        self.used: dict[str, int] = {}  # tokens by tenant that surely were used
        self.vague: set[str] = set()  # tenants of whom an ending had no usage
        self.cuts: list[tuple[float, str]] = []  # (when its room comes back, replica)

    @initialize(
        spec=SPECS, joined=st.sampled_from([REPLICAS, REPLICAS[:2], REPLICAS[2:], REPLICAS[1:2]])
    )
    def start(self, spec: FlowSpec, joined: tuple[Replica, ...]) -> None:
        draws = iter(lambda: 0.25, None)
        self.spec = spec
        self.journal = Journal(
            self.lines.append,
            spec,
            tenants=TENANTS,
            tiers=TIERS,
            models=("m", "n"),
            draw=lambda: next(draws),
        )
        self.flow = self.journal.flow
        for replica in joined:
            self.take(self.journal.join(replica, self.now))

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            request = effect.request
            assert self.requests[request.id] is request
            if isinstance(effect, Dispatch):
                self.dispatched(effect)
            elif isinstance(effect, Refuse):
                assert self.state.pop(request.id) in {"waiting", "retried"}
                self.unserved.add(request.id)
                assert effect.retry_after is None or 0.1 <= effect.retry_after <= 110
                if ENDINGS[effect.outcome].status == 429:
                    assert effect.retry_after is not None
                self.ended[request.id] = ENDINGS[effect.outcome].kind
            else:
                assert isinstance(effect, Cancel)
                assert self.state[request.id] == "running"
                used = Usage(7, 3)
                self.closing(request.id, used, ENDINGS[effect.outcome].kind)
                self.cut(request.id)
                self.take(self.journal.finish(request.id, effect.outcome, used, self.now))

    def take_later(self, call: Callable[..., Sequence[Effect]], *args: object) -> None:
        """Take what a first token or an end causes: without effects no deadline came nearer.

        A shell with its timer at the next deadline may then leave it where it is.
        """
        before = self.flow.next_deadline()
        effects = call(*args)
        if not effects:
            after = self.flow.next_deadline()
            assert after is None or (before is not None and after >= before)
        self.take(effects)

    def cut(self, request_id: str) -> None:
        """Its upstream call was closed: where the engine cannot preempt, its room stays taken."""
        for name in self.legs[request_id]:
            replica = next(r for r in REPLICAS if r.id == name)
            if not replica.preempts:
                self.cuts.append((self.now + self.spec.release_grace, name))

    def dispatched(self, effect: Dispatch) -> None:
        request = effect.request
        assert self.state[request.id] in {"waiting", "retried"}
        self.state[request.id] = "running"
        self.legs[request.id] = tuple(leg.replica for leg in effect.legs)
        total = self.spec.request_timeout
        if request.tenant == "core":
            total = 9.0
        arrived = self.offered_at[request.id]
        assert self.now < arrived + min(total, request.request_timeout or inf)
        queue_timeout = min(self.spec.queue_timeout, request.queue_timeout or inf)
        assert effect.queued_for == 0 or effect.queued_for < queue_timeout
        for view in self.flow.replicas():
            if view.id in self.legs[request.id]:
                assert view.joined
                assert not view.paused
                assert view.in_flight <= view.limit
        bound = effect.max_tokens if effect.max_tokens is not None else request.max_tokens
        assert bound is None or bound >= 1
        if request.tenant == "batch":
            assert bound is not None
            assert bound <= 300
        if "b" in self.legs[request.id]:
            assert bound is not None
            if request.prompt_tokens is not None:
                assert request.prompt_tokens + bound <= 1024

    @rule(
        tenant=st.sampled_from(["core", "web", "app", "batch", "guest"]),
        model=st.sampled_from([*"mmmmmmnnnnx"]),
        prompt=st.integers(1, 5000),
        exact=st.booleans(),
        max_tokens=st.none() | st.integers(1, 2000),
        choices=st.sampled_from([1, 1, 2]),
        stream=st.booleans(),
        session=st.sampled_from(["", "", "one", "two", "three"]),
        prefix=st.sampled_from([(), (1,), (1, 2), (1, 3, 4), (5, 6)]),
        queue_timeout=st.none() | st.floats(0.1, 10),
        request_timeout=st.none() | st.floats(0.1, 40),
        step=TIMES,
        times=st.integers(1, 4),
    )
    def offer(
        self,
        tenant: str,
        model: str,
        prompt: int,
        *,
        exact: bool,
        max_tokens: int | None,
        choices: int,
        stream: bool,
        session: str,
        prefix: tuple[int, ...],
        queue_timeout: float | None,
        request_timeout: float | None,
        step: float,
        times: int,
    ) -> None:
        self.now += step / 10
        for _ in range(times):
            self.number += 1
            request = Request(
                f"r{self.number}",
                tenant,
                model,
                prompt,
                prompt,
                prompt // 4 + 1 if exact else None,
                max_tokens=max_tokens,
                choices=choices,
                stream=stream,
                body_bytes=prompt,
                queue_timeout=queue_timeout,
                request_timeout=request_timeout,
                session=session,
                prefix=prefix,
            )
            self.requests[request.id] = request
            self.state[request.id] = "waiting"
            self.offered_at[request.id] = self.now
            self.take(self.journal.offer(request, self.now))
            if self.state.get(request.id) == "waiting":
                assert self.spec.when_full == "wait"
                self.check_bounds()

    def check_bounds(self) -> None:
        """Whoever was let into the queue found room there; retries may come on top."""
        waiting = [self.requests[i] for i, s in self.state.items() if s == "waiting"]
        assert len(waiting) <= self.spec.max_queued
        assert sum(r.body_bytes for r in waiting) <= self.spec.max_queued_bytes
        assert sum(r.tenant == "web" for r in waiting) <= 4
        assert sum(r.body_bytes for r in waiting if r.tenant == "batch") <= 4000

    def running(self, request_id: str) -> bool:
        return self.state.get(request_id) == "running"

    def any_running(self) -> bool:
        return "running" in self.state.values()

    def pick(self, number: int) -> str:
        running = [i for i, state in self.state.items() if state == "running"]
        return running[number % len(running)]

    @precondition(any_running)
    @rule(pick=PICKS, step=TIMES)
    def first_token(self, pick: int, step: float) -> None:
        request_id = self.pick(pick)
        self.now += step / 10
        self.started.add(request_id)
        self.take_later(self.journal.first_token, request_id, self.now)

    @precondition(any_running)
    @rule(
        pick=PICKS,
        outcome=st.sampled_from([Outcome.COMPLETED] * 3 + [Outcome.UPSTREAM_ERROR]),
        tokens=TOKENS,
        step=TIMES,
    )
    def finish(
        self, pick: int, outcome: Outcome, tokens: tuple[int, int] | None, step: float
    ) -> None:
        request_id = self.pick(pick)
        self.now += step / 10
        usage = None if tokens is None else Usage(*tokens)
        self.closing(request_id, usage, ENDINGS[outcome].kind)
        self.take_later(self.journal.finish, request_id, outcome, usage, self.now)

    @precondition(any_running)
    @rule(pick=PICKS, output=st.integers(0, 300), times=st.integers(1, 4), step=TIMES)
    def serve(self, pick: int, output: int, times: int, step: float) -> None:
        """Several run to their end, one after another."""
        for _ in range(times):
            if self.any_running():
                request_id = self.pick(pick)
                request = self.requests[request_id]
                self.now += step / 10
                self.started.add(request_id)
                self.take_later(self.journal.first_token, request_id, self.now)
                if self.running(request_id):
                    usage = Usage(request.prompt_tokens or request.prompt_bytes // 3 + 1, output)
                    self.closing(request_id, usage, Kind.COMPLETED)
                    self.take_later(
                        self.journal.finish, request_id, Outcome.COMPLETED, usage, self.now
                    )

    @precondition(lambda self: self.state)
    @rule(
        pick=PICKS,
        tokens=TOKENS,
        step=TIMES,
    )
    def abandon(self, pick: int, tokens: tuple[int, int] | None, step: float) -> None:
        request_id = sorted(self.state)[pick % len(self.state)]
        self.now += step / 10
        usage = Usage(*tokens) if tokens and self.running(request_id) else None
        if self.running(request_id):
            self.cut(request_id)
        self.closing(request_id, usage, Kind.ABANDONED)
        self.take(self.journal.abandon(request_id, usage, self.now))

    def closing(self, request_id: str, usage: Usage | None, kind: Kind) -> None:
        tenant = self.requests[request_id].tenant
        if self.running(request_id):
            if usage is None or usage.prompt_tokens is None:
                self.vague.add(tenant)
            else:
                used = usage.prompt_tokens + usage.output_tokens
                self.used[tenant] = self.used.get(tenant, 0) + used
        else:
            self.unserved.add(request_id)
        del self.state[request_id]
        self.ended[request_id] = kind

    @precondition(any_running)
    @rule(
        pick=PICKS,
        busy=st.booleans(),
        retry_after=st.none() | st.floats(0, 10),
        step=TIMES,
    )
    def retry(self, pick: int, *, busy: bool, retry_after: float | None, step: float) -> None:
        request_id = self.pick(pick)
        if request_id not in self.started:
            self.now += step / 10
            self.state[request_id] = "retried"
            cause: RetryCause = "busy" if busy else "failed"
            self.take(self.journal.retry(request_id, cause, retry_after, self.now))

    @rule(replica=st.sampled_from(REPLICAS), step=TIMES)
    def join(self, replica: Replica, step: float) -> None:
        self.now += step / 10
        self.take(self.journal.join(replica, self.now))

    @rule(
        weights=st.permutations([0.5, 1.0, 3.0, 8.0]),
        priorities=st.permutations([0, 1, 2]),
        step=TIMES,
    )
    def reconfigure(self, weights: list[float], priorities: list[int], step: float) -> None:
        """Other weights and tiers; limits and times as they are, so that all must still hold."""
        self.now += step / 10
        tenants = [replace(t, weight=w) for t, w in zip(TENANTS, weights, strict=True)]
        tiers = [replace(t, priority=p) for t, p in zip(TIERS, priorities, strict=True)]
        settings = FlowSettings(self.spec, tuple(tenants), tuple(tiers), ("m", "n"))
        self.take(self.journal.reconfigure(settings, self.now))

    @rule(replica=st.sampled_from(REPLICAS), step=TIMES)
    def leave(self, replica: Replica, step: float) -> None:
        self.now += step / 10
        self.take(self.journal.leave(replica.id, self.now))

    @rule(
        replica=st.sampled_from(REPLICAS),
        age=st.floats(0, 4),
        waiting=st.none() | st.integers(0, 3),
        kv=st.none() | st.floats(0, 1),
    )
    def observe(self, replica: Replica, age: float, waiting: int | None, kv: float | None) -> None:
        signals = Signals(self.now - age, waiting, None, kv)
        self.take(self.journal.observe(replica.id, signals, self.now))

    @rule(late=TIMES)
    def advance(self, late: float) -> None:
        deadline = self.flow.next_deadline()
        if deadline is not None:
            assert deadline > self.now
        self.now = (self.now if deadline is None else deadline) + late
        self.take(self.journal.advance(self.now))

    @precondition(lambda self: self.state)
    @rule()
    def nothing_is_dispatched_by_looking(self) -> None:
        before = self.flow.counts()
        self.flow.next_deadline()
        self.flow.replicas()
        self.flow.budget("core", self.now)
        assert self.flow.counts() == before
        assert list(self.journal.advance(self.now)) == []

    @invariant()
    def requests_are_conserved(self) -> None:
        if not self.requests:
            return
        total = Counts()
        for tenant in ("core", "web", "app", "batch", "guest"):
            mine = [i for i, r in self.requests.items() if r.tenant == tenant]
            kinds = [self.ended.get(i) for i in mine]
            counts = self.flow.counts(tenant)
            assert counts == Counts(
                offered=len(mine),
                completed=kinds.count(Kind.COMPLETED),
                refused=kinds.count(Kind.REFUSED),
                abandoned=kinds.count(Kind.ABANDONED),
                failed=kinds.count(Kind.FAILED),
                queued=sum(self.state.get(i) in {"waiting", "retried"} for i in mine),
                running=sum(self.running(i) for i in mine),
            )
            total = Counts(
                *(getattr(total, f) + getattr(counts, f) for f in Counts.__dataclass_fields__)
            )
        assert self.flow.counts() == total

    @invariant()
    def replicas_are_never_overfull(self) -> None:
        if not self.requests:
            return
        views = {view.id: view for view in self.flow.replicas()}
        for view in views.values():
            replica = next(r for r in REPLICAS if r.id == view.id)
            mine = [i for i in self.legs if self.running(i) and view.id in self.legs[i]]
            if replica.role is Role.PREFILL:
                mine = [i for i in mine if i not in self.started]
            held = sum(until > self.now and name == view.id for until, name in self.cuts)
            assert view.in_flight == len(mine) + held
            assert view.in_flight <= min(replica.slots or 99, self.spec.max_in_flight or 99)
            assert 0 <= view.kv_reserved <= (replica.kv_tokens or inf)
            assert view.prefill_backlog >= 0
            if not mine and not held:
                assert view.kv_reserved == view.prefill_backlog == 0
        if self.spec.max_running is not None:
            assert self.flow.counts().running <= self.spec.max_running
        assert self.flow.counts("web").running <= 2

    @invariant()
    def prompts_under_way_are_those_of_streams_without_a_first_token(self) -> None:
        if not self.requests:
            return
        state = self.flow._state
        loads = state.loads.values()
        jobs = [j for j in state.jobs.values() if j.legs and j.request.stream and not j.started]
        assert sum(load.unseen for load in loads) == len(jobs)
        for load in loads:
            mine = sum(job.fresh for job in jobs if job.legs[0][0] is load)
            assert load.pending == mine

    @invariant()
    def quotas_are_settled_once(self) -> None:
        if not self.requests:
            return
        if self.flow.counts("core").running == self.flow.counts("core").queued == 0:
            left = self.flow.budget("core", self.now).remaining_tokens
            assert left is not None
            if "core" not in self.vague:
                assert abs(1e9 - left - self.used.get("core", 0)) <= 1 + self.now
        left = self.flow.budget("app", self.now).remaining_requests
        assert left is not None
        served = sum(r.tenant == "app" and i not in self.unserved for i, r in self.requests.items())
        assert abs(1e9 - left - served) <= 1 + self.now / 1000

    def teardown(self) -> None:
        if not self.requests:
            return
        assert replay(self.lines) is None
        for step in range(40):
            self.now += 1.0
            self.take(self.journal.advance(self.now))
            if not self.state:
                break
            assert step < 39, "every request ends by its timeout"


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
