"""Marks on the functions that can be compiled; unless `compiled` is asked, they are plain Python.

Rule: what is marked calls only what is marked, arithmetic, and `math`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

How = Literal["inner", "called", "entry"]

HOW: Final[dict[Callable[..., Any], How]] = {}
"""Each marked function, and how it is compiled."""


def inner(function: F) -> F:
    """Mark a function that only other compiled functions call: it becomes part of them."""
    HOW[function] = "inner"
    return function


def called(function: F) -> F:
    """Mark one that compiled functions call and do not take in: it stays one copy."""
    HOW[function] = "called"
    return function


def entry(function: F) -> F:
    """Mark one that Python calls."""
    HOW[function] = "entry"
    return function
