"""The batching window gains when idle, and costs nothing at the peak."""

from __future__ import annotations

from surgetank.studies.batching import SIZE, run


def test_when_idle_a_window_makes_fewer_and_larger_batches_of_the_same_requests() -> None:
    without, window = run("idle", 0.0, requests=120), run("idle", 0.25, requests=120)
    assert window.per_busy_second > 1.4 * without.per_busy_second
    assert window.total_p95 < without.total_p95  # nobody waits for a batch that has just left


def test_at_the_peak_batches_fill_by_themselves_and_latency_stays() -> None:
    without, window = run("peak", 0.0, requests=300), run("peak", 0.25, requests=300)
    assert min(without.size, window.size) > 0.6 * SIZE
    assert window.total_p95 < 1.1 * without.total_p95
