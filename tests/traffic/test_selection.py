"""A part of a log."""

from __future__ import annotations

import numpy as np

from surgetank.traffic.selection import Selection
from surgetank.traffic.trace import Batch, Labels

ROWS = Batch(np.array([1.0, 5.0, 3.0, np.nan]), tenant=Labels.of(["a", "b", None, "a"]))


def test_without_a_wish_all_rows_stay_as_they_are() -> None:
    assert Selection().take(ROWS) is ROWS


def test_rows_of_a_tenant_are_taken() -> None:
    taken = Selection(tenants=frozenset({"a"}))
    assert taken.take(ROWS).arrived[0] == 1.0
    assert len(taken.take(ROWS)) == 2
    assert taken.seen == 8
    assert taken.names == {"a", "b"}


def test_the_start_belongs_to_a_stretch_and_the_end_does_not() -> None:
    taken = Selection(start=1.0, end=5.0)
    assert list(taken.take(ROWS).arrived) == [1.0, 3.0]
    assert (taken.first, taken.last) == (1.0, 5.0)


def test_a_log_without_tenants_has_none_of_them() -> None:
    taken = Selection(tenants=frozenset({"a"}))
    assert len(taken.take(Batch(np.array([1.0])))) == 0
    assert taken.seen == 1
    assert taken.names == set()
