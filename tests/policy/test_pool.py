"""Pool: what it does about a plan, a crash, a failure, a timeout."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from surgetank.errors import ConfigError
from surgetank.policy.backoff import Backoff
from surgetank.policy.lifecycle import TRANSITIONS, Event, State, mermaid
from surgetank.policy.plan import ScalePlan
from surgetank.policy.pool import (
    Attach,
    Detach,
    Drain,
    Pool,
    PoolCounts,
    PoolEffect,
    PoolSpec,
    Start,
    Stop,
)


def plan(replicas: int, standbys: int = 0, launch: int | None = None) -> ScalePlan:
    return ScalePlan(
        replicas=replicas,
        launch=replicas if launch is None else launch,
        standbys=standbys,
        surge=False,
        demand=None,
        reasons=(),
    )


def ids(effects: Sequence[PoolEffect], kind: type[PoolEffect]) -> list[str]:
    return [effect.replica for effect in effects if isinstance(effect, kind)]


def running(serving: int, standbys: int = 0, spec: PoolSpec | None = None) -> Pool:
    """Give a pool at time 100 whose replicas took 60 s to start."""
    pool = Pool(spec or PoolSpec(), "m")
    started = ids(pool.reconcile(plan(serving, standbys), 40.0), Start)
    for replica in started:
        pool.became_ready(replica, 100.0)
    assert pool.counts() == PoolCounts(serving=serving, standby=standbys, known=serving + standbys)
    return pool


def test_a_start_says_whether_it_will_serve_and_what_machine_it_wants() -> None:
    effects = Pool(PoolSpec(base=1), "m").reconcile(plan(2, 2), 0.0)
    assert effects == [
        Start("m-both-1", as_standby=False, base=True),
        Start("m-both-2", as_standby=False),
        Start("m-both-3", as_standby=True),
        Start("m-both-4", as_standby=True),
    ]


def test_whatever_is_ready_first_serves_first() -> None:
    pool = Pool(PoolSpec(), "m")
    pool.reconcile(plan(1, 1), 0.0)
    assert pool.became_ready("m-both-2", 50.0) == [Attach("m-both-2")]
    assert pool.became_ready("m-both-1", 60.0) == []
    assert pool.state("m-both-1") is State.STANDBY


def test_standbys_are_promoted_first_and_refilled_behind() -> None:
    pool = running(4, 2)
    effects = pool.reconcile(plan(6, 2), 200.0)
    assert effects == [
        Attach("m-both-5"),
        Attach("m-both-6"),
        Start("m-both-7", as_standby=True),
        Start("m-both-8", as_standby=True),
    ]
    assert pool.counts().serving == 6
    assert pool.counts().refilling == 2


def test_starts_under_way_are_counted() -> None:
    pool = Pool(PoolSpec(), "m")
    assert len(pool.reconcile(plan(4), 0.0)) == 4
    assert pool.reconcile(plan(4), 1.0) == []
    assert len(pool.reconcile(plan(5), 2.0)) == 1
    assert pool.counts().starting == 5


def test_cold_starts_stop_at_the_launch_limit_while_promotions_do_not() -> None:
    pool = running(2, 2)
    effects = pool.reconcile(plan(20, 2, launch=7), 200.0)
    assert len(ids(effects, Attach)) == 2
    assert [e.as_standby for e in effects if isinstance(e, Start)] == [False] * 3 + [True] * 2


def test_a_surge_that_did_not_come_goes_back_to_standby_and_its_refill_is_cancelled() -> None:
    pool = running(4, 2)
    pool.reconcile(plan(6, 2), 200.0)
    effects = pool.reconcile(plan(4, 2), 230.0)
    assert ids(effects, Stop) == ["m-both-8", "m-both-7"]
    assert ids(effects, Detach) == ["m-both-5", "m-both-6"]
    assert ids(effects, Drain) == []
    assert pool.counts().standby == 2


def test_shrinking_drains_and_stops_only_when_the_streams_have_ended() -> None:
    pool = running(3)
    assert pool.reconcile(plan(2), 200.0) == [Drain("m-both-3")]
    assert pool.drained("m-both-3", 260.0) == [Stop("m-both-3", "drained")]
    assert pool.counts().draining == 1  # it still occupies its machine
    pool.stopped("m-both-3", 265.0)
    assert pool.counts() == PoolCounts(serving=2, gone=1, known=3)


def test_a_drain_reported_twice_stops_once() -> None:
    pool = running(2)
    pool.reconcile(plan(1), 200.0)
    assert pool.drained("m-both-2", 210.0) == [Stop("m-both-2", "drained")]
    assert not pool.drained("m-both-2", 211.0)


def test_a_drain_ends_at_its_timeout() -> None:
    pool = running(2, spec=PoolSpec(drain_timeout=600.0))
    pool.reconcile(plan(1), 200.0)
    assert pool.next_deadline() == 800.0
    assert pool.advance(799.9) == []
    assert pool.advance(800.0) == [Stop("m-both-2", "drain timeout")]


def test_a_stop_nobody_confirmed_is_asked_for_again() -> None:
    pool = running(2, spec=PoolSpec(stop_timeout=60.0))
    pool.reconcile(plan(1), 200.0)
    stop = pool.drained("m-both-2", 210.0)
    assert pool.next_deadline() == 270.0
    assert pool.advance(270.0) == stop
    assert pool.next_deadline() == 330.0


def test_what_is_draining_is_taken_back_before_anything_is_started() -> None:
    pool = running(3)
    pool.reconcile(plan(2), 200.0)
    assert pool.reconcile(plan(3), 210.0) == [Attach("m-both-3")]
    assert pool.next_deadline() is None
    pool.reconcile(plan(2), 220.0)
    pool.drained("m-both-3", 230.0)
    assert ids(pool.reconcile(plan(3), 231.0), Attach) == []  # its stop is under way


def test_the_youngest_go_first_and_the_base_last() -> None:
    pool = running(4, spec=PoolSpec(base=2))
    assert ids(pool.reconcile(plan(3), 200.0), Drain) == ["m-both-4"]
    assert ids(pool.reconcile(plan(0), 201.0), Drain) == ["m-both-3"]
    assert pool.counts().serving == 2


def test_a_crash_is_answered_by_a_standby_at_once_and_a_start_behind() -> None:
    pool = running(2, 1)
    assert pool.crashed("m-both-1", 300.0) == [
        Attach("m-both-3"),
        Start("m-both-4", as_standby=True, base=True),
    ]


def test_failed_starts_are_backed_off_and_retried_at_the_deadline() -> None:
    pool = Pool(PoolSpec(backoff=Backoff(first=10.0, cap=100.0)), "m", draw=lambda: 1.0)
    pool.reconcile(plan(1), 0.0)
    now, waits = 0.0, []
    for number in range(1, 7):
        assert pool.failed(f"m-both-{number}", now) == []
        deadline = pool.next_deadline()
        assert deadline is not None
        assert pool.advance(deadline - 0.01) == []
        waits.append(deadline - now)
        now = deadline
        assert len(pool.advance(now)) == 1
    assert waits == [10.0, 20.0, 40.0, 80.0, 100.0, 100.0]


def test_starts_that_fail_together_are_one_step_of_backoff() -> None:
    pool = Pool(PoolSpec(backoff=Backoff(first=10.0)), "m", draw=lambda: 1.0)
    for replica in ids(pool.reconcile(plan(4), 0.0), Start):
        pool.failed(replica, 5.0)
    assert pool.next_deadline() == 15.0
    assert len(pool.advance(15.0)) == 4


def test_a_replica_that_dies_soon_after_its_start_counts_as_a_failed_start() -> None:
    pool = Pool(PoolSpec(backoff=Backoff(first=10.0), settled_after=60.0), "m", draw=lambda: 1.0)
    pool.reconcile(plan(1), 0.0)
    now = 0.0
    for number, wait in enumerate((10.0, 20.0, 40.0), 1):  # ready each time, and yet no reset
        pool.became_ready(f"m-both-{number}", now + 5.0)
        pool.crashed(f"m-both-{number}", now + 10.0)
        assert pool.next_deadline() == now + 10.0 + wait
        now += 10.0 + wait
        pool.advance(now)


def test_a_replica_that_lived_clears_the_failures_before_it() -> None:
    pool = Pool(PoolSpec(backoff=Backoff(first=10.0)), "m", draw=lambda: 1.0)
    pool.reconcile(plan(1), 0.0)
    for now in (0.0, 10.0, 30.0):
        pool.failed(f"m-both-{pool.counts().known}", now)
        pool.advance(pool.next_deadline() or now)
    pool.became_ready("m-both-4", 130.0)
    assert pool.crashed("m-both-4", 500.0) == [Start("m-both-5", as_standby=False, base=True)]
    pool.failed("m-both-5", 510.0)
    assert pool.next_deadline() == 520.0


def test_a_start_that_never_ends_is_stopped_and_counts_as_failed() -> None:
    pool = Pool(PoolSpec(start_timeout=900.0, backoff=Backoff(first=10.0)), "m", draw=lambda: 1.0)
    pool.reconcile(plan(1), 0.0)
    assert pool.next_deadline() == 900.0
    assert pool.advance(900.0) == [Stop("m-both-1", "start timeout")]
    assert pool.advance(910.0) == [Start("m-both-2", as_standby=False, base=True)]


def test_a_replica_that_is_ready_after_it_was_given_up_is_not_used() -> None:
    pool = Pool(PoolSpec(), "m")
    pool.reconcile(plan(2), 0.0)
    pool.reconcile(plan(1), 10.0)
    assert not pool.became_ready("m-both-2", 50.0)
    assert pool.state("m-both-2") is State.DRAINING
    assert pool.start_time() is None


def test_nothing_is_started_beyond_the_limit_draining_included() -> None:
    pool = running(4, spec=PoolSpec(max_replicas=4))
    pool.reconcile(plan(2), 200.0)
    pool.drained("m-both-4", 201.0)
    effects = pool.reconcile(plan(9, 3), 202.0)
    assert effects == [Attach("m-both-3")]
    assert pool.stopped("m-both-4", 210.0) == [Start("m-both-5", as_standby=False)]


def test_start_times_are_learnt_as_their_p95() -> None:
    pool = Pool(PoolSpec(), "m")
    assert pool.start_time() is None
    for number, replica in enumerate(ids(pool.reconcile(plan(20), 0.0), Start), 1):
        pool.became_ready(replica, float(number))
    assert pool.start_time() == 19.0


def test_a_fleet_found_running_is_adopted_and_named_around() -> None:
    pool = Pool(PoolSpec(), "m")
    pool.adopt("m-both-1", 0.0, serving=True)
    pool.adopt("pod-x", 0.0, serving=False)
    pool.adopt("pod-x", 1.0, serving=True)
    assert pool.counts() == PoolCounts(serving=1, standby=1, known=2)
    assert pool.reconcile(plan(2, 1), 5.0) == [
        Attach("pod-x"),
        Start("m-both-2", as_standby=True),
    ]


@pytest.mark.parametrize("event", ["became_ready", "failed", "crashed", "drained", "stopped"])
def test_news_of_an_unknown_replica_changes_nothing(event: str) -> None:
    pool = running(1)
    assert getattr(pool, event)("nobody", 200.0) == ()
    assert pool.counts().known == 1


def test_every_state_can_end_and_nothing_comes_back_from_gone() -> None:
    for state in (State.STARTING, State.STANDBY, State.SERVING, State.DRAINING):
        assert TRANSITIONS[state, Event.CRASHED] is State.GONE
        assert TRANSITIONS[state, Event.STOPPED] is State.GONE
    assert State.GONE not in {start for start, _ in dict(TRANSITIONS)}
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_the_diagram_has_every_row_of_the_table() -> None:
    drawn = set()
    for line in mermaid().splitlines()[1:-1]:
        arrow, events = line.strip().split(": ")
        start, end = arrow.split(" --> ")
        drawn |= {(start, event, end) for event in events.split(", ")}
    assert drawn == {(s or "[*]", e, to) for (s, e), to in TRANSITIONS.items()}


def test_a_setting_that_cannot_work_is_named() -> None:
    with pytest.raises(ConfigError, match=r"pool.base = 9: must be between 0 and max_replicas"):
        PoolSpec(base=9, max_replicas=4)
    with pytest.raises(ConfigError, match=r"pool.drain_timeout = 0: must be > 0"):
        PoolSpec(drain_timeout=0)


def test_nothing_that_was_found_is_drained_before_the_first_plan() -> None:
    pool = Pool(PoolSpec(), "m")
    for replica in ("a", "b"):
        pool.adopt(replica, 0.0, serving=True)
    assert pool.advance(1.0) == []
    assert pool.crashed("b", 2.0) == []
    assert ids(pool.reconcile(plan(2), 3.0), Start) == ["m-both-1"]
    assert pool.state("a") is State.SERVING


def test_start_times_of_an_earlier_life_count_until_there_are_enough_new_ones() -> None:
    first = Pool(PoolSpec(base=0), "m", starts=[30.0, 40.0])
    assert first.start_time() == 40.0
    assert Pool(PoolSpec(), "m", starts=first.starts()).start_time() == 40.0
    many = Pool(PoolSpec(starts_remembered=2), "m", starts=[90.0, 1.0, 2.0])
    assert many.starts() == (1.0, 2.0)
