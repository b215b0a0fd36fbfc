"""One pass, or any parts merged in any order: the same sums.

Counts, token sums and tenants are compared for every order of rows; gaps for parts that follow one
another in time, whichever is merged first, and for rows within reach of the reordering buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.typing import NDArray

from surgetank.traffic import gaps as gaps_module
from surgetank.traffic import seconds as seconds_module
from surgetank.traffic import sessions as sessions_module
from surgetank.traffic import tenants as tenants_module
from surgetank.traffic.arrivals import poisson, pulse
from surgetank.traffic.burstiness import Accumulator, analyse
from surgetank.traffic.gaps import Gaps
from surgetank.traffic.loghistogram import LogHistogram
from surgetank.traffic.seconds import Seconds
from surgetank.traffic.tenants import Tenants
from surgetank.traffic.trace import Batch, Labels, Trace, concatenate

rows = st.lists(
    st.tuples(
        st.floats(-1e5, 1e5, allow_nan=False),
        st.integers(-1, 5000),
        st.sampled_from(["a", "b", "c", ""]),
    ),
    max_size=60,
)


def batch_of(table: Sequence[tuple[float, int, str]]) -> Batch:
    return Batch(
        np.array([r[0] for r in table], float),
        prompt_tokens=np.array([r[1] for r in table], np.int64),
        output_tokens=np.array([r[1] // 3 for r in table], np.int64),
        tenant=Labels.of([r[2] for r in table]),
        session=Labels.of([r[2] for r in table]),
    )


def taken(*batches: Batch, **options: bool) -> Accumulator:
    accumulator = Accumulator(**options)
    for batch in batches:
        accumulator.add(batch)
    return accumulator


def sums(accumulator: Accumulator) -> dict[str, Any]:
    """Everything that must not depend on order."""
    bins, counts, prompt, output = accumulator.seconds.bins()
    found: dict[str, Any] = {
        "requests": accumulator.requests,
        "ends": (accumulator.first, accumulator.last),
        "width": accumulator.seconds.width,
        "bins": bins.tolist(),
        "counts": counts.tolist(),
        "prompt": None if prompt is None else prompt.tolist(),
        "output": None if output is None else output.tolist(),
    }
    for name in ("prompt", "output"):
        histogram = getattr(accumulator, name)
        if histogram is not None:
            found[f"{name} histogram"] = histogram.counts.tolist()
            found[f"{name} moments"] = histogram.moments.tolist()
    if accumulator.tenants is not None:
        totals = accumulator.tenants.totals()
        found["tenants"] = {
            name: (totals[slot].tolist(), *(c.tolist() for c in accumulator.tenants.series(name)))
            for name, slot in accumulator.tenants.slot_of.items()
            if totals[slot].any()
        }
    if accumulator.sessions is not None:
        numbers = {i: name for name, i in accumulator.sessions.names.items()}
        table = np.nan_to_num(accumulator.sessions.table(), nan=-1.0).T.tolist()
        found["sessions"] = sorted((numbers[int(r[0])], r[1], r[3]) for r in table)
    return found


@settings(max_examples=40)
@given(rows, rows, rows)
def test_parts_merge_to_the_same_sums_however_they_are_grouped(
    a: list[tuple[float, int, str]],
    b: list[tuple[float, int, str]],
    c: list[tuple[float, int, str]],
) -> None:
    whole = sums(taken(batch_of(a + b + c)))
    left = taken(batch_of(a))
    left.merge(taken(batch_of(b)))
    left.merge(taken(batch_of(c)))
    tail = taken(batch_of(b))
    tail.merge(taken(batch_of(c)))
    right = taken(batch_of(a))
    right.merge(tail)
    assert sums(left)["counts"] == whole["counts"]
    assert comparable(sums(left), bool(a + b + c)) == comparable(whole, bool(a + b + c))
    assert comparable(sums(right), bool(a + b + c)) == comparable(whole, bool(a + b + c))


def comparable(found: dict[str, Any], some: bool) -> dict[str, Any]:  # noqa: FBT001 - local
    """Without rows there are no columns either."""
    return found if some else {k: found[k] for k in ("requests", "counts", "tenants")}


@settings(max_examples=40)
@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter_for_sums(
    table: list[tuple[float, int, str]], random: Any
) -> None:
    shuffled = list(table)
    random.shuffle(shuffled)
    assert sums(taken(batch_of(shuffled))) == sums(taken(batch_of(table)))


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=80),
    st.lists(st.integers(0, 80), max_size=6),
    st.randoms(use_true_random=False),
)
def test_parts_that_follow_in_time_have_the_gaps_of_the_whole_in_any_order(
    stamps: list[float], cuts: list[int], random: Any
) -> None:
    ordered = np.sort(np.array(stamps))
    parts = []
    for part in np.split(ordered, sorted(c for c in cuts if c < len(ordered))):
        gaps = Gaps()
        gaps.add(part)
        parts.append(gaps)
    random.shuffle(parts)
    merged = Gaps()
    for gaps in parts:
        merged.merge(gaps)
    assert_gaps(merged, np.diff(ordered))
    assert merged.late == 0


def assert_gaps(gaps: Gaps, expected: NDArray[np.float64]) -> None:
    histogram, largest = gaps.finished()
    assert histogram.number + len(largest) == len(expected)
    total = histogram.moments[1] + sum(largest)
    assert total == pytest.approx(expected.sum(), rel=1e-9, abs=1e-6)
    squares = histogram.moments[2] + sum(g * g for g in largest)
    assert squares == pytest.approx((expected**2).sum(), rel=1e-9, abs=1e-6)
    assert largest == pytest.approx(np.sort(expected)[len(expected) - len(largest) :].tolist())


@pytest.fixture
def short_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reordering buffer holds 50 rows, so that small data leaves it."""
    monkeypatch.setattr(gaps_module, "HELD", 50)


@pytest.mark.usefixtures("short_buffer")
@pytest.mark.parametrize("size", [7, 64, 1000])
def test_rows_a_little_out_of_order_have_exact_gaps(size: int) -> None:
    rng = default_rng(1)
    ordered = np.cumsum(rng.exponential(1.0, 1000))
    # Each row up to 20 s late: within reach of 50 rows.
    written = ordered[np.argsort(ordered + rng.uniform(0, 20, 1000))]
    gaps = Gaps()
    for i in range(0, 1000, size):
        gaps.add(written[i : i + size])
    assert gaps.late == 0
    assert_gaps(gaps, np.diff(ordered))


@pytest.mark.usefixtures("short_buffer")
@pytest.mark.parametrize("size", [60, 333])
def test_a_log_that_is_newest_first_has_exact_gaps(size: int) -> None:
    ordered = np.cumsum(default_rng(1).exponential(1.0, 2000))
    gaps = Gaps()
    for i in range(0, 2000, size):
        gaps.add(ordered[::-1][i : i + size])
    assert gaps.late == 0
    assert_gaps(gaps, np.diff(ordered))


@pytest.mark.usefixtures("short_buffer")
def test_long_parts_merge_in_any_order_to_the_gaps_of_the_whole() -> None:
    ordered = np.cumsum(default_rng(1).exponential(1.0, 3000))
    parts = []
    for i in range(0, 3000, 300):
        gaps = Gaps()
        gaps.add(ordered[i : i + 300])
        parts.append(gaps)
    merged = Gaps()
    for i in (4, 0, 9, 2, 7, 1, 8, 3, 6, 5):
        merged.merge(parts[i])
    assert merged.late == 0
    assert_gaps(merged, np.diff(ordered))


@pytest.mark.usefixtures("short_buffer")
def test_parts_that_overlap_in_time_are_said_to_and_their_gaps_are_refused() -> None:
    rng = default_rng(4)
    one, two = poisson(rng, 5, 400), poisson(rng, 5, 400)
    first, second = taken(Batch(one)), taken(Batch(two))
    first.merge(second)
    assert first.requests == len(one) + len(two)
    analysis = first.analyse()
    assert analysis.interarrival is None
    assert analysis.interarrival_refused is not None
    assert "overlap in time" in analysis.interarrival_refused
    assert analysis.rate.mean == pytest.approx(10, rel=0.1)


def test_short_parts_that_overlap_in_time_are_put_in_order() -> None:
    """A live window fits the reordering buffer whole: gateways' windows merge exactly."""
    rng = default_rng(4)
    one, two = poisson(rng, 5, 400), poisson(rng, 5, 400)
    first, second = taken(Batch(one)), taken(Batch(two))
    first.merge(second)
    assert first.gaps is not None
    assert_gaps(first.gaps, np.diff(np.sort(np.concatenate([one, two]))))
    assert not first.gaps.overlap


@pytest.mark.usefixtures("short_buffer")
def test_rows_laid_over_a_stretch_already_counted_are_refused() -> None:
    rng = default_rng(4)
    one, two = poisson(rng, 5, 400), poisson(rng, 5, 400)
    analysis = taken(Batch(one), Batch(two)).analyse()
    assert analysis.interarrival is None
    assert "rows fall among rows already counted" in str(analysis.interarrival_refused)


@pytest.mark.usefixtures("short_buffer")
def test_a_few_rows_far_out_of_order_are_left_out_of_the_gaps_and_told() -> None:
    ordered = np.cumsum(default_rng(1).exponential(1.0, 3000))
    written = np.append(np.delete(ordered, 100), ordered[100])
    analysis = taken(*(Batch(written[i : i + 500]) for i in range(0, 3000, 500))).analyse()
    assert analysis.interarrival is not None
    assert analysis.interarrival.mean == pytest.approx(1.0, rel=0.05)
    assert any("1 rows came too late" in note for note in analysis.notes)


@pytest.mark.usefixtures("short_buffer")
def test_stretches_beyond_the_bound_are_joined_without_losing_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gaps_module, "STRETCHES", 4)
    ordered = np.cumsum(default_rng(1).exponential(1.0, 3000))
    gaps = Gaps()
    for i in range(2900, -1, -100):  # newest first
        gaps.add(ordered[i : i + 100])
    assert gaps.late == 0
    assert_gaps(gaps, np.diff(ordered))


def test_counts_alone_are_the_counts_of_the_full_pass() -> None:
    batch = Batch(poisson(default_rng(1), 20, 100), prompt_tokens=None)
    counted, full = taken(batch, counts_only=True), taken(batch)
    assert sums(counted)["counts"] == sums(full)["counts"]
    analysis = counted.analyse()
    assert analysis.idc == full.analyse().idc
    assert analysis.interarrival is None
    assert analysis.interarrival_refused == "only counts per second were taken"
    with pytest.raises(ValueError, match="do not merge"):
        counted.merge(full)


def test_seconds_counted_elsewhere_give_the_figures_of_their_rows() -> None:
    times = pulse(default_rng(1), 20, 80, 30, 90, 600) + 1.7e9
    prompt = default_rng(2).integers(1, 1000, len(times))
    rows_first = taken(Batch(times, prompt_tokens=prompt), counts_only=True)
    first = int(times[0])
    at = np.floor(times).astype(int) - first
    ready = Accumulator(counts_only=True)
    ready.add_seconds(
        first,
        np.bincount(at),
        np.bincount(at, weights=prompt).astype(np.int64),
        first=float(times[0]),
        last=float(times[-1]),
    )
    assert sums(ready)["counts"] == sums(rows_first)["counts"]
    assert sums(ready)["prompt"] == sums(rows_first)["prompt"]
    one, two = ready.analyse().to_json(), rows_first.analyse().to_json()
    assert one["idc"] == two["idc"]
    assert one["pulse"] == two["pulse"]
    assert one["rate"] == two["rate"]


def test_seconds_without_exact_ends_are_taken_as_full() -> None:
    ready = Accumulator(counts_only=True)
    ready.add_seconds(100, np.array([0, 3, 0, 5, 0]))
    analysis = ready.analyse()
    assert analysis.span_s == 3.0
    assert analysis.rate.mean == pytest.approx(8 / 3)


@settings(max_examples=30)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=60), st.integers(0, 60))
def test_bins_become_coarser_by_the_stamps_alone_not_by_their_order(
    stamps: list[int], cut: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seconds_module, "MAX_PAGES", 4)
        times = np.array(stamps, float)
        forward, backward, merged, rest = Seconds(), Seconds(), Seconds(), Seconds()
        forward.add(times)
        backward.add(times[::-1].copy())
        merged.add(times[:cut])
        rest.add(times[cut:])
        merged.merge(rest)
        for other in (backward, merged):
            assert other.width == forward.width
            assert [c.tolist() for c in other.bins()[:2]] == [
                c.tolist() for c in forward.bins()[:2]
            ]
        assert forward.bins()[1].sum() == len(stamps)


def test_tenants_beyond_the_bound_become_others_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants_module, "MAX_TENANTS", 100)
    monkeypatch.setattr(tenants_module, "_CHUNK", 64)
    rng = default_rng(1)
    names = tuple(f"t{i}" for i in range(1000))
    codes = np.where(rng.random(20_000) < 0.6, 7, rng.integers(0, 1000, 20_000)).astype(np.int32)
    tenants = Tenants()
    stamps = np.sort(rng.uniform(0, 5000, 20_000))
    tokens = np.full(20_000, 3)
    for i in range(0, 20_000, 1000):
        part = slice(i, i + 1000)
        tenants.add(stamps[part], Labels(codes[part], names), tokens[part])
    whole = tenants.totals().sum(axis=0) + tenants.others
    assert whole.tolist() == [20_000, 60_000, 0]
    assert len(tenants.slot_of) <= 100
    assert tenants.largest(1) == ["t7"]
    expected = np.bincount(stamps[codes == 7].astype(int) // 10)
    starts, counts = tenants.series("t7")
    assert counts.tolist() == expected[expected > 0].tolist()
    assert np.array_equal(starts, np.flatnonzero(expected) * 10)


def test_tenants_bins_become_coarser_when_their_pages_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants_module, "MAX_PAGES", 64)
    stamps = np.sort(default_rng(1).uniform(0, 1e6, 5000))
    tenants = Tenants()
    tenants.add(stamps, Labels((np.arange(5000) % 3).astype(np.int32), ("a", "b", "c")))
    assert tenants.width > 10
    assert tenants.totals()[:, 0].sum() == 5000
    starts, counts = tenants.series("a")
    expected = np.bincount(stamps[::3].astype(int) // tenants.width)
    assert counts.tolist() == expected[expected > 0].tolist()
    assert np.array_equal(starts, np.flatnonzero(expected) * tenants.width)


def test_sessions_beyond_the_bound_are_a_sample_that_parts_agree_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions_module, "MAX_CALLS", 1000)
    names = [f"s{i}" for i in range(2000)]
    batch = Batch(np.arange(6000.0), prompt_tokens=np.arange(6000), session=Labels.of(names * 3))
    whole = taken(batch)
    parts = taken(batch.take(slice(0, 2500)))
    parts.merge(taken(batch.take(slice(2500, None))))
    assert sums(whole)["sessions"] == sums(parts)["sessions"]
    assert whole.sessions is not None
    assert 0 < len(whole.sessions.names) <= 334
    figures = whole.analyse().sessions
    assert figures is not None
    assert figures.calls_mean == 3.0  # a session is in the sample with all of its calls
    assert figures.sampled_share == 0.5**whole.sessions.level
    assert figures.share_of_requests == 1.0


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=200),
    st.floats(0.01, 0.99),
)
def test_a_quantile_is_that_of_the_values_within_half_a_bin(
    values: list[int], share: float
) -> None:
    histogram = LogHistogram(low=0, high=31, fine=7)
    histogram.add(np.array(values, float))
    ordered = sorted(values)
    exact = ordered[min(int(np.ceil(share * len(values))) - 1, len(values) - 1)]
    # One bin, 1/128 of an octave, is at most 0.79 % wide.
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.008, abs=1e-9)
    assert histogram.mean == pytest.approx(np.mean(values))


def test_a_whole_trace_and_its_batches_say_the_same() -> None:
    rng = default_rng(9)
    times = pulse(rng, 5, 40, 20, 60, 900)
    batch = Batch(
        times,
        prompt_tokens=rng.integers(10, 2000, len(times)),
        output_tokens=rng.integers(1, 300, len(times)),
        tenant=Labels((rng.random(len(times)) < 0.3).astype(np.int32), ("a", "b")),
    )
    whole = analyse(Trace.of([batch])).to_json()
    cut = [batch.take(slice(i, i + 1000)) for i in range(0, len(batch), 1000)]
    parts = taken(*cut).analyse(Trace.of([concatenate(cut)]).source).to_json()
    assert_alike(parts, whole)


def assert_alike(one: Any, two: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_alike(one[key], two[key])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_alike(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(two, rel=1e-9)
    else:
        assert one == two
