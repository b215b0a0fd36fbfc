"""What a retry rule waits, by hand-written values; `tests/wire/test_retry_after` asks the SDK."""

from __future__ import annotations

import pytest

from surgetank.policy.retry import NAIVE, NO_RETRIES, POLITE, SDK, Refusal, RetryRule


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999])
def test_naive_waits_1_2_4_8_seconds_whatever_the_draw_and_the_server(draw: float) -> None:
    told = Refusal(429, retry_after=60.0, should_retry=False)
    assert [NAIVE.wait(told, n, draw) for n in range(5)] == [1.0, 2.0, 4.0, 8.0, None]


def test_polite_draws_over_the_whole_wait() -> None:
    waits = [POLITE.wait(Refusal(503), n, 0.75) for n in range(5)]
    assert waits == [0.25, 0.5, 1.0, 2.0, None]
    assert POLITE.wait(Refusal(503), 3, 0.0) == 8.0


def test_polite_comes_back_after_retry_after_and_never_all_at_once() -> None:
    told = Refusal(429, retry_after=5.0)
    assert POLITE.wait(told, 0, 0.0) == 6.0
    assert POLITE.wait(told, 0, 0.999) == pytest.approx(5.001)


def test_the_sdk_comes_back_exactly_when_it_was_told() -> None:
    told = Refusal(429, retry_after=5.0)
    assert {SDK.wait(told, 0, draw) for draw in (0.0, 0.3, 0.999)} == {5.0}


@pytest.mark.parametrize(
    ("refusal", "again"),
    [
        (Refusal(0), True),
        (Refusal(400), False),
        (Refusal(401), False),
        (Refusal(404), False),
        (Refusal(408), True),
        (Refusal(409), True),
        (Refusal(429), True),
        (Refusal(500), True),
        (Refusal(529), True),
        (Refusal(429, should_retry=False), False),
        (Refusal(400, should_retry=True), True),
        (Refusal(429, retry_after=121.0), False),
        (Refusal(429, retry_after=120.0), True),
        (Refusal(429, retry_after=float("inf")), True),
        (Refusal(429, retry_after=-3.0), True),
    ],
)
@pytest.mark.parametrize("rule", [SDK, POLITE])
def test_what_is_tried_again(rule: RetryRule, refusal: Refusal, *, again: bool) -> None:
    assert (rule.wait(refusal, 0, 0.0) is not None) == again
    assert NO_RETRIES.wait(refusal, 0, 0.0) is None


def test_any_number_of_retries_stays_within_the_cap() -> None:
    patient = RetryRule("patient", most=10_000, cap=30.0)
    assert patient.wait(Refusal(503), 9_999, 0.0) == 30.0
