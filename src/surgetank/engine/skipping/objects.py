"""The state as Python objects, for the functions as they are written: no numpy, no numba.

A replica that streams its tokens spends 20 us on each, and makes do with these: a stretch of steps
costs what one step costs the specification, and nothing has to be loaded at the start.
"""

from __future__ import annotations

from typing import Any

from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import layout


class Engine:
    """What one engine does: the fields of layout.ENGINE, by attribute or by name."""

    __slots__ = tuple(name for name, _ in layout.ENGINE)

    def __init__(self, profile: EngineProfile) -> None:
        for name, kind in layout.ENGINE:
            setattr(self, name, 0.0 if kind == "f8" else 0)
        for name, value in layout.settings(profile).items():
            setattr(self, name, value)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class Slot:
    """One sequence, or none: the fields of layout.SLOT, by attribute or by name."""

    __slots__ = tuple(name for name, _ in layout.SLOT)

    def __init__(self, following: int) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)
        self.stalled = -1
        self.next = following

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class Told:
    """One event: the fields of layout.EVENT."""

    __slots__ = tuple(name for name, _ in layout.EVENT)


def engines(profile: EngineProfile) -> tuple[list[Engine], list[int], list[int], list[Told]]:
    """Make an idle engine: its state, heap, phases, and room for the events of one step."""
    made = Engine(profile)
    heap = [0] * made["most_running"]
    return (
        [made],
        heap,
        [0] * profile.block_size,
        [Told() for _ in range(layout.most_events(profile))],
    )


def slots(count: int) -> list[Slot]:
    """Make `count` free slots, and slot 0."""
    return [Slot((s + 1) % (count + 1)) for s in range(count + 1)]


def grow(slots: list[Slot], more: int) -> None:
    """Add free slots in place, which are taken first."""
    count = len(slots)
    slots += [Slot(s + 1) for s in range(count, count + more)]
    slots[-1].next = slots[0].next
    slots[0].next = count


def told(events: list[Any], count: int) -> list[tuple[int, int, int, int]]:
    """List the first so many events: kind, slot, request, tokens."""
    return [(e.kind, e.slot, e.request, e.tokens) for e in events[:count]]
