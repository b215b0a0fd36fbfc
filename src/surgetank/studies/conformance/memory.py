"""How a gateway's memory has moved, and what is still called flat.

Flat is: at most 5 % and 4 MiB more. Allocators keep a little of each peak; a leak of 1 KiB a
request shows beyond it after some thousands.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 1.05
_MORE: Final = 4 << 20
_MIB: Final = 1 << 20


def is_flat(before: int, after: int) -> bool:
    """Whether it has not grown. Bytes of RSS."""
    return after <= before * _SHARE + _MORE


def moved(before: int, after: int) -> str:
    """In words: `memory went from 80.1 to 80.3 MiB`."""
    return f"memory went from {before / _MIB:.1f} to {after / _MIB:.1f} MiB"
