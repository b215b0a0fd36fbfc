"""Random lives of requests on levels with limits: whatever ends them, every count comes out exact.

The default suite plays a few hundred; `-m heavy` plays until 10,000 have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from surgetank.policy.effect import Cancel, Dispatch, Effect, Refuse
from surgetank.policy.flow import FlowControl, FlowSettings, FlowSpec, RetryCause
from surgetank.policy.replica import Replica
from surgetank.policy.request import ENDINGS, Kind, Outcome, Request, Usage
from surgetank.policy.tenant import KeyLimits, ModelLimits, Tenant, Tier

FULL: Final = 10**6
# Buckets of a million that hardly refill: what is left shows every settlement there was.
BUCKETS: Final[dict[str, Any]] = {
    "requests_per_minute": 60e-9, "tokens_per_minute": 60e-9, "input_tokens_per_minute": 60e-9,
    "output_tokens_per_minute": 60e-9, "burst_seconds": FULL * 1e9,
}  # fmt: skip
KEYS, MODELS = ("k", "j", ""), ("m", "n")
LEVELS: Final = (("", ""), ("", "m"), ("k", ""), ("k", "m"), ("k", "n"), ("j", ""))
CAPS: Final = {("", ""): 12, ("", "m"): 7, ("k", ""): 6, ("k", "m"): 3, ("k", "n"): 4, ("j", ""): 5}


def tenant(**more: Any) -> Tenant:
    def model(key: str, name: str) -> ModelLimits:
        return ModelLimits(name, **BUCKETS, max_concurrent=CAPS[key, name])

    keys = (
        KeyLimits(
            "k", **BUCKETS, max_concurrent=CAPS["k", ""], models=(model("k", "m"), model("k", "n"))
        ),
        KeyLimits("j", **BUCKETS, max_concurrent=CAPS["j", ""]),
    )
    whole: dict[str, Any] = BUCKETS | {"max_concurrent": CAPS["", ""]} | more
    return Tenant("a", **whole, keys=keys, models=(model("", "m"),))


TENANT: Final = tenant(max_running=8, max_queued=3)
TIERS: Final = (Tier(max_output_tokens=900, when_above="refuse"),)
SPEC: Final = FlowSpec(max_in_flight=4, queue_timeout=3.0, request_timeout=8.0, replays=1)
REPLICAS: Final = (
    Replica("a", "m", slots=4, kv_tokens=8192),
    Replica("b", "m", slots=2, kv_tokens=4096, preempts=False),
    Replica("c", "n", slots=3),
)
STEPS = st.sampled_from([0.0, 0.0, 0.1, 0.7, 2.5])
PICKS = st.integers(0, 30)
USAGE = st.none() | st.tuples(st.none() | st.integers(0, 700), st.integers(0, 1500))
NOT_LET_IN: Final = {
    Outcome.QUOTA_REQUESTS, Outcome.QUOTA_TOKENS, Outcome.TENANT_BUSY, Outcome.OUTPUT_TOO_LONG,
}  # fmt: skip
ended = {"in all": 0}


class LimitsMachine(RuleBasedStateMachine):
    """Plays the shell, and books for itself what each level must have left."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.running: dict[str, Request] = {}
        self.waiting: dict[str, Request] = {}
        self.taken: dict[str, tuple[int, int]] = {}  # prompt and output, of what is here
        self.used: list[tuple[Request, int, int]] = []  # of what ended, and ran
        self.kinds = dict.fromkeys(Kind, 0)
        self.alive: dict[str, Request] = {}

    @initialize(joined=st.sampled_from([REPLICAS, REPLICAS[1:]]))
    def start(self, joined: Sequence[Replica]) -> None:
        self.flow = FlowControl(SPEC, tenants=[TENANT], tiers=TIERS, models=MODELS)
        for replica in joined:
            self.take(self.flow.join(replica, self.now))

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            name = effect.request.id
            if isinstance(effect, Dispatch):
                self.running[name] = self.waiting.pop(name)
            elif isinstance(effect, Refuse):
                self.waiting.pop(name)
                self.end(name, ENDINGS[effect.outcome].kind)
            else:
                assert isinstance(effect, Cancel)
                self.close(name, effect.outcome, (10, 5))

    def end(self, name: str, kind: Kind) -> None:
        self.alive.pop(name, None)
        self.taken.pop(name, None)
        self.kinds[kind] += 1
        ended["in all"] += 1

    def close(self, name: str, outcome: Outcome, told: tuple[int | None, int] | None) -> None:
        """End it from the shell, with or without a usage, and book what it has to be charged."""
        kind = ENDINGS[outcome].kind
        job, request = self.flow._state.jobs[name], self.alive[name]
        ran = self.running.pop(name, None) is not None
        usage = Usage(*told) if told is not None and ran else None
        if ran and usage is not None:
            prompt = usage.prompt_tokens
            self.used.append(
                (request, job.prompt if prompt is None else prompt, usage.output_tokens)
            )
        elif ran and (kind is Kind.COMPLETED or (job.started and kind is not Kind.REFUSED)):
            self.used.append((request, job.prompt, job.to_come))
        elif ran and kind is Kind.ABANDONED:
            self.used.append((request, job.prompt, 0))
        elif ran and kind is Kind.FAILED:
            self.used.append((request, 0, 0))
        self.waiting.pop(name, None)
        self.end(name, kind)
        if outcome is Outcome.ABANDONED:
            self.take(self.flow.abandon(name, usage, self.now))
        else:
            self.take(self.flow.finish(name, outcome, usage, self.now))

    @rule(
        key=st.sampled_from(KEYS),
        model=st.sampled_from(MODELS),
        prompt=st.integers(1, 600),
        exact=st.booleans(),
        bound=st.none() | st.integers(1, 1000),
        choices=st.sampled_from([1, 1, 2]),
        step=STEPS,
        times=st.integers(1, 6),
    )
    def offer(
        self,
        key: str,
        model: str,
        prompt: int,
        *,
        exact: bool,
        bound: int | None,
        choices: int,
        step: float,
        times: int,
    ) -> None:
        self.now += step
        self.take(self.flow.advance(self.now))
        for _ in range(times):
            self.number += 1
            one = Request(
                f"r{self.number}",
                "a",
                model,
                4 * prompt,
                prompt_tokens=prompt if exact else None,
                max_tokens=bound,
                choices=choices,
                key=key,
            )
            self.waiting[one.id] = self.alive[one.id] = one
            before = self.left()
            effects = self.flow.offer(one, self.now)
            job = self.flow._state.jobs.get(one.id)
            if job is not None:
                self.taken[one.id] = (job.prompt, (900 if bound is None else bound) * choices)
            elif bound is not None and bound > 900:
                assert isinstance(effects[0], Refuse)
                assert effects[0].outcome is Outcome.OUTPUT_TOO_LONG
            first = effects[0] if effects else None
            if isinstance(first, Refuse) and first.outcome in NOT_LET_IN:
                assert self.left() == before  # not a bit of any level has moved
            self.take(effects)

    def any_running(self) -> bool:
        return bool(self.running)

    def pick(self, number: int) -> str:
        return list(self.running)[number % len(self.running)]

    @precondition(any_running)
    @rule(pick=PICKS, step=STEPS)
    def first_token(self, pick: int, step: float) -> None:
        self.now += step / 10
        self.take(self.flow.first_token(self.pick(pick), self.now))

    @precondition(any_running)
    @rule(
        pick=PICKS,
        outcome=st.sampled_from(
            [
                Outcome.COMPLETED,
                Outcome.COMPLETED,
                Outcome.UPSTREAM_ERROR,
                Outcome.UPSTREAM_FAILED,
                Outcome.ENGINE_REJECTED,
                Outcome.SHUTDOWN,
                Outcome.ABANDONED,
            ]
        ),
        told=USAGE,
        times=st.integers(1, 5),
        step=STEPS,
    )
    def finish(
        self,
        pick: int,
        outcome: Outcome,
        told: tuple[int | None, int] | None,
        times: int,
        step: float,
    ) -> None:
        self.now += step / 10
        for _ in range(times):
            if self.running:
                self.close(self.pick(pick), outcome, told)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICKS, outcome=st.sampled_from([Outcome.ABANDONED, Outcome.SHUTDOWN]))
    def end_waiting(self, pick: int, outcome: Outcome) -> None:
        names = list(self.waiting)
        self.close(names[pick % len(names)], outcome, None)

    @precondition(any_running)
    @rule(pick=PICKS, cause=st.sampled_from(["failed", "busy", "unreached"]), step=STEPS)
    def retry(self, pick: int, cause: RetryCause, step: float) -> None:
        self.now += step / 10
        name = self.pick(pick)
        if not self.flow._state.jobs[name].started:
            self.waiting[name] = self.running.pop(name)
            self.take(self.flow.retry(name, cause, None, self.now))

    @rule(step=st.sampled_from([0.1, 1.0, 3.5, 9.0]))
    def time_passes(self, step: float) -> None:
        self.now += step
        self.take(self.flow.advance(self.now))

    @rule(weight=st.sampled_from([0.5, 1.0, 4.0]))
    def reconfigure(self, weight: float) -> None:
        settings = FlowSettings(SPEC, (replace(TENANT, weight=weight),), TIERS, MODELS)
        self.take(self.flow.reconfigure(settings, self.now))

    def left(self) -> dict[tuple[str, str], tuple[Any, ...]]:
        """The levels as they are, to the last bit."""
        quota = self.flow._state.accounts["a"].quota
        assert quota is not None
        found = {}
        for place, level in quota._levels.items():
            assert level.cap is not None
            stocks = tuple(stock.bucket._level for stock in level.stocks)
            found[place] = (*stocks, level.cap.used)
        return found

    @invariant()
    def every_level_has_left_what_was_not_taken_and_not_used(self) -> None:
        if not self.number:
            return
        left = self.left()
        assert set(left) == set(LEVELS)
        for (key, model), (requests, tokens, prompts, outputs, here) in left.items():
            alive = [n for n, r in self.alive.items() if belongs(r, key, model)]
            used = [(p, o) for r, p, o in self.used if belongs(r, key, model)]
            amounts = used + [self.taken[name] for name in alive]
            assert here == len(alive) <= CAPS[key, model]
            assert abs(FULL - requests - len(amounts)) < 1e-3
            assert abs(FULL - tokens - sum(p + o for p, o in amounts)) < 1e-3
            assert abs(FULL - prompts - sum(p for p, _ in amounts)) < 1e-3
            assert abs(FULL - outputs - sum(o for _, o in amounts)) < 1e-3

    @invariant()
    def all_is_counted(self) -> None:
        if self.number:
            counts = self.flow.counts("a")
            assert (counts.running, counts.queued) == (len(self.running), len(self.waiting))
            assert counts.offered == self.number
            assert counts.completed == self.kinds[Kind.COMPLETED]
            assert counts.refused == self.kinds[Kind.REFUSED]
            assert counts.abandoned == self.kinds[Kind.ABANDONED]
            assert counts.failed == self.kinds[Kind.FAILED]

    def teardown(self) -> None:
        if not self.number:
            return
        self.now += 20.0
        self.take(self.flow.advance(self.now))
        assert not self.running
        assert not self.waiting
        self.every_level_has_left_what_was_not_taken_and_not_used()
        self.all_is_counted()
        self.flow.advance(self.now + 1e16)  # in time all are full again
        for _, _, budget in self.flow.levels("a", self.now + 1e16):
            assert budget.remaining_tokens == budget.limit_tokens
            assert budget.remaining_requests == budget.limit_requests
            assert budget.remaining_concurrent == budget.limit_concurrent


def belongs(request: Request, key: str, model: str) -> bool:
    return key in {"", request.key} and model in {"", request.model}


TestLimitsMachine = LimitsMachine.TestCase
TestLimitsMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.heavy
def test_ten_thousand_random_endings_leave_every_count_exact() -> None:
    before = ended["in all"]
    run_state_machine_as_test(
        LimitsMachine,
        settings=settings(
            max_examples=400,
            stateful_step_count=60,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    done = ended["in all"] - before
    assert done >= 10_000
