"""The bound that the system puts on a process's file descriptors."""

from __future__ import annotations

import resource


def make_room(wanted: int) -> int:
    """Raise the soft limit of open files to `wanted`, or as far as it goes; return it then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # macOS has a further bound below an infinite hard limit
        return soft
    return raised
