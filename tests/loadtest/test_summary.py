"""Percentiles and counts of a run: what counts as infinite, and what is conserved."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.loadtest.outcome import kind_of, outcome_of_status
from surgetank.loadtest.summary import (
    Percentiles,
    by_tenant,
    nearest_rank,
    percentiles,
    summarize,
)
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import ENDINGS, Kind, Outcome

seconds = st.floats(min_value=0, max_value=100, allow_nan=False)
outcomes = st.sampled_from([outcome.value for outcome in Outcome])
records = st.lists(
    st.builds(
        RequestRecord,
        id=st.just("r"),
        tenant=st.sampled_from(["a", "b", "c"]),
        scheduled=st.just(1000.0),
        first_token=st.none() | seconds.map(lambda s: 1000.0 + s),
        output_tokens=st.none() | st.integers(0, 500),
        outcome=outcomes,
    ),
    max_size=60,
)


def record(
    outcome: Outcome, ttft: float | None, tokens: int = 0, tenant: str = "t"
) -> RequestRecord:
    return RequestRecord(
        "r",
        tenant=tenant,
        scheduled=100.0,
        first_token=None if ttft is None else 100.0 + ttft,
        output_tokens=tokens,
        outcome=outcome.value,
    )


@pytest.mark.parametrize(
    ("values", "quantile", "expected"),
    [
        ((15, 20, 35, 40, 50), 0.05, 15),
        ((15, 20, 35, 40, 50), 0.30, 20),
        ((15, 20, 35, 40, 50), 0.40, 20),
        ((15, 20, 35, 40, 50), 0.50, 35),
        ((15, 20, 35, 40, 50), 1.00, 50),
        (tuple(range(1, 21)), 0.95, 19),
        (tuple(range(1, 101)), 0.99, 99),
        ((7,), 0.0, 7),
    ],
)
def test_nearest_rank_gives_the_textbooks_values(
    values: Sequence[float], quantile: float, expected: float
) -> None:
    assert nearest_rank(values, quantile) == expected


@given(st.lists(seconds, min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
@settings(deadline=None)
def test_nearest_rank_is_the_smallest_value_that_covers_its_part(
    values: list[float], quantile: float
) -> None:
    found = nearest_rank(sorted(values), quantile)
    needed = quantile * len(values) - 1e-6
    assert found in values
    assert sum(v <= found for v in values) >= needed
    assert all(sum(v <= other for v in values) < needed for other in values if other < found)


@given(records)
@settings(deadline=None)
def test_every_request_is_counted_once_and_order_is_nothing(rows: list[RequestRecord]) -> None:
    total = summarize(rows)
    assert total.requests == len(rows)
    assert total.requests == total.completed + total.refused + total.abandoned + total.failed
    assert total == summarize(reversed(rows))
    assert 0 <= total.wasted_tokens <= total.output_tokens
    known = [v for v in (total.ttft.p50, total.ttft.p95, total.ttft.p99) if v is not None]
    assert known == sorted(known)
    if total.ttft.p50 is None:
        assert total.ttft == Percentiles(None, None, None)


@given(records)
@settings(deadline=None)
def test_tenants_add_up_to_the_whole(rows: list[RequestRecord]) -> None:
    total, tenants = summarize(rows), by_tenant(rows)
    for name in ("requests", "completed", "refused", "abandoned", "failed", "wasted_tokens"):
        assert sum(getattr(s, name) for s in tenants.values()) == getattr(total, name)


@given(records, st.sampled_from([o for o, e in ENDINGS.items() if e.kind is Kind.FAILED]))
@settings(deadline=None)
def test_failing_more_never_makes_a_percentile_better(
    rows: list[RequestRecord], outcome: Outcome
) -> None:
    before = summarize(rows).ttft
    after = summarize([*rows, record(outcome, 0.0)]).ttft
    for name in ("p50", "p95", "p99"):
        was, now = getattr(before, name), getattr(after, name)
        assert (math.inf if now is None else now) >= (
            math.inf if was is None and rows else was or 0
        )


def test_a_stream_that_failed_after_its_first_token_counts_as_never() -> None:
    rows = [record(Outcome.COMPLETED, 0.1, 10), record(Outcome.UPSTREAM_ERROR, 0.1, 7)]
    total = summarize(rows)
    assert total.ttft.p50 == pytest.approx(0.1)
    assert total.ttft.p95 is None
    assert total.wasted_tokens == 7
    assert total.output_tokens == 17


def test_a_percentile_is_none_exactly_when_it_falls_on_a_request_that_was_never_served() -> None:
    served = [record(Outcome.COMPLETED, 0.2) for _ in range(96)]
    refused = [record(Outcome.QUEUE_FULL, None) for _ in range(4)]
    ttft = summarize([*served, *refused]).ttft
    assert ttft.p50 == pytest.approx(0.2)
    assert ttft.p95 == pytest.approx(0.2)
    assert ttft.p99 is None


def test_a_client_that_left_after_its_first_token_keeps_that_time() -> None:
    rows = [record(Outcome.ABANDONED, 0.3, 5), record(Outcome.ABANDONED, None)]
    total = summarize(rows)
    assert total.ttft.p50 == pytest.approx(0.3)
    assert total.ttft.p99 is None
    assert total.wasted_tokens == 5


def test_no_requests_have_no_percentiles() -> None:
    assert percentiles([]) == Percentiles(None, None, None)
    assert summarize([]).requests == 0


def test_a_record_without_an_outcome_of_the_closed_set_is_an_error() -> None:
    with pytest.raises(ValueError, match="outcome = 'running'"):
        summarize([RequestRecord("r", outcome="running")])


@pytest.mark.parametrize("outcome", [o for o, e in ENDINGS.items() if e.code])
def test_every_error_code_of_ours_comes_back_as_the_same_kind(outcome: Outcome) -> None:
    ending = ENDINGS[outcome]
    body = b'{"error":{"code":"%s","type":"x"}}' % ending.code.encode()
    found, reason = outcome_of_status(ending.status, body)
    assert kind_of(found.value) is ending.kind
    assert reason == f"{ending.status} {ending.code}"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"x"', b"{", b'{"error":1}', b'{"error":{"code":{}}}']
)
def test_an_error_body_of_any_shape_is_judged_by_its_status(body: bytes) -> None:
    assert outcome_of_status(500, body) == (Outcome.UPSTREAM_ERROR, "500")
    assert outcome_of_status(429, body) == (Outcome.ENGINE_BUSY, "429")
