"""The quiet tenant beside a pulsing one over HTTP: what it is made of, and one period of it."""

from __future__ import annotations

import pytest
import uvloop

from surgetank.errors import InputError
from surgetank.policy.tenant import KeyLimits
from surgetank.studies.live_victim import PLAIN, SURGETANK, WAYS, live
from surgetank.studies.victim import NOISY, VICTIM, VOID_ABOVE, equal_share


def test_a_policy_that_no_setting_says_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"round-robin: live there are passthrough, fifo-cap"):
        uvloop.run(live(9.0, seed=0, names=("round-robin",)))


def test_the_buckets_are_half_of_the_capacity_for_each_of_two_in_one_line() -> None:
    (both,) = WAYS["request-bucket"](9.3).tenants
    assert both.keys == (
        KeyLimits(VICTIM, requests_per_minute=279),
        KeyLimits(NOISY, requests_per_minute=279),
    )


@pytest.mark.parametrize(
    ("done", "asked", "share"),
    [
        ((50.0, 50.0), (80.0, 200.0), 50.0),  # both ask for more than half
        ((10.0, 90.0), (20.0, 200.0), 80.0),  # the victim asks for 20 of 100
        ((10.0, 30.0), (10.0, 25.0), 25.0),  # all that it asked for
    ],
)
def test_a_share_is_half_and_what_the_victim_leaves(
    done: tuple[float, float], asked: tuple[float, float], share: float
) -> None:
    assert equal_share(done, asked) == share


@pytest.mark.heavy  # six processes and two minutes
def test_over_http_the_victim_is_kept_and_each_request_has_one_answer() -> None:
    plain, kept = uvloop.run(live(9.3, seed=0, max_lag=1.0))
    assert [one.figures.policy for one in (plain, kept)] == [PLAIN, SURGETANK]
    assert plain.figures.victim <= VOID_ABOVE
    assert plain.figures.wasted == 0
    assert len(plain.outputs) == len(plain.sent.records) == len(kept.sent.records)
    assert kept.outputs.items() <= plain.outputs.items()
    assert kept.figures.refused == len(kept.sent.records) - len(kept.outputs) > 0
    assert kept.figures.victim > 2 * plain.figures.victim
    assert kept.figures.wasted == 0
