"""The published TTFT-gradient rule, answer by answer, and ours on the same inputs."""

from __future__ import annotations

import pytest
from tests.policy import scaling_doc
from tests.policy.published_rule import PublishedRule

from surgetank.policy.scaling import Signal

ANSWERS = (4, 4, 5, 8, 23, 45, 45, 45)


def test_the_published_rule_gives_its_published_answers() -> None:
    rule = PublishedRule()
    assert tuple(rule.evaluate(*row) for row in scaling_doc.INPUTS) == ANSWERS


@pytest.mark.parametrize(
    ("samples", "last", "wanted"),
    [
        ((300.0,), (4, 1300.0, 0.0), 7),  # exactly 200 ms/s is not more than 200: the ratio
        ((300.0,), (4, 1301.0, 0.0), 6),  # above it half as many again, and the ratio is not asked
        ((), (4, 700.0, 17000.0), 5),  # one sample has no gradient; tokens alone
        ((5000.0,), (9, 300.0, 0.0), 9),  # no scale-down
    ],
)
def test_the_published_rule_at_its_edges(
    samples: tuple[float, ...], last: tuple[int, float, float], wanted: int
) -> None:
    rule = PublishedRule()
    for ttft_ms in samples:
        rule.evaluate(last[0], ttft_ms, 0.0)
    assert rule.evaluate(*last) == wanted


def test_ours_grows_earlier_and_not_as_far_and_comes_down_again() -> None:
    rows = scaling_doc.walk()
    table = rows[: len(ANSWERS)]
    ours = [row.plan.replicas for row in table]
    assert ours[3] > table[3].published  # demand is measured at the door
    assert ours[4] < table[4].published  # a TTFT ratio of 2.9 is backlog, not load
    assert ours[5] == table[5].replicas < table[5].published  # TTFT falls: it already works
    assert ours[7] == 45  # not before the delay
    assert rows[-1].plan.replicas == 1
    assert rows[-1].published == 45


def test_every_answer_of_ours_names_a_signal() -> None:
    for row in scaling_doc.walk():
        assert {reason.signal for reason in row.plan.reasons} <= set(Signal)
        assert row.plan.reasons


def test_the_page_shows_the_table_and_the_diagram_of_this_code() -> None:
    page = scaling_doc.DOC.read_text(encoding="utf-8")
    assert page == scaling_doc.written(page), "run: python -m tests.policy.scaling_doc"
