"""The state of engines and sequences as arrays, for the compiled functions.

An ENGINE record holds a profile's settings, then what its engine does now. A SLOT holds one
sequence in flight and is used again after it. Slot 0 is no sequence: links are 0 where there is
none, and its `next` is the first free slot. `heaps[e]` is engine e's heap of finishes (finishes.py)
and `phases[e, p]` counts its decoding sequences that need a new KV block in the steps whose number,
modulo the block size, is p.

Sequences that decode get one token each in every step. So only the step in which they finish is
kept, and all else follows, with r = finish - done steps to go: tokens = output - r, length = prompt
+ tokens, and the KV holds ceil(length / block size) blocks while a step is under way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.profile import EngineProfile

ENGINE: Final = np.dtype(
    [
        # settings; the coefficients in seconds
        ("a", "f8"),
        ("b", "f8"),
        ("c", "f8"),
        ("d", "f8"),
        ("e", "f8"),
        ("f", "f8"),
        ("asleep", "f8"),  # share of experts that one token leaves asleep
        ("budget", "i8"),  # tokens of a step
        ("seats", "i8"),  # sequences that run at once
        ("most_running", "i8"),  # the same, within the budget: the heap's size
        ("size", "i8"),  # tokens of a KV block
        ("shift", "i8"),  # its logarithm where it is a power of two, else -1
        ("blocks", "i8"),
        ("most", "i8"),  # sequences in flight before it sheds
        ("gate", "i8"),
        ("by_priority", "i8"),
        # the stretch under way: `left` steps, the first of them running since `began`
        ("due", "f8"),  # the end of the stretch; infinite while idle
        ("began", "f8"),
        ("cost", "f8"),  # seconds of the step under way
        ("slope", "f8"),  # each step of the stretch takes so much longer than the one before
        ("left", "i8"),
        ("done", "i8"),  # steps completed
        ("phase", "i8"),  # done modulo size
        # what it holds
        ("decoding", "i8"),  # sequences
        ("context", "i8"),  # sum of their lengths
        ("prefilled", "i8"),  # tokens computed of running sequences that do not decode yet
        ("backlog", "i8"),  # tokens to compute before everyone decodes
        ("free", "i8"),  # KV blocks
        ("running", "i8"),
        ("waiting", "i8"),
        ("preemptions", "i8"),
        # links to slots, and counters
        ("head", "i8"),  # the running, in order of admission
        ("tail", "i8"),
        ("first", "i8"),  # the waiting: a list, or a heap's root by priority
        ("last", "i8"),
        ("fresh", "i8"),  # first of the running whose prefill ends with the step under way
        ("partial", "i8"),  # the one whose prefill goes on after it: there is one at most
        ("finishes", "i8"),  # entries in the heap
        ("orders", "i8"),
        ("admitted", "i8"),
        ("latest", "i8"),  # request that the router sent
    ],
    align=True,
)

SLOT: Final = np.dtype(
    [
        ("arrived", "f8"),
        ("order", "i8"),  # of arrival
        ("priority", "i8"),
        ("seat", "i8"),  # order of admission
        ("finish", "i8"),  # decoding: the step that ends with its last token
        ("stalled", "i8"),  # the last step that passed it over while it decoded
        ("request", "i8"),  # the caller's number for it
        ("prompt", "i8"),
        ("total", "i8"),  # prompt and output
        ("length", "i8"),  # prompt and tokens so far, unless it decodes
        ("computed", "i8"),  # tokens in the KV, unless it decodes
        ("cached", "i8"),
        ("scheduled", "i8"),  # scratch of squeeze()
        ("state", "i8"),
        ("next", "i8"),
        ("prev", "i8"),
        ("child", "i8"),
    ],
    align=True,
)

FREE: Final = 0
WAITING: Final = 1
CHUNKED: Final = 2  # its prefill goes on after the step under way
PREFILLED: Final = 3  # its prefill ends with the step under way
DECODING: Final = 4

EVENT: Final = np.dtype([("kind", "i8"), ("slot", "i8"), ("request", "i8"), ("tokens", "i8")])

# kinds of events
FIRST_TOKEN: Final = 0
FINISHED: Final = 1
PREEMPTED: Final = 2
TOKEN: Final = 3

Ints = NDArray[np.int64]
Records = NDArray[Any]  # of ENGINE, SLOT or EVENT


def engines(profile: EngineProfile, count: int = 1) -> tuple[Records, Ints, Ints, Records]:
    """Make idle engines: their records, heaps, phases, and room for the events of one step."""
    made = np.zeros(count, ENGINE)
    made["a"] = profile.a_ms * 1e-3
    made["b"] = profile.b_us * 1e-6
    made["c"] = profile.c_ns * 1e-9
    made["d"] = profile.d_us * 1e-6
    made["e"] = profile.e_ns * 1e-9
    made["f"] = profile.f_ms * 1e-3
    made["asleep"] = 1.0 - profile.expert_share
    made["budget"] = profile.max_num_batched_tokens
    made["seats"] = profile.max_num_seqs
    made["size"] = profile.block_size
    power = profile.block_size & (profile.block_size - 1) == 0
    made["shift"] = profile.block_size.bit_length() - 1 if power else -1
    made["blocks"] = made["free"] = profile.kv_blocks
    made["most"] = np.iinfo(np.int64).max if profile.max_queued is None else profile.max_queued
    made["gate"] = profile.full_prompt_gate
    made["by_priority"] = profile.scheduling == "priority"
    made["due"] = np.inf
    made["latest"] = -1
    # each running sequence gets a token of the budget, so no more of them can run
    most = min(profile.max_num_seqs, profile.max_num_batched_tokens)
    made["most_running"] = most
    heaps = np.zeros((count, most), np.int64)
    phases = np.zeros((count, profile.block_size), np.int64)
    # a step's events: each running one can get its first token, finish, and be preempted
    return made, heaps, phases, np.zeros(4 * most + 8, EVENT)


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
