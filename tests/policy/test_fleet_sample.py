"""The fleet's samples: a codec beside the request records', in the same file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.adapters.records import read_records, read_samples
from surgetank.policy.record import FleetSample, RequestRecord, parse

COUNT = st.integers(0, 10_000)
SECONDS = st.floats(0, 1e6)
SAMPLES = st.builds(
    FleetSample,
    t=st.floats(0, 4e9),
    model=st.text(),
    role=st.sampled_from(["both", "prefill", "decode"]),
    starting=COUNT,
    refilling=COUNT,
    standby=COUNT,
    serving=COUNT,
    draining=COUNT,
    wanted=st.none() | COUNT,
    queued=st.none() | COUNT,
    queue_age=st.none() | SECONDS,
    running=st.none() | COUNT,
    kv=st.none() | st.floats(0, 1),
    preemptions=st.none() | COUNT,
    started=COUNT,
    failed=COUNT,
    crashed=COUNT,
    start_times=st.lists(SECONDS).map(tuple),
)


@given(SAMPLES)
def test_a_sample_reads_back_as_it_was_written(sample: FleetSample) -> None:
    line = sample.to_line()
    assert "\n" not in line
    assert FleetSample.from_line(line) == sample
    assert parse(line) == sample


def test_what_is_zero_or_unknown_is_left_out() -> None:
    line = FleetSample(1.5, "m", serving=2, queued=0).to_line()
    assert json.loads(line) == {
        "v": 1,
        "kind": "fleet",
        "t": 1.5,
        "model": "m",
        "serving": 2,
        "queued": 0,
    }


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"kind":"fleet","model":"m"}', "t is missing"),
        ('{"kind":"fleet","t":1}', "model is missing"),
        ('{"kind":"fleet","t":1,"model":"m","serving":"two"}', "serving = 'two': expected int"),
        ('{"kind":"fleet","t":1,"model":"m","serving":true}', "serving = True: expected int"),
        ('{"kind":"fleet","t":1,"model":"m","start_times":[true]}', "expected numbers"),
        ("[]", "expected a JSON object"),
    ],
)
def test_a_wrong_sample_says_what_is_wrong(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(line)


def test_one_file_holds_both_kinds_and_each_reader_takes_its_own(tmp_path: Path) -> None:
    record, sample = RequestRecord("r1", arrived=1.0), FleetSample(2.0, "m")
    path = tmp_path / "records.jsonl"
    path.write_text(f"{record.to_line()}\n{sample.to_line()}\n{{torn\n")
    records, samples = read_records(path), read_samples(path)
    assert list(records) == [record]
    assert list(samples) == [sample]
    assert (records.read, records.bad) == (1, 1)
    assert (samples.read, samples.bad) == (1, 1)
