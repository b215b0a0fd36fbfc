"""Learnt lengths: careful before anything is known, close afterwards."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.length import OutputLength, PromptLength


def test_before_any_report_a_prompt_is_a_quarter_token_a_byte_and_at_worst_one() -> None:
    least, expected, worst = PromptLength().estimate("m", 400, 400, 2)
    assert expected == 400 / 4 + 4 * 2
    assert worst == 400 + 16 + 8 * 2
    assert least == 400 // 32


def test_before_any_report_wide_scripts_are_taken_to_need_more_tokens_a_byte() -> None:
    lengths = PromptLength()
    ascii_, cyrillic, chinese = (
        lengths.estimate("m", 1200, chars, 1)[1] for chars in (1200, 600, 400)
    )
    assert ascii_ < cyrillic < chinese < 1200
    assert lengths.estimate("m", 1200, 0, 1)[1] == ascii_  # unknown: as ASCII


def test_reported_usage_teaches_the_mean_per_model_and_script() -> None:
    lengths = PromptLength()
    for _ in range(64):
        lengths.observe("m", 1000, 1000, 1, 204)
    assert 2000 <= lengths.estimate("m", 10_000, 10_000, 1)[1] < 2010
    assert lengths.estimate("other", 10_000, 10_000, 1)[1] == 2504
    assert lengths.estimate("m", 10_000, 5_000, 1)[1] == 4004


def test_the_worst_case_is_a_bound_however_easy_the_prompts_before_were() -> None:
    lengths = PromptLength()
    for _ in range(100):
        lengths.observe("m", 480, 480, 1, 195)
    assert lengths.estimate("m", 450, 450, 1)[2] >= 450 + 16


def test_pictures_and_templates_on_short_prompts_teach_nothing_of_text() -> None:
    lengths = PromptLength()
    for tokens in (36, 2500, 9_000_000_000_000):
        lengths.observe("m", 2, 2, 1, tokens)
    least, expected, worst = lengths.estimate("m", 8000, 8000, 1)
    assert least == 250
    assert expected == 2004
    assert worst < 8000 + 600


def test_a_template_with_words_of_its_own_raises_the_worst_case() -> None:
    lengths = PromptLength()
    lengths.observe("m", 10, 10, 1, 334)
    for _ in range(40):
        lengths.observe("m", 1000, 1000, 1, 204)
    assert lengths.estimate("m", 10, 10, 1)[2] == 334


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0.05, 1)), min_size=1, max_size=100))
def test_estimates_are_ordered_and_survive_being_kept(seen: list[tuple[int, float]]) -> None:
    lengths = PromptLength()
    for size, ratio in seen:
        lengths.observe("m", size, size, 1, max(1, int(size * ratio)))
        least, expected, worst = lengths.estimate("m", size, size, 1)
        assert 0 <= least <= expected <= worst
    kept = PromptLength.from_dict(json.loads(json.dumps(lengths.to_dict())))
    for size, _ in seen:
        assert kept.estimate("m", size, size, 3) == lengths.estimate("m", size, size, 3)


def test_answers_are_expected_at_the_75th_percentile_once_three_were_seen() -> None:
    lengths = OutputLength(256)
    for tokens in (10, 20):
        lengths.observe("t", "m", tokens)
    assert lengths.expect("t", "m", None) == 256
    assert lengths.observe("t", "m", 30).mean == 20
    assert lengths.expect("t", "m", None) == 30
    for tokens in (40, 50, 60, 70):
        lengths.observe("t", "m", tokens)
    assert lengths.observe("t", "m", 80).mean == 45
    assert lengths.expect("t", "m", None) == 60
    assert lengths.expect("t", "m", 25) == 25
    assert lengths.expect("u", "m", None) == 256
    assert lengths.expect("u", "m", 5) == 5


def test_old_answers_are_forgotten() -> None:
    lengths = OutputLength(256)
    for tokens in [1000] * 100 + [10] * 64:
        window = lengths.observe("t", "m", tokens)
    assert lengths.expect("t", "m", None) == window.mean == 10


@given(st.lists(st.integers(0, 10_000), max_size=100))
def test_kept_answers_give_the_same_expectation(seen: list[int]) -> None:
    lengths = OutputLength(256)
    for tokens in seen:
        lengths.observe("t", "m", tokens)
    kept = OutputLength.from_dict(json.loads(json.dumps(lengths.to_dict())), 256)
    assert kept.expect("t", "m", None) == lengths.expect("t", "m", None)
    window = sorted(seen[-64:])
    if len(window) >= 8:
        below = sum(x <= lengths.expect("t", "m", None) for x in window)
        assert below >= 0.75 * len(window)
