"""FairQueue: weighted shares, minimum shares, order inside a tenant, and places that are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.fairness import FairQueue, Lane, Waiting


def served(queue: FairQueue[str], most: int = 1000) -> list[str]:
    """Pop until empty; each ends at once, as expected."""
    names: list[str] = []
    while len(names) < most and (head := queue.peek()) is not None:
        assert queue.peek() is head
        queue.pop(head)
        queue.settle(head.lane, head.cost, head.cost)
        names.append(head.item)
    return names


def fill(queue: FairQueue[str], lane: Lane[str], name: str, costs: list[float]) -> None:
    for i, cost in enumerate(costs):
        queue.push(lane, f"{name}{i}", cost, 0.0, float(i))


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=3),
    costs=st.lists(st.lists(st.floats(1, 1000), min_size=40, max_size=40), min_size=3, max_size=3),
    rounds=st.integers(1, 38),
    errors=st.lists(st.floats(0.5, 2), min_size=40, max_size=40),
)
def test_backlogged_tenants_get_shares_by_weight_within_one_request(
    weights: list[float], costs: list[list[float]], rounds: int, errors: list[float]
) -> None:
    """|served_i / w_i - served_j / w_j| <= max cost / min weight, real cost charged at the end."""
    queue: FairQueue[tuple[int, float]] = FairQueue()
    lanes = [queue.lane(1, weight) for weight in weights]
    for i, lane in enumerate(lanes):
        for n, cost in enumerate(costs[i]):
            queue.push(lane, (i, cost), cost, 0.0, float(n))
    got = [0.0] * len(weights)
    highest = max(max(c) for c in costs) * max(1.0, *errors)
    for n in range(rounds):
        head = queue.peek()
        assert head is not None
        who, cost = head.item
        queue.pop(head)
        queue.settle(lanes[who], cost, cost * errors[n])
        got[who] += cost * errors[n]
        normalised = [g / w for g, w in zip(got, weights, strict=True)]
        spread = max(normalised) - min(normalised)
        assert spread <= highest / min(weights) * (1 + 1e-9)


def test_an_idle_tenant_saves_nothing_up() -> None:
    queue: FairQueue[str] = FairQueue()
    busy, idle = queue.lane(1, 1), queue.lane(1, 1)
    fill(queue, busy, "b", [10] * 20)
    served(queue, 10)
    fill(queue, idle, "i", [10] * 5)
    assert served(queue, 6) in (
        ["b10", "i0", "b11", "i1", "b12", "i2"],
        ["i0", "b10", "i1", "b11", "i2", "b12"],
    )


def test_a_tenant_that_comes_to_an_idle_queue_starts_where_the_last_one_was() -> None:
    queue: FairQueue[str] = FairQueue()
    old, new = queue.lane(1, 1), queue.lane(1, 1)
    for _ in range(50):
        queue.passed(old, 100)
        queue.settle(old, 100, 100)
    queue.passed(new, 10)
    fill(queue, new, "n", [10] * 8)
    fill(queue, old, "o", [10] * 8)
    assert sum(name.startswith("n") for name in served(queue, 8)) <= 5


def test_a_newcomer_does_not_wait_for_work_that_was_expected_and_never_came() -> None:
    queue: FairQueue[str] = FairQueue()
    busy, new = queue.lane(1, 1), queue.lane(1, 1)
    fill(queue, busy, "b", [1000.0] * 2 + [10.0] * 50)
    for _ in range(2):
        head = queue.peek()
        assert head is not None
        queue.pop(head)
    fill(queue, new, "n", [10] * 2)
    for _ in range(2):
        queue.settle(busy, 1000, 10)
    assert "n0" in served(queue, 4)


def test_a_newcomer_may_run_as_much_as_the_others_are_running() -> None:
    queue: FairQueue[str] = FairQueue()
    busy, new = queue.lane(1, 1), queue.lane(1, 1)
    fill(queue, busy, "b", [10] * 20)
    for _ in range(4):
        head = queue.peek()
        assert head is not None
        queue.pop(head)
    fill(queue, new, "n", [10] * 20)
    assert sorted(served(queue, 6)) == ["b4", "n0", "n1", "n2", "n3", "n4"]


def test_a_higher_tier_goes_first_and_a_lower_one_gets_its_minimum_share() -> None:
    queue: FairQueue[str] = FairQueue({2: 0.2})
    high, low = queue.lane(0, 1), queue.lane(2, 1)
    fill(queue, high, "h", [10] * 100)
    fill(queue, low, "l", [10] * 100)
    first = served(queue, 100)
    assert sum(name.startswith("l") for name in first) == 19  # 6th, 11th ... 96th
    assert first[:4] == ["h0", "h1", "h2", "h3"]


@given(
    share=st.floats(0.05, 0.9),
    high_costs=st.lists(st.floats(1, 100), min_size=60, max_size=60),
    low_costs=st.lists(st.floats(1, 100), min_size=60, max_size=60),
)
def test_a_backlogged_tier_is_never_behind_its_share_by_more_than_one_request(
    share: float, high_costs: list[float], low_costs: list[float]
) -> None:
    queue: FairQueue[str] = FairQueue({2: share})
    high, low = queue.lane(0, 1), queue.lane(2, 1)
    fill(queue, high, "h", high_costs)
    fill(queue, low, "l", low_costs)
    total = mine = 0.0
    while high.size and low.size:
        head = queue.peek()
        assert head is not None
        queue.pop(head)
        total += head.cost
        mine += head.cost if head.lane is low else 0.0
        assert mine >= share * total - 200
        assert mine <= share * total + 200


def test_the_credit_of_a_tier_is_gone_when_it_empties() -> None:
    queue: FairQueue[str] = FairQueue({2: 0.5})
    high, low = queue.lane(0, 1), queue.lane(2, 1)
    entry = queue.push(low, "big", 1000, 0.0, 0.0)
    fill(queue, high, "h", [10] * 30)
    served(queue, 20)
    queue.remove(entry)
    queue.push(low, "l", 100, 0.0, 0.0)
    assert served(queue, 10) == [f"h{i}" for i in range(20, 30)]


def test_inside_a_tenant_the_least_slack_then_the_least_rank_then_the_oldest_goes_first() -> None:
    queue: FairQueue[str] = FairQueue()
    lane = queue.lane(1, 1)
    queue.push(lane, "late", 1, 5.0, 0.0)
    queue.push(lane, "soon, large", 1, 2.0, 9.0)
    queue.push(lane, "soon, small", 1, 2.0, 3.0)
    queue.push(lane, "soon, small, younger", 1, 2.0, 3.0)
    assert served(queue) == ["soon, small", "soon, small, younger", "soon, large", "late"]


def test_a_suspended_tenant_is_skipped_and_does_not_catch_up_afterwards() -> None:
    queue: FairQueue[str] = FairQueue()
    capped, other = queue.lane(1, 1), queue.lane(1, 1)
    fill(queue, capped, "c", [10] * 10)
    fill(queue, other, "o", [10] * 20)
    queue.suspend(capped)
    assert served(queue, 10) == [f"o{i}" for i in range(10)]
    assert queue.cost == 100
    queue.resume(capped)
    assert sum(name.startswith("c") for name in served(queue, 10)) == 5


def test_waiting_time_counts_tiers_before_and_the_share_within_the_tier() -> None:
    queue: FairQueue[str] = FairQueue({2: 0.25})
    gold, a, b, bulk = queue.lane(0, 1), queue.lane(1, 3), queue.lane(1, 1), queue.lane(2, 1)
    fill(queue, gold, "g", [100])
    fill(queue, a, "a", [100, 200])
    fill(queue, b, "b", [400])
    # a: 100 before it; its 300 at 3/4 of the tier need 400 of its work.
    assert queue.wait(a, 10) == (100 + 400) / 10
    # b: its 400 at 1/4 would need 1600, but the tier has only 700 in all.
    assert queue.wait(b, 10) == (100 + 700) / 10
    fill(queue, bulk, "k", [50])
    assert queue.wait(a, 10) == (100 + 400) / (10 * 0.75)
    # bulk: all 850 at full rate take longer than its 50 at its minimum share.
    assert queue.wait(bulk, 10) == 50 / (10 * 0.25)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "remove", "pop", "suspend", "resume", "settle"]),
            st.integers(0, 3),
            st.integers(0, 50),
        ),
        max_size=300,
    )
)
def test_any_history_leaves_the_books_right_and_the_garbage_bounded(
    steps: list[tuple[str, int, int]],
) -> None:
    queue: FairQueue[int] = FairQueue({1: 0.3})
    lanes = [queue.lane(0, 1), queue.lane(1, 2), queue.lane(1, 1), queue.lane(2, 1)]
    alive: list[Waiting[int]] = []
    for number, (verb, which, n) in enumerate(steps):
        lane = lanes[which]
        head = queue.peek()
        if verb == "push":
            alive.append(queue.push(lane, number, 1.0 + n, float(n // 10), float(n)))
        elif verb == "remove" and alive:
            queue.remove(alive.pop(n % len(alive)))
        elif verb == "pop" and head is not None:
            queue.pop(head)
            alive.remove(head)
        elif verb == "suspend":
            queue.suspend(lane)
        elif verb == "resume":
            queue.resume(lane)
        elif verb == "settle" and lane.running:
            queue.settle(lane, lane.running, float(n))
        assert len(queue) == len(alive) == sum(x.size for x in lanes)
        assert abs(queue.cost - sum(w.cost for w in alive if not w.lane.suspended)) < 1e-6
        able = [w for w in alive if not w.lane.suspended]
        head = queue.peek()
        assert (head is None) == (not able)
        if head is not None:
            best = min(
                (x for x in lanes if x.level is head.lane.level and x.size and not x.suspended),
                key=lambda x: x.counter,
            )
            assert head.lane.counter == best.counter
        for x in lanes:
            assert len(x.heap) <= 2 * x.size + 17
            assert len(x.level.heap) <= 2 * x.level.active + 18
