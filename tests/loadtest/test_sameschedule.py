"""Whether two runs had the same schedule, and which difference is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from surgetank.loadtest.runfile import Labels, Run, Samples
from surgetank.loadtest.sameschedule import difference
from tests.loadtest import rehearsed


def test_runs_of_one_schedule_do_not_differ_whatever_came_of_them() -> None:
    assert difference(rehearsed.run(), rehearsed.run(lambda _at, _cycle: None)) is None


def test_parameters_are_told_first() -> None:
    a = rehearsed.run(description={"peak": 8, "seed": 1, "kind": "pulse"})
    b = rehearsed.run(description={"peak": 9, "seed": 2, "width": 10})
    assert difference(a, b) == (
        "kind = pulse only in A; peak = 8 in A and 9 in B; seed = 1 in A and 2 in B; and 1 more"
    )


def _with(run: Run, **columns: object) -> Run:
    return replace(run, samples=replace(run.samples, **columns))  # type: ignore[arg-type]  # tests name columns


def test_the_first_request_that_differs_is_told() -> None:
    run = rehearsed.run()
    due = run.samples.scheduled.copy()
    due[7] += 0.1
    assert difference(run, _with(run, scheduled=due)) == (
        "request 8 is due at 3.500 s in A and 3.600 s in B"
    )
    sizes = run.samples.prompt_tokens.copy()
    sizes[2] = 7
    assert difference(run, _with(run, prompt_tokens=sizes)) == (
        "request 3 is with 100 prompt tokens in A and 7 in B"
    )
    sizes[2] = -1  # nobody knows
    assert difference(run, _with(run, prompt_tokens=sizes)) is None
    other = Labels(run.samples.tenant.codes, ("other",))
    assert (
        difference(run, _with(run, tenant=other))
        == "request 1 is of 'default' in A and 'other' in B"
    )


def test_a_millisecond_is_none() -> None:
    run = rehearsed.run()
    due = run.samples.scheduled
    assert difference(run, _with(run, scheduled=due + 0.001)) is None
    assert difference(run, _with(run, scheduled=due + 0.0015)) is not None


def test_other_numbers_of_requests_are_told() -> None:
    run = rehearsed.run()
    fewer: Samples = run.samples.take(np.arange(len(run.samples) - 3))
    assert difference(run, replace(run, samples=fewer)) == (
        "1,400 requests in A and 1,397 in B until 400 s"
    )


def test_a_run_that_was_cut_off_is_compared_as_far_as_it_went() -> None:
    run = rehearsed.run()
    kept = run.samples.take(run.samples.scheduled < 100)
    assert difference(run, replace(run, samples=kept, done=99.9)) is None


@pytest.mark.parametrize("field", ["duration", "phases", "fingerprint"])
def test_what_the_schedule_says_of_itself_counts(field: str) -> None:
    run = rehearsed.run()
    told = {
        "duration": ({"duration": 500.0}, "duration 400 s and 500 s"),
        "phases": ({"phases": run.phases[:-1]}, "31 phases in A and 30 in B"),
        "fingerprint": ({"fingerprint": "other"}, "fingerprints by hand in A and other in B"),
    }[field]
    assert difference(run, replace(run, **told[0])) == told[1]  # type: ignore[arg-type]  # by name
