"""Engines that are short of something, and what comes to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from surgetank.engine.profile import EngineProfile


@st.composite
def profiles(draw: st.DrawFn) -> EngineProfile:
    """Draw engines that are short of something: KV, seats, budget or room."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 16, 64]))
    longest = draw(st.integers(8, 160))
    least = -(-longest // block_size)
    moe = draw(st.booleans())
    return EngineProfile(
        name="drawn",
        a_ms=draw(st.sampled_from([0.7, 10.0])),
        b_us=draw(st.sampled_from([0.0, 52.5])),
        c_ns=draw(st.sampled_from([0.0, 11.0])),
        d_us=draw(st.sampled_from([0.0, 353.0])),
        e_ns=draw(st.sampled_from([0.0, 2950.0])),
        f_ms=3.3 if moe else 0.0,
        expert_share=0.125 if moe else 0.0,
        kv_blocks=draw(st.integers(least, least * 4)),
        block_size=block_size,
        max_num_seqs=draw(st.sampled_from([1, 2, 5, 8, 64])),
        max_num_batched_tokens=draw(st.sampled_from([1, 4, 16, 33, 256])),
        max_model_len=longest,
        full_prompt_gate=draw(st.booleans()),
        scheduling=draw(st.sampled_from(["fcfs", "priority"])),
        max_queued=draw(st.sampled_from([None, None, 3, 12])),
    )


def inputs() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Draw what happens: (steps that pass, where in the step under way, what comes)."""
    share = st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0])
    steps = st.sampled_from([0, 0, 0, 1, 2, 7, 40])
    size = st.floats(0, 1)
    add = st.tuples(
        st.just("add"), size, size, st.integers(-2, 2), st.sampled_from([0.0, 0.0, 0.5, 1.0])
    )
    abort = st.tuples(st.just("abort"), st.floats(0, 1, exclude_max=True))
    what = st.one_of(add, add, add, abort, st.just(("look",)))
    return st.lists(st.tuples(steps, share, what), min_size=1, max_size=60)
