"""Pointers into arrays, indexed like them; in plain Python the lists themselves.

Compiled they are what `intrinsics` makes of them.
"""

from __future__ import annotations

from typing import Any


def pointer(array: Any) -> Any:
    """Point at an array's first element."""
    return array


def moved(at: Any, count: int) -> Any:
    """Point so many elements further: there are pointers in compiled code only."""
    raise NotImplementedError(f"{count} elements beyond {at!r}")
