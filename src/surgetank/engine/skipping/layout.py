"""The state of engines and sequences, for the functions beside this module.

Compiled they work on numpy's records (`arrays`), as they are written on Python objects (`objects`);
both have these fields.

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

import math
from typing import Any, Final

from surgetank.engine.profile import EngineProfile

ENGINE: Final = (
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
    ("newcomers", "i8"),  # sequences that came since the stretch under way began
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
)

SLOT: Final = (
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
)

FREE: Final = 0
WAITING: Final = 1
CHUNKED: Final = 2  # its prefill goes on after the step under way
PREFILLED: Final = 3  # its prefill ends with the step under way
DECODING: Final = 4

EVENT: Final = (("kind", "i8"), ("slot", "i8"), ("request", "i8"), ("tokens", "i8"))

TOLD: Final = (("when", "f8"), ("engine", "i8"), ("kind", "i8"), ("request", "i8"))
"""An event of one of many engines, as `addressed.run` tells it."""

# kinds of events
FIRST_TOKEN: Final = 0
FINISHED: Final = 1
PREEMPTED: Final = 2
TOKEN: Final = 3

Ints = Any  # int64 each: an array, or a list
Records = Any  # of ENGINE, SLOT or EVENT: an array of records, or a list of objects

_ENDLESS: Final = 2**63 - 1


def settings(profile: EngineProfile) -> dict[str, float]:
    """Give the fields of an idle engine that are not 0."""
    power = profile.block_size & (profile.block_size - 1) == 0
    return {
        "a": profile.a_ms * 1e-3,
        "b": profile.b_us * 1e-6,
        "c": profile.c_ns * 1e-9,
        "d": profile.d_us * 1e-6,
        "e": profile.e_ns * 1e-9,
        "f": profile.f_ms * 1e-3,
        "asleep": 1.0 - profile.expert_share,
        "budget": profile.max_num_batched_tokens,
        "seats": profile.max_num_seqs,
        # each running sequence gets a token of the budget, so no more of them can run
        "most_running": min(profile.max_num_seqs, profile.max_num_batched_tokens),
        "size": profile.block_size,
        "shift": profile.block_size.bit_length() - 1 if power else -1,
        "blocks": profile.kv_blocks,
        "free": profile.kv_blocks,
        "most": _ENDLESS if profile.max_queued is None else profile.max_queued,
        "gate": int(profile.full_prompt_gate),
        "by_priority": int(profile.scheduling == "priority"),
        "due": math.inf,
        "latest": -1,
    }


def most_events(profile: EngineProfile) -> int:
    """Bound a step's events: each running one can get its first token, finish, be preempted."""
    return 4 * min(profile.max_num_seqs, profile.max_num_batched_tokens) + 8
