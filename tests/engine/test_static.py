"""Whole batches: who is in one starts and leaves with the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.engine.literal import Event, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.static import StaticBatcher

EVEN = EngineProfile(
    name="even", a_ms=10.0, b_us=0.0, c_ns=0.0, d_us=0.0, e_ns=0.0, kv_blocks=512,
    max_model_len=4096,
)  # fmt: skip


def finish(batcher: StaticBatcher) -> list[Event]:
    """Run until it is idle."""
    events: list[Event] = []
    while (due := batcher.due) is not None:
        events += batcher.step(due)
    return events


def ends(events: list[Event]) -> dict[str, float]:
    return {e.id: round(e.at, 6) for e in events if e.kind is EventKind.FINISHED}


def test_a_batch_ends_for_all_with_the_longest_answer() -> None:
    batcher = StaticBatcher(EVEN, 3, gather=0.02)
    for id_, tokens in (("a", 2), ("b", 10), ("c", 5)):
        assert batcher.add(id_, 100, tokens, 0.0)
    events = finish(batcher)
    assert ends(events) == dict.fromkeys("abc", 0.12)  # 0.02 to gather, ten steps of 10 ms
    first = {e.id: e.at for e in events if e.kind is EventKind.FIRST_TOKEN}
    assert first == dict.fromkeys("abc", pytest.approx(0.03))
    assert batcher.batches == 1


def test_who_comes_too_late_waits_for_the_whole_batch() -> None:
    batcher = StaticBatcher(EVEN, 3, gather=0.02)
    batcher.add("a", 100, 10, 0.0)
    events = batcher.step(0.02)
    batcher.add("b", 100, 1, 0.025)
    assert (batcher.running, batcher.waiting) == (1, 1)
    events += finish(batcher)
    assert ends(events) == {"a": 0.12, "b": 0.13}  # right after it, without gathering again


def test_a_batch_is_no_larger_than_its_size_and_than_the_kv() -> None:
    batcher = StaticBatcher(EVEN, 2)
    for id_ in "abc":
        batcher.add(id_, 100, 4, 0.0)
    batcher.step(0.02)
    assert (batcher.running, batcher.waiting) == (2, 1)
    large = StaticBatcher(EVEN, 4)
    for id_ in "abc":
        large.add(id_, 4000, 90, 0.0)  # two of them fill 512 blocks of 16
    large.step(0.02)
    assert (large.running, large.kv_blocks_used) == (2, 512)


def test_prompts_are_padded_to_the_longest_and_empty_seats_are_computed() -> None:
    per_token = EngineProfile(
        name="x", a_ms=1.0, b_us=10.0, c_ns=0.0, d_us=1000.0, e_ns=0.0, kv_blocks=512,
        max_model_len=4096,
    )  # fmt: skip
    batcher = StaticBatcher(per_token, 2, gather=0.0)
    batcher.add("short", 100, 1, 0.0)
    batcher.add("long", 1000, 3, 0.0)
    events = finish(batcher)
    # One step for 2 x 1000 tokens (1 + 20 ms), then two for two seats (1 + 2 ms).
    assert ends(events) == dict.fromkeys(("short", "long"), 0.027)


def test_who_is_aborted_leaves_its_seat_empty_until_the_end() -> None:
    batcher = StaticBatcher(EVEN, 2, gather=0.0)
    batcher.add("a", 100, 5, 0.0)
    batcher.add("b", 100, 50, 0.0)
    batcher.add("c", 100, 5, 0.0)
    batcher.step(0.0)
    assert batcher.abort("b", 0.005)
    assert not batcher.abort("b", 0.005)
    assert batcher.running == 1
    assert ends(finish(batcher)) == {"a": 0.05, "c": 0.1}


def test_it_sheds_and_refuses_as_the_continuous_one_does() -> None:
    batcher = StaticBatcher(EVEN, 2)
    assert batcher.add("a", 10, 10, 0.0)
    with pytest.raises(ValueError, match="in flight already"):
        batcher.add("a", 10, 10, 0.0)
    with pytest.raises(ValueError, match="<= 4096 in all"):
        batcher.add("b", 4096, 1, 0.0)
    with pytest.raises(ValueError, match="step first"):
        batcher.add("c", 10, 10, 1.0)


SEQUENCES = st.lists(
    st.tuples(st.floats(0, 0.3), st.integers(1, 200), st.integers(1, 20)), min_size=1, max_size=20
)


@given(SEQUENCES, st.integers(1, 6))
def test_everyone_gets_all_tokens_in_order_and_leaves_with_its_batch(
    sequences: list[tuple[float, int, int]], size: int
) -> None:
    batcher = StaticBatcher(EVEN, size)
    events: list[Event] = []
    now = 0.0
    for number, (gap, prompt, output) in enumerate(sequences):
        now += gap
        while (due := batcher.due) is not None and due < now:
            events += batcher.step(due)
        batcher.add(f"{number}", prompt, output, now)
        assert batcher.running <= size
    events += finish(batcher)
    for number, (_, _, output) in enumerate(sequences):
        own = [e for e in events if e.id == f"{number}"]
        assert [e.tokens for e in own] == [*range(1, output + 1), output]
        assert own[-1].kind is EventKind.FINISHED
    assert len({e.at for e in events if e.kind is EventKind.FINISHED}) == batcher.batches
    assert batcher.kv_blocks_used == batcher.running == batcher.waiting == 0
