"""Python literals are read, never evaluated."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.traffic.formats import literals

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=6), st.integers()), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_repr_writes_is_read_back(value: Any) -> None:
    assert literals.parse(repr(value)) == value


@given(st.text("{}[]()'\",:0123456789.eE+-TrueFalsNo \\nxub", max_size=40))
def test_any_text_is_a_literal_or_a_value_error(text: str) -> None:
    try:
        literals.parse(text)
    except ValueError:
        return


def test_tuples_are_lists_and_nan_is_nan() -> None:
    assert literals.parse("(1, 'a', (2.5,), ())") == [1, "a", [2.5], []]
    assert math.isnan(literals.parse("{'x': nan}")["x"])


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "{'t': 1 + 1}",
        "{'t': open('x')}",
        "[x for x in (1,)]",
        "'a' 'b'",
        "1_000",
        "{[1]: 2}",
        "{'t'}",
        "f'{1}'",
        "[" * 10_000,
        "",
    ],
)
def test_what_would_need_evaluation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"literal|colon|key|nested|at the end"):
        literals.parse(text)
