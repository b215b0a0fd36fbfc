"""Columns: joined, cut and sorted without inventing a value."""

from __future__ import annotations

import numpy as np
import pytest

from surgetank.traffic.trace import UNKNOWN, Batch, Labels, Trace, concatenate


def test_labels_are_numbered_in_order_of_appearance_and_empty_is_unknown() -> None:
    labels = Labels.of(["b", "a", "", "b", None])
    assert labels.names == ("b", "a")
    assert labels.codes.tolist() == [0, 1, UNKNOWN, 0, UNKNOWN]


def test_joined_labels_keep_their_names_whatever_their_codes_were() -> None:
    one = Batch(np.array([0.0, 1.0]), tenant=Labels.of(["x", "y"]))
    two = Batch(np.array([2.0, 3.0, 4.0]), tenant=Labels.of(["y", "", "z"]))
    tenant = concatenate([one, two]).tenant
    assert tenant is not None
    assert [tenant.names[c] if c >= 0 else "" for c in tenant.codes] == ["x", "y", "y", "", "z"]


def test_a_column_that_only_one_part_has_is_a_gap_in_the_other() -> None:
    one = Batch(np.array([0.0]), prompt_tokens=np.array([7]))
    two = Batch(np.array([1.0]), duration=np.array([0.5]))
    joined = concatenate([one, two])
    assert joined.prompt_tokens is not None
    assert joined.duration is not None
    assert joined.prompt_tokens.tolist() == [7, UNKNOWN]
    assert np.isnan(joined.duration[0])
    assert joined.duration[1] == 0.5
    assert joined.ttft is None


def test_a_trace_is_sorted_and_equal_stamps_keep_the_order_of_the_log() -> None:
    trace = Trace.of([Batch(np.array([5.0, 3.0, 5.0, 1.0]), prompt_tokens=np.array([1, 2, 3, 4]))])
    assert trace.batch.arrived.tolist() == [1.0, 3.0, 5.0, 5.0]
    assert trace.batch.prompt_tokens is not None
    assert trace.batch.prompt_tokens.tolist() == [4, 2, 1, 3]
    assert trace.relative().batch.arrived.tolist() == [0.0, 2.0, 4.0, 4.0]
    assert trace.span == 4.0


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt_tokens has 1 rows: must be 2"):
        Batch(np.array([0.0, 1.0]), prompt_tokens=np.array([1]))


def test_no_rows_are_a_trace_too() -> None:
    assert len(Trace.of([])) == 0
    assert Trace.of([]).span == 0.0
