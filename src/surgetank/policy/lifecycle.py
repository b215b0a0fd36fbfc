"""A replica's life as data, and the diagram drawn from it.

Rule: every change of state goes through `TRANSITIONS`; an event that has no row there came late
(the replica had moved on), and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """Where a replica is."""

    STARTING = "starting"  # asked for; not able to serve yet
    STANDBY = "standby"  # loaded and warm, gets no new requests (may still finish old streams)
    SERVING = "serving"  # gets requests
    DRAINING = "draining"  # leaving: finishes its streams, then is stopped
    GONE = "gone"


class Event(StrEnum):
    """What happens to it: from the pool's decisions and from the world."""

    STARTED = "started"
    BECAME_READY = "became_ready"
    PROMOTE = "promote"
    DEMOTE = "demote"
    DRAIN = "drain"
    DRAINED = "drained"
    FAILED = "failed"
    STOPPED = "stopped"
    CRASHED = "crashed"


TRANSITIONS: Final = MappingProxyType(
    {
        (None, Event.STARTED): State.STARTING,
        (None, Event.BECAME_READY): State.STANDBY,  # found running when the controller came up
        (
            State.STARTING,
            Event.BECAME_READY,
        ): State.STANDBY,  # promoted in the same breath if needed
        (State.STARTING, Event.DRAIN): State.DRAINING,  # no longer wanted, or took too long
        (State.STARTING, Event.FAILED): State.GONE,
        (State.STARTING, Event.CRASHED): State.GONE,
        (State.STARTING, Event.STOPPED): State.GONE,
        (State.STANDBY, Event.PROMOTE): State.SERVING,
        (State.STANDBY, Event.DRAIN): State.DRAINING,
        (State.STANDBY, Event.CRASHED): State.GONE,
        (State.STANDBY, Event.STOPPED): State.GONE,
        (State.SERVING, Event.DEMOTE): State.STANDBY,
        (State.SERVING, Event.DRAIN): State.DRAINING,
        (State.SERVING, Event.CRASHED): State.GONE,
        (State.SERVING, Event.STOPPED): State.GONE,
        (State.DRAINING, Event.PROMOTE): State.SERVING,  # wanted again before its streams ended
        (State.DRAINING, Event.DRAINED): State.DRAINING,  # streams ended: a stop is asked for
        (State.DRAINING, Event.FAILED): State.GONE,  # a start given up that then failed
        (State.DRAINING, Event.CRASHED): State.GONE,
        (State.DRAINING, Event.STOPPED): State.GONE,
    }
)
"""(state, event) -> state; None is the state before the first."""


def mermaid() -> str:
    """Draw the table as a Mermaid state diagram, for the docs."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), to in TRANSITIONS.items():
        arrows.setdefault((state or "[*]", to), []).append(event)
    lines = [
        f"    {start} --> {end}: {', '.join(events)}" for (start, end), events in arrows.items()
    ]
    return "\n".join(["stateDiagram-v2", *lines, f"    {State.GONE} --> [*]"])
