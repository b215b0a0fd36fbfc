"""The experiment of the quiet tenant beside a pulsing one, one period of it."""

from __future__ import annotations

import pytest

from surgetank.studies.attainment import TINY
from surgetank.studies.victim import VOID_ABOVE, Figures, compare


@pytest.fixture(scope="module")
def figures() -> dict[str, Figures]:
    names = ("passthrough", "static")
    return {f.policy: f for f in compare(TINY, seed=0, periods=1, policies=names)}


def test_a_pass_through_leaves_the_victim_next_to_nothing(figures: dict[str, Figures]) -> None:
    assert figures["passthrough"].victim <= VOID_ABOVE


def test_the_gateway_keeps_the_victim_whole_and_wastes_nothing(
    figures: dict[str, Figures],
) -> None:
    kept = figures["static"]
    assert kept.victim >= 0.99
    assert kept.noisy_work >= 1.0
    assert kept.total >= 0.95
    assert kept.wasted == 0
