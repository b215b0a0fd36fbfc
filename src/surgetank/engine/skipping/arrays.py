"""The state as numpy's arrays, for the compiled functions."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import layout

Ints = NDArray[np.int64]
Records = NDArray[Any]  # of ENGINE, SLOT, EVENT or TOLD

ENGINE: Final = np.dtype(list(layout.ENGINE), align=True)
SLOT: Final = np.dtype(list(layout.SLOT), align=True)
EVENT: Final = np.dtype(list(layout.EVENT))
TOLD: Final = np.dtype(list(layout.TOLD))


def engines(profile: EngineProfile, count: int = 1) -> tuple[Records, Ints, Ints, Records]:
    """Make idle engines: their records, heaps, phases, and room for the events of one step."""
    made = np.zeros(count, ENGINE)
    values = layout.settings(profile)
    for field, value in values.items():
        made[field] = value
    heaps = np.zeros((count, int(values["most_running"])), np.int64)
    phases = np.zeros((count, profile.block_size), np.int64)
    return made, heaps, phases, np.zeros(layout.most_events(profile), EVENT)


def slots(count: int) -> Records:
    """Make `count` free slots, and slot 0."""
    made = np.zeros(count + 1, SLOT)
    made["stalled"] = -1
    made["next"] = np.arange(1, count + 2)
    made["next"][-1] = 0
    return made


def grow(slots: Records, more: int) -> None:
    """Add free slots in place, which are taken first. Nobody may hold a view of the old ones."""
    count = len(slots)
    slots.resize(count + more, refcheck=False)  # moves pages, where copying would double them
    added = slots[count:]
    added["stalled"] = -1
    added["next"] = np.arange(count + 1, count + more + 1)
    added["next"][-1] = slots[0]["next"]
    slots[0]["next"] = count


def told(events: Records, count: int) -> list[tuple[int, int, int, int]]:
    """List the first so many events: kind, slot, request, tokens."""
    return events[:count].tolist()  # type: ignore[no-any-return]  # numpy cannot tell
