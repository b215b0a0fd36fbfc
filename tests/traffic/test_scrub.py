"""What leaves the building: columns of a whitelist, names as keyed hashes, times without a date."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.errors import InputError
from surgetank.policy.record import RequestRecord
from surgetank.traffic.scrub import RARE, WEEK, Scrubber
from surgetank.traffic.trace import UNKNOWN, Batch, Ended, Labels

KEY = b"sixteen bytes ok"
T = 1_796_006_832.412


def batch() -> Batch:
    return Batch(
        arrived=np.array([T, T + 0.5, T + 0.75]),
        prompt_tokens=np.array([120, UNKNOWN, 0]),
        output_tokens=np.array([7, 8, UNKNOWN]),
        duration=np.array([2.5, np.nan, 1.0]),
        ttft=np.array([0.25, np.nan, np.nan]),
        ended=np.array([Ended.COMPLETED, Ended.REFUSED, Ended.UNKNOWN], np.int8),
        tenant=Labels.of(["Ärzte GmbH", "bob@example.com", None]),
        model=Labels.of(["llama", "llama", "llama"]),
        session=Labels.of(["bob@example.com", None, "s-1"]),
    )


def records(scrubber: Scrubber, of: Batch) -> list[RequestRecord]:
    return [RequestRecord.from_line(line) for line in scrubber.lines(of).splitlines()]


def test_figures_stay_and_names_become_hashes() -> None:
    first, second, third = records(Scrubber(KEY, shift=0), batch())
    assert (first.arrived, second.arrived, third.arrived) == (T, T + 0.5, T + 0.75)
    assert (first.prompt_tokens, second.prompt_tokens, third.prompt_tokens) == (120, None, 0)
    assert (first.output_tokens, third.output_tokens) == (7, None)
    assert (first.first_token, first.ended, second.ended) == (T + 0.25, T + 2.5, None)
    assert (first.outcome, second.outcome, third.outcome) == ("completed", "queue_full", "")
    assert {first.model, second.model, third.model} == {"llama"}
    assert (first.id, second.id, third.id) == ("1", "2", "3")
    assert third.tenant == ""
    assert first.tenant.startswith("t-")
    assert len(first.tenant) == 18


@pytest.mark.parametrize("shift", [0.0, None, -86400.0])
def test_no_name_of_a_person_is_in_what_is_written(shift: float | None) -> None:
    written = Scrubber(KEY, shift=shift).lines(batch()).decode()
    assert "rzte" not in written
    assert "bob" not in written
    assert '"s-1"' not in written


def test_a_name_has_one_stand_in_per_key_and_column() -> None:
    one, two = Scrubber(KEY), Scrubber(KEY)
    assert one.hash("tenant", "a") == two.hash("tenant", "a")
    assert one.hash("tenant", "a")[2:] != one.hash("session", "a")[2:]
    assert one.hash("tenant", "a") != Scrubber(b"another key of 16").hash("tenant", "a")


def test_what_is_kept_and_hashed_is_the_user_s_choice() -> None:
    first, *_ = records(Scrubber(KEY, keep=["tenant"], hashed=["model"]), batch())
    assert first.tenant == "Ärzte GmbH"
    assert first.model.startswith("m-")
    assert first.session.startswith("s-")


@pytest.mark.parametrize(
    ("keep", "hashed", "said"),
    [
        (["prompt"], [], "'prompt' is no column of names"),
        (["tenant"], ["tenant"], "both kept and hashed"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(keep: list[str], hashed: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Scrubber(KEY, keep=keep, hashed=hashed)


def test_a_short_key_is_refused_and_not_told() -> None:
    with pytest.raises(InputError, match="has 5 bytes") as caught:
        Scrubber(b"short")
    assert "short" not in str(caught.value)


@given(st.lists(st.floats(1.7e9, 1.9e9), min_size=1, max_size=20))
def test_a_shift_by_whole_weeks_keeps_every_gap_exactly(stamps: list[float]) -> None:
    arrived = np.array(stamps)
    shifted = np.array([r.arrived for r in records(Scrubber(KEY), Batch(arrived))])
    moved = arrived - shifted
    assert moved[0] % WEEK == 0
    assert moved[0] > 0
    assert np.array_equal(np.diff(arrived), np.diff(shifted))


def test_seconds_from_a_log_s_own_origin_are_not_shifted() -> None:
    assert records(Scrubber(KEY), Batch(np.array([0.5])))[0].arrived == 0.5


def test_one_shift_holds_for_the_whole_export() -> None:
    scrubber = Scrubber(KEY)
    first = records(scrubber, Batch(np.array([T])))[0]
    later = records(scrubber, Batch(np.array([T + 10])))[0]
    assert later.arrived - first.arrived == pytest.approx(10, abs=1e-6)
    assert (first.id, later.id) == ("1", "2")


def test_what_remains_is_listed_with_the_rare_names() -> None:
    scrubber = Scrubber(KEY)
    frequent = replace(batch(), tenant=Labels.of(["big", "big", "big"]))
    for _ in range(RARE):
        scrubber.lines(frequent)
    scrubber.lines(batch())
    told = {row.column: row for row in scrubber.remains()}
    assert (told["id"].fate, told["arrived"].fate) == ("numbered anew", "shifted")
    assert (told["tenant"].fate, told["tenant"].distinct, told["tenant"].rare) == ("hashed", 3, 2)
    assert (told["model"].fate, told["model"].distinct, told["model"].rare) == ("kept", 1, 0)
    assert told["prompt_tokens"].rows == 2 * (RARE + 1)
    assert told["duration"].rows == 2 * (RARE + 1)
    assert "max_tokens" not in told
