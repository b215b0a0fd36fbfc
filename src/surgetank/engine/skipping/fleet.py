"""Whole traces through one or many engines, without Python in between.

Engines do not know of each other, so each is run only when something is sent to it - but the router
that looks at them (least outstanding) needs them all as of now, and asks a winner tree whose steps
are due first, and another who has the least in flight (a tie goes to who was chosen longer ago).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.skipping import inputs
from surgetank.engine.skipping.layout import FINISHED, FIRST_TOKEN, PREEMPTED, Ints, Records
from surgetank.engine.skipping.marks import called, entry, inner
from surgetank.engine.skipping.pointers import moved, pointer

Floats = NDArray[np.float64]
Small = NDArray[np.int32]


class Fleet(NamedTuple):
    """The engines' arrays (layout.py), or pointers to them."""

    engines: Records
    slots: Records
    heaps: Ints
    phases: Ints
    events: Records


class Asked(NamedTuple):
    """One row a request, by arrival. `priority`, `cached` and `leavers` may be empty."""

    arrived: Floats
    prompt: Small
    output: Small
    priority: Ints
    cached: Small
    abort_at: Floats
    leavers: Ints  # rows in order of abort_at


class Told(NamedTuple):
    """What became of each request, NaN for what did not happen; or pointers to it."""

    first_token_at: Floats
    finished_at: Floats
    preempted: Small
    replica: Small  # -1: shed, or rejected
    slot: Small  # while in flight; empty when nobody leaves
    leaving: int  # how many leave early


class Trees(NamedTuple):
    """Winner trees over the engines; empty unless the router looks at them."""

    due: Ints
    load: Ints


@inner
def update(engines: Records, trees: Trees, leaves: int, e: int) -> None:
    """Play again the games of engine e: whose steps are due first, who has the least in flight.

    -1 stands for no engine.
    """
    due, load = trees.due, trees.load
    node = (leaves + e) >> 1
    while node:
        left, right = due[2 * node], due[2 * node + 1]
        due[node] = right if right >= 0 and engines[right].due < engines[left].due else left
        left, right = load[2 * node], load[2 * node + 1]
        load[node] = right if right >= 0 and has_less(engines, right, left) else left
        node >>= 1


@inner
def has_less(engines: Records, e: int, other: int) -> bool:
    """Compare two engines by requests in flight, then by who was chosen longer ago."""
    mine = engines[e].running + engines[e].waiting
    others = engines[other].running + engines[other].waiting
    return bool(mine < others or (mine == others and engines[e].latest < engines[other].latest))


@called
def serve(fleet: Fleet, told: Told, e: int, until: float) -> None:
    """Run an engine's steps that are due before `until`, and write down what happens."""
    engine = fleet.engines[e]
    heap = moved(fleet.heaps, e * engine.most_running)
    phases = moved(fleet.phases, e * engine.size)
    events = fleet.events
    while engine.due < until:
        at = engine.due
        n = inputs.turn(engine, fleet.slots, heap, phases, events)
        for i in range(n):
            kind = events[i].kind
            r = events[i].request
            if kind == FIRST_TOKEN:
                told.first_token_at[r] = at
            elif kind == FINISHED:
                told.finished_at[r] = at
                if told.leaving:
                    told.slot[r] = 0
            elif kind == PREEMPTED:
                told.preempted[r] += 1


@called
def serve_all(fleet: Fleet, trees: Trees, leaves: int, told: Told, until: float) -> None:
    """Run every engine's steps that are due before `until`, one after the other."""
    while True:
        e = trees.due[1]
        due = fleet.engines[e].due
        if not due < until:
            return
        serve(fleet, told, e, min(until, np.nextafter(due, np.inf)))
        update(fleet.engines, trees, leaves, e)


@called
def withdraw(fleet: Fleet, told: Told, r: int, now: float) -> int:
    """Abort a request, unless it was shed or has finished; return its engine, or -1."""
    if told.slot[r] == 0:
        return -1
    e: int = told.replica[r] + 0  # 64 bits wide, like all that the engine counts with
    serve(fleet, told, e, now)
    s = told.slot[r] + 0
    if s:
        engine = fleet.engines[e]
        heap = moved(fleet.heaps, e * engine.most_running)
        inputs.leave(engine, fleet.slots, heap, moved(fleet.phases, e * engine.size), s, now)
        told.slot[r] = 0
    return e


@entry
def feed(
    fleet: Fleet,
    trees: Trees,
    asked: Asked,
    told: Told,
    routes: Small,
    first: int,
    last: int,
    left: int,
    end: float,
) -> int:
    """Send rows `first` up to `last` to their engines, then run on until `end`.

    `routes` names the engine of each of these rows; when it is empty, the one with the least in
    flight is chosen. Of those who leave early, `left` have; return how many have now. There must be
    a free slot for each row.
    """
    leaves, leaving, count = len(trees.due) // 2, len(asked.leavers), len(fleet.engines)
    engines = Fleet(
        pointer(fleet.engines),
        pointer(fleet.slots),
        pointer(fleet.heaps),
        pointer(fleet.phases),
        pointer(fleet.events),
    )
    tree = Trees(pointer(trees.due), pointer(trees.load))
    books = Told(
        pointer(told.first_token_at),
        pointer(told.finished_at),
        pointer(told.preempted),
        pointer(told.replica),
        pointer(told.slot),
        leaving,
    )
    for i in range(first, last + 1):
        now = asked.arrived[i] if i < last else end
        while left < leaving and asked.abort_at[asked.leavers[left]] < now:
            r = asked.leavers[left]
            e = withdraw(engines, books, r, asked.abort_at[r])
            if e >= 0 and leaves:
                update(engines.engines, tree, leaves, e)
            left += 1
        if i == last:
            break
        if leaves:
            serve_all(engines, tree, leaves, books, now)
            e = tree.load[1]
        else:
            e = routes[i - first] + 0
            serve(engines, books, e, now)
        engine = engines.engines[e]
        s = 0
        if asked.output[i] > 0:  # else the engine rejects it
            s = inputs.arrive(
                engine,
                engines.slots,
                moved(engines.phases, e * engine.size),
                i,
                asked.prompt[i] + 0,
                asked.output[i] + 0,
                asked.priority[i] if len(asked.priority) else 0,
                asked.cached[i] + 0 if len(asked.cached) else 0,
                now,
            )
        books.replica[i] = e if s else -1
        if leaving:
            books.slot[i] = s
        if leaves:
            engine.latest = i
            update(engines.engines, tree, leaves, e)
    for e in range(count):
        serve(engines, books, e, end)
    return left
