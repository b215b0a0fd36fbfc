"""The scrape parser: equal to prometheus_client's on real text, and tolerant of any other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from surgetank.adapters.exposition import Sample, samples

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
NAME = "engine:waiting"


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_every_sample_of_a_real_engine_reads_as_prometheus_reads_it(engine: str) -> None:
    text = (CAPTURES / engine / "metrics_after_load.txt").read_text()
    expected = [
        # It adds _total to a counter that has none: that is not the name on the wire.
        (sample.name if sample.name in text else family.name, sample.labels, float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    found = [tuple(s) for s in samples(text, {name for name, _, _ in expected})]
    assert len(expected) > 10
    assert sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        (f"{NAME} 3", {}, 3.0),
        (f"{NAME}{{}} 3", {}, 3.0),
        (
            f"  {NAME}\t{{ engine = '0' }}".replace("'", '"') + " 1e2 1700000000",
            {"engine": "0"},
            100,
        ),
        (
            f'{NAME}{{a="x}} 9",b="q\\"\\\\\\n"}} 4 # {{t="1"}} 0.5',
            {"a": "x} 9", "b": 'q"\\\n'},
            4.0,
        ),
        (f'{NAME}{{a="1",}} 5\r', {"a": "1"}, 5.0),
        (f"{NAME} +Inf", {}, math.inf),
    ],
)
def test_labels_timestamps_and_exemplars_are_understood(
    line: str, labels: dict[str, str], value: float
) -> None:
    assert list(samples(f"# HELP {NAME} x\n{line}\n", {NAME})) == [Sample(NAME, labels, value)]


@pytest.mark.parametrize(
    "line",
    [NAME, f"{NAME} many", f'{NAME}{{engine="0', f'{NAME}{{engine="0" 4', f"{NAME}{{engine=0}} 4"],
)
def test_a_wanted_line_that_cannot_be_read_is_nan_and_not_left_out(line: str) -> None:
    (sample,) = samples(line, {NAME})
    assert math.isnan(sample.value)


def test_a_longer_name_is_another_metric() -> None:
    assert list(samples(f"{NAME}_by_reason 3\n{NAME}:x 3\n", {NAME})) == []


fragments = st.sampled_from(
    [NAME, "{", "}", '"', "\\", "=", ",", " ", "\n", "#", "engine", "1", "NaN", "-", "e", "\0", "é"]
)


@given(st.one_of(st.text(), st.lists(fragments).map("".join)))
def test_no_text_raises(text: str) -> None:
    for sample in samples(text, {NAME}):
        assert sample.name == NAME
