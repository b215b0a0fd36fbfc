"""Traces from generators: lengths, tenants and agent sessions have the moments they state."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from numpy.random import default_rng

from surgetank.traffic.agents import AgentSpec, agent_sessions
from surgetank.traffic.arrivals import poisson
from surgetank.traffic.lengths import LengthSpec, draw_lengths, trace_of, trace_of_tenants


def test_lengths_have_the_median_and_the_mean_of_a_log_normal() -> None:
    spec = LengthSpec(median=500, sigma=0.7)
    lengths = draw_lengths(default_rng(1), spec, 100_000)
    assert np.median(lengths) == pytest.approx(500, rel=0.01)
    assert lengths.mean() == pytest.approx(spec.mean, rel=0.01)
    assert np.log(lengths).std() == pytest.approx(0.7, rel=0.01)


def test_lengths_keep_their_bounds() -> None:
    lengths = draw_lengths(default_rng(1), LengthSpec(median=2, sigma=3, longest=64), 10_000)
    assert lengths.min() == 1
    assert lengths.max() == 64
    assert np.all(draw_lengths(default_rng(1), LengthSpec(median=7, sigma=0), 5) == 7)


def test_tenants_lie_together_by_time_and_keep_their_names() -> None:
    rng = default_rng(3)
    arrivals = {"big": poisson(rng, 9, 100), "small": poisson(rng, 1, 100)}
    trace = trace_of_tenants(rng, arrivals)
    assert np.all(np.diff(trace.batch.arrived) >= 0)
    tenant = trace.batch.tenant
    assert tenant is not None
    for name, times in arrivals.items():
        own = trace.batch.arrived[tenant.codes == tenant.names.index(name)]
        assert np.array_equal(own, times)


def test_a_trace_without_a_tenant_has_no_such_column() -> None:
    trace = trace_of(default_rng(1), np.array([0.0, 1.0]))
    assert trace.batch.tenant is None
    assert trace.source.rows == 2


def test_sessions_have_their_number_of_calls_and_their_pauses() -> None:
    spec = AgentSpec(turns=6, think=4, fan_probability=0.25, fan_out=5)
    trace = agent_sessions(default_rng(5), spec, 1.0, 1500)
    session = trace.batch.session
    assert session is not None
    calls = np.bincount(session.codes)
    # Geometric turns have a standard deviation of about their mean.
    assert calls.mean() == pytest.approx(spec.calls, abs=4 * spec.calls / sqrt(1500))
    assert len(session.names) == pytest.approx(1500, abs=4 * sqrt(1500))


def test_a_session_without_fan_out_waits_for_each_answer_and_thinks() -> None:
    spec = AgentSpec(turns=10, think=4, fan_probability=0)
    trace = agent_sessions(default_rng(5), spec, 0.5, 800)
    batch = trace.batch
    assert batch.session is not None
    assert batch.duration is not None
    pauses: list[float] = []
    for code in range(len(batch.session.names)):
        own = np.flatnonzero(batch.session.codes == code)
        pauses.extend(batch.arrived[own][1:] - (batch.arrived[own] + batch.duration[own])[:-1])
    assert min(pauses) >= -1e-9
    assert np.mean(pauses) == pytest.approx(4, rel=0.08)


def test_a_sessions_context_grows_and_what_was_there_is_cached() -> None:
    trace = agent_sessions(default_rng(2), AgentSpec(fan_probability=0), 0.5, 200)
    batch = trace.batch
    assert batch.session is not None
    assert batch.prompt_tokens is not None
    assert batch.cached_tokens is not None
    for code in range(len(batch.session.names)):
        own = np.flatnonzero(batch.session.codes == code)
        assert np.all(np.diff(batch.prompt_tokens[own]) > 0)
        assert batch.cached_tokens[own][0] == 0
        assert np.array_equal(batch.cached_tokens[own][1:], batch.prompt_tokens[own][:-1])


def test_a_context_that_is_full_ends_the_session() -> None:
    spec = AgentSpec(turns=500, longest_context=20_000, think=0.1)
    trace = agent_sessions(default_rng(2), spec, 0.2, 100)
    assert trace.batch.prompt_tokens is not None
    assert trace.batch.prompt_tokens.max() <= 20_000
