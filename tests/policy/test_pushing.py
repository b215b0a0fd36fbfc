"""The queue of all is shared: who is above its share of it makes room for who is below."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.effect import Refuse
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request
from surgetank.policy.tenant import Tenant, Tier

TIERS = (Tier("first", 0), Tier("later", 2))


def full(tenant: Tenant, *others: Tenant, most: int = 10) -> FlowControl:
    """One runs, and a tenant has the whole queue."""
    flow = FlowControl(FlowSpec(max_queued=most), tenants=[tenant, *others], tiers=TIERS)
    flow.join(Replica("one", "m", slots=1), 0.0)
    for number in range(most + 1):
        assert not refused(flow, f"{tenant.name}{number}", tenant.name)
    return flow


def refused(flow: FlowControl, name: str, tenant: str) -> list[str]:
    effects = flow.offer(Request(name, tenant, "m", 400), 0.0)
    found = [effect for effect in effects if isinstance(effect, Refuse)]
    assert all(e.outcome is Outcome.QUEUE_FULL and (e.retry_after or 0) > 0 for e in found)
    return [effect.request.id for effect in found]


def test_newcomers_push_out_the_last_of_who_has_it_all_until_each_has_its_share() -> None:
    flow = full(Tenant("noisy"), Tenant("quiet"))
    pushed = [refused(flow, f"q{number}", "quiet") for number in range(7)]
    assert pushed == [["noisy10"], ["noisy9"], ["noisy8"], ["noisy7"], ["noisy6"], ["q5"], ["q6"]]
    assert refused(flow, "noisy11", "noisy") == ["noisy11"]
    assert flow.counts("noisy").queued == flow.counts("quiet").queued == 5


def test_a_share_is_by_weight() -> None:
    flow = full(Tenant("noisy", weight=4.0), Tenant("quiet"))
    pushed = [refused(flow, f"q{number}", "quiet") for number in range(3)]
    assert pushed == [["noisy10"], ["noisy9"], ["q2"]]


@pytest.mark.parametrize(("tier", "pushed"), [("standard", "noisy10"), ("later", "q")])
def test_no_tier_is_pushed_out_by_one_behind_it(tier: str, pushed: str) -> None:
    flow = full(Tenant("noisy"), Tenant("quiet", tier=tier))
    assert refused(flow, "q", "quiet") == [pushed]


def test_the_least_urgent_tier_above_its_share_makes_room_first() -> None:
    tenants = Tenant("noisy"), Tenant("batch", tier="later"), Tenant("quiet", tier="first")
    flow = full(tenants[0], *tenants[1:], most=9)
    for number in range(4):  # of its tier's, nobody is pushed out by it
        refused(flow, f"b{number}", "batch")
    assert flow.counts("batch").queued == 0
    assert refused(flow, "q0", "quiet") == ["noisy9"]


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_nobody_below_its_share_is_pushed_out_or_kept_out(arrivals: list[str]) -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 3.0}
    flow = FlowControl(
        FlowSpec(max_queued=12), tenants=[Tenant(name, weight=w) for name, w in weights.items()]
    )
    flow.join(Replica("one", "m", slots=1), 0.0)
    flow.offer(Request("first", "d", "m", 400), 0.0)
    for number, tenant in enumerate(arrivals):
        before = flow.queued_by_tenant()
        out = refused(flow, f"{tenant}{number}", tenant)
        assert sum(flow.queued_by_tenant().values()) <= 12
        waiting = Counter(before)
        waiting[tenant] += 1
        each = 12 / sum(weights[name] for name in waiting)
        for name in out:
            assert waiting[name[0]] > each * weights[name[0]]
