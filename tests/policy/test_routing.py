"""Where requests go that share a beginning, or a session: to who holds it, until that has more."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.effect import Dispatch
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.placement import Load
from surgetank.policy.prefix import MARKS, Prefixes
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage

SPEC = FlowSpec(max_in_flight=64, queue_timeout=1e6, request_timeout=1e6, max_queued=100_000)


def flow(replicas: int = 4, *, seed: int = 7) -> FlowControl:
    control = FlowControl(SPEC, models=["m"], draw=random.Random(seed).random)
    for i in range(replicas):
        control.join(Replica(f"r{i}", "m", slots=64, kv_tokens=200_000), 0.0)
    return control


def begins(shared: int, own: int, chars: int = 4096, common: int = 2048) -> tuple[int, ...]:
    """Hashes of a prompt of `chars` whose first `common` are those of number `shared`."""
    marks = [m for m in MARKS if m <= chars]
    return tuple(hash((shared, m)) if m <= common else hash((shared, own, m)) for m in marks)


def asks(number: int, shared: int = 0, *, chars: int = 4096, prefix: bool = True) -> Request:
    return Request(
        f"q{number}", "t", "m", chars, chars,
        prompt_tokens=chars // 4, max_tokens=100,
        prefix=begins(shared, number, chars) if prefix else (),
    )  # fmt: skip


def placed(control: FlowControl, request: Request, now: float) -> str:
    (effect,) = control.offer(request, now)
    assert isinstance(effect, Dispatch)
    return effect.legs[0].replica


def end(control: FlowControl, request: Request, now: float, cached: int = 0) -> None:
    control.first_token(request.id, now)
    usage = Usage(request.prompt_tokens, 100, cached)
    control.finish(request.id, Outcome.COMPLETED, usage, now)


def test_one_after_another_each_prefix_has_one_home_and_homes_are_spread() -> None:
    control = flow()
    homes: dict[int, set[str]] = {}
    order = random.Random(3)
    for number in range(400):
        shared = order.randrange(20)
        request = asks(number, shared)
        homes.setdefault(shared, set()).add(placed(control, request, float(number)))
        end(control, request, number + 0.5)
    assert all(len(replicas) == 1 for replicas in homes.values())
    count = Counter(next(iter(x)) for x in homes.values())
    assert len(count) == 4
    assert max(count.values()) <= 8


@pytest.mark.parametrize("size", [40, 100, 200])
def test_a_burst_of_one_prefix_leaves_nobody_with_more_than_1_3_times_the_mean(size: int) -> None:
    control = flow()
    warm = asks(0)
    placed(control, warm, 0.0)
    end(control, warm, 1.0)
    count = Counter(placed(control, asks(n), 2.0) for n in range(1, size + 1))
    assert max(count.values()) <= 1.3 * size / 4


def test_a_prefix_that_waits_behind_more_prefill_than_it_saves_is_computed_elsewhere() -> None:
    control = flow(2)
    first = asks(0)
    home = placed(control, first, 0.0)
    end(control, first, 0.5)
    big = asks(1, chars=40_960)
    assert placed(control, big, 1.0) == home  # 10,240 tokens that it computes from now on
    assert placed(control, asks(2), 1.0) != home


def test_a_replica_that_left_holds_nothing_when_it_comes_back() -> None:
    control = flow(2)
    first = asks(0)
    home = placed(control, first, 0.0)
    end(control, first, 0.5)
    other = {"r0": "r1", "r1": "r0"}[home]
    control.leave(home, 1.0)
    second = asks(1)
    assert placed(control, second, 1.0) == other
    end(control, second, 1.5)
    control.join(Replica(home, "m", slots=64, kv_tokens=200_000), 2.0)
    for number in range(2, 8):
        request = asks(number)
        assert placed(control, request, float(number)) == other
        end(control, request, number + 0.5)


def test_without_a_prefix_placement_is_by_load_alone_and_nothing_is_drawn() -> None:
    def never() -> float:
        raise AssertionError("drawn")

    control = FlowControl(SPEC, models=["m"], draw=never)
    for i in range(3):
        control.join(Replica(f"r{i}", "m", slots=64, kv_tokens=200_000), 0.0)
    got = [placed(control, asks(n, prefix=False), 0.0) for n in range(6)]
    assert got == ["r0", "r1", "r2", "r0", "r1", "r2"]


def test_prompt_tokens_that_engines_report_as_cached_are_not_charged_again() -> None:
    control = flow(1)
    for number in range(50):  # the engine reports what it finds
        request = asks(number)
        placed(control, request, float(number))
        end(control, request, number + 0.5, cached=512 if number else 0)
    model = control._state.models["m"]
    control.offer(asks(99), 60.0)
    job = control._state.jobs["q99"]
    assert model.routing.trust == pytest.approx(1.0)
    assert job.cost == pytest.approx(1024 - 512 + 4 * 100)


def test_what_is_remembered_is_bounded_by_the_kv_and_ages() -> None:
    prefixes = Prefixes()
    control = flow(1)
    load = control._state.loads["r0"]
    for number in range(3000):
        prefixes.hold(load, begins(number, number), 0.25, 1.0)
    assert 6 * 98 <= prefixes.size(load) <= 6 * 196  # prompts of 1,024 tokens in 200,000
    for at in (400.0, 800.0):
        prefixes.hold(load, begins(1, 1), 0.25, at)
    assert prefixes.size(load) == 6
    prefixes.drop(load)
    assert len(prefixes) == 0


@given(
    sent=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=60
    )
)
def test_who_was_sent_a_beginning_is_known_by_each_of_its_marks_until_it_forgets(
    sent: list[tuple[int, int, int]],
) -> None:
    """Beginnings as hashes run: the marks of a shorter one are those of every longer one."""
    loads = [Load(Replica(f"r{n}", "m", kv_tokens=20_000), None, 1.0) for n in range(3)]
    prefixes, now = Prefixes(), 0.0
    for which, text, marks in sent:
        now += 1.0
        prefix = tuple(hash((text, mark)) for mark in range(marks))
        prefixes.hold(loads[which], prefix, 0.25, now)
        for load in loads:
            held = prefixes.replicas.get(load)
            mine = set() if held is None else held.young | held.old
            told = {k for k, who in prefixes.known.items() if who is load or _among(load, who)}
            assert mine == told
            for other in range(4):
                depth = [hash((other, mark)) in mine for mark in range(12)]
                assert depth == sorted(depth, reverse=True)


def _among(load: Load, who: Load | dict[Load, None]) -> bool:
    return isinstance(who, dict) and load in who
