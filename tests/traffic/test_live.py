"""A live window gives what a log of its minutes gives, and forgets what is older."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.random import default_rng

from surgetank.traffic import arrivals
from surgetank.traffic.burstiness import Accumulator, analyse
from surgetank.traffic.live import LiveWindow
from surgetank.traffic.trace import Batch, Trace

BEGIN = 1_800_000_000.0  # a full minute


def pulse(seconds: float) -> Batch:
    times = arrivals.pulse(default_rng(1), 20, 80, 30, 90, seconds) + BEGIN
    return Batch(times, prompt_tokens=default_rng(2).integers(1, 4000, len(times)))


def rounded(figure: object) -> object:
    """Parts add their floats up in another order: 12 digits agree."""
    return json.loads(json.dumps(figure), parse_float=lambda text: f"{float(text):.12g}")


def test_a_live_window_has_the_figures_of_a_log_of_its_minutes() -> None:
    whole = pulse(3600)
    live = LiveWindow(span=900)
    for cut in range(0, len(whole), 1000):
        live.add(whole.take(slice(cut, cut + 1000)))
    last = whole.take(whole.arrived >= BEGIN + 2700)
    found, expected = live.analyse().to_json(), analyse(Trace.of([last])).to_json()
    assert found["requests"] == len(last)
    for figure in ("idc", "rate", "peak_to_mean", "tokens", "pulse", "verdict", "advice"):
        assert rounded(found[figure]) == rounded(expected[figure]), figure


def test_counted_seconds_have_the_dispersion_of_their_requests() -> None:
    whole = pulse(900)
    seconds, at = np.unique(np.floor(whole.arrived).astype(np.int64), return_inverse=True)
    assert whole.prompt_tokens is not None
    prompts = np.bincount(at, weights=whole.prompt_tokens).astype(np.int64)
    live = LiveWindow(span=900, counts_only=True)
    for counted in zip(seconds.tolist(), np.bincount(at).tolist(), prompts.tolist(), strict=True):
        live.add_second(*counted)
    found = live.analyse()
    rows = Accumulator(counts_only=True)
    rows.add(whole)
    expected = rows.analyse()
    for window in ("1", "10", "60"):
        assert found.idc.requests[window] == pytest.approx(expected.idc.requests[window], rel=0.02)
    assert found.verdict.shape == "pulses"
    assert found.pulse is not None
    assert found.pulse.peak_rps == pytest.approx(80, rel=0.05)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    live = LiveWindow(span=120, counts_only=True)
    for minute in range(100):
        live.add(Batch(BEGIN + 60 * minute + np.arange(0.0, 60.0, 0.5)))
    assert live.analyse().requests == 240
    assert live.analyse().span_s == pytest.approx(120, abs=1)


def test_an_empty_window_is_undecided() -> None:
    found = LiveWindow().analyse()
    assert (found.requests, found.verdict.confident) == (0, False)
