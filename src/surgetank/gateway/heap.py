"""What the C library does with freed memory.

Rule: what one large request freed is there for the next. By default glibc gives a block of 128 KB
back to the kernel at once, and takes pages anew, each with a fault, for the next: half of the
processor time of a request with a prompt of 400 KB went into that.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_KEPT: Final = 4 << 20  # bytes of a block; larger ones are rare, and given back at once
_MOST_KEPT: Final = 64 << 20  # bytes at the heap's end


def keep_freed_memory() -> None:
    """Have freed memory kept, up to 64 MiB of it; without glibc nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT)
