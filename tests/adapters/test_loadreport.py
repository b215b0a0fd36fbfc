"""The load on an answer's head, in the forms that vLLM and Triton write, and in none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.adapters.loadreport import read_load
from surgetank.mockengine.answers import load_header
from surgetank.policy.replica import Signals

VALUES = {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3.0}


@pytest.mark.parametrize("form", ["JSON", "TEXT"])
def test_both_forms_of_vllm_say_the_same(form: str) -> None:
    header = load_header(form, VALUES)
    assert header is not None
    assert read_load(header[1], 7.0) == Signals(7.0, waiting=3, kv_used=0.25)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # As Triton's user guide writes them.
        (
            b"TEXT cpu_utilization=0.3, eps=1, named_metrics.kv_cache_utilization=0.4",
            Signals(1.0, kv_used=0.4),
        ),
        (b'JSON {"named_metrics": {"kv_cache_utilization": 1.5}}', Signals(1.0, kv_used=1.0)),
        # vLLM's name before 0.12.
        (b'json {"named_metrics": {"gpu_cache_usage_perc": 0}}', Signals(1.0, kv_used=0.0)),
        (b'JSON {"named_metrics": {"num_requests_waiting": "nan"}}', None),
        (b'JSON {"named_metrics": {"num_requests_waiting": -1}}', None),
        (b'JSON {"cpu_utilization": 0.5}', None),
        (b"JSON [1, 2]", None),
        (b"JSON {", None),
        (b"TEXT named_metrics.num_requests_waiting", None),
        (b"BIN CgsKCQ==", None),
        (b"", None),
        (b"JSON " + b"[" * 5000, None),
    ],
)  # fmt: skip
def test_what_is_not_told_is_unknown_and_never_zero(value: bytes, expected: Signals | None) -> None:
    assert read_load(value, 1.0) == expected


@given(st.binary(max_size=200), st.sampled_from([b"JSON ", b"TEXT ", b""]))
def test_no_header_raises(value: bytes, form: bytes) -> None:
    said = read_load(form + value, 1.0)
    assert said is None or said.kv_used is None or 0 <= said.kv_used <= 1
