"""When a replica whose requests fail is put out, for how long, and how it comes back."""

from __future__ import annotations

from surgetank.policy.outlier import Outlier


def test_only_failures_in_a_row_put_it_out() -> None:
    outlier = Outlier()
    assert [outlier.failed() for _ in range(4)] == [False] * 4
    outlier.cleared()
    assert [outlier.failed() for _ in range(5)] == [False] * 4 + [True]


def test_each_trial_that_fails_doubles_the_time_and_one_success_forgets_it_all() -> None:
    outlier = Outlier()
    times = []
    for at in (0.0, 10.0, 20.0, 100.0, 200.0, 300.0, 400.0, 500.0):
        outlier.failed()
        times.append(outlier.put_out(at))
        assert outlier.is_out(at)
        assert not outlier.is_out(at + times[-1])
        assert outlier.on_trial
    assert times == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert outlier.failed()  # on trial, one is enough
    outlier.cleared()
    assert not outlier.on_trial
    assert not outlier.failed()
    assert outlier.put_out(600.0) == 1.0
