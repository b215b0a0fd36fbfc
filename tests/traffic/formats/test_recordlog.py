"""Our own records, as gateway, load test and simulation write them."""

from __future__ import annotations

import pytest

from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.policy.request import ENDINGS, Kind, Outcome
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reads import listed, names, read


def test_what_a_record_says_is_what_is_read() -> None:
    record = RequestRecord(
        id="r-1",
        tenant="team-a",
        model="qwen",
        session="s-9",
        arrived=1796006832.25,
        first_token=1796006834.25,
        ended=1796006840.75,
        prompt_tokens=1100,
        cached_tokens=512,
        output_tokens=220,
        max_tokens=512,
        outcome=str(Outcome.COMPLETED),
        status=200,
    )
    batch, reader = read(record.to_line().encode() + b"\n")
    assert batch.arrived.tolist() == [1796006832.25]
    assert listed(batch.ttft) == [2.0]
    assert listed(batch.duration) == [8.5]
    assert listed(batch.prompt_tokens) == [1100]
    assert listed(batch.cached_tokens) == [512]
    assert listed(batch.output_tokens) == [220]
    assert listed(batch.max_tokens) == [512]
    assert listed(batch.ended) == [Ended.COMPLETED]
    assert (names(batch.tenant), names(batch.model), names(batch.session)) == (
        ["team-a"],
        ["qwen"],
        ["s-9"],
    )
    assert reader.arrival_from == "start"


def test_samples_of_the_fleet_are_ignored_even_as_the_first_line() -> None:
    sample = FleetSample(t=1796006832.0, model="qwen").to_line()
    record = RequestRecord(id="r", arrived=1796006833.0).to_line()
    batch, reader = read(f"{sample}\n{record}\n{sample}\n".encode())
    assert batch.arrived.tolist() == [1796006833.0]
    assert reader.account.ignored == {"fleet sample": 2}
    assert listed(batch.prompt_tokens) == [-1]  # unknown, not 0


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_ends_as_its_kind_says(outcome: Outcome) -> None:
    record = RequestRecord(id="r", arrived=1796006833.0, outcome=str(outcome))
    batch, _ = read(record.to_line().encode())
    expected = {
        Kind.COMPLETED: Ended.COMPLETED,
        Kind.REFUSED: Ended.REFUSED,
        Kind.FAILED: Ended.FAILED,
        Kind.ABANDONED: Ended.ABANDONED,
    }
    assert listed(batch.ended) == [expected[ENDINGS[outcome].kind]]


def test_a_simulations_records_count_from_its_own_start() -> None:
    lines = [RequestRecord(id=str(i), arrived=i / 4).to_line() for i in range(4)]
    batch, reader = read("\n".join(lines).encode())
    assert batch.arrived.tolist() == [0.0, 0.25, 0.5, 0.75]
    assert reader.arrival_from == "relative start"


def test_a_torn_or_wrong_line_is_counted_and_later_fields_are_ignored() -> None:
    good = RequestRecord(id="a", arrived=1796006833.0).to_line()
    newer = good.replace('"v":1', '"v":2,"colour":"blue"')
    batch, reader = read(
        f'{good}\n{good[:20]}\n{newer}\n{{"v":1,"id":"b","arrived":"x"}}\n'.encode()
    )
    assert len(batch) == 2
    assert [b.line for b in reader.account.bad] == [2, 4]
