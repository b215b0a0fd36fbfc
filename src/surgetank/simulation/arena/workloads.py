"""Named workloads of the arena: shapes within written ranges, drawn by a seed.

Rule: a scenario's parameters are drawn from its ranges, then its arrivals from those; so a fresh
seed gives a fresh scenario of the same kind. The first half is to learn from, the second is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.random import Generator

from surgetank.errors import InputError
from surgetank.simulation.clients import ClientSpec
from surgetank.simulation.logs import read_trace
from surgetank.simulation.workload import Workload, from_trace
from surgetank.traffic import arrivals
from surgetank.traffic.agents import AgentSpec, agent_sessions
from surgetank.traffic.lengths import LengthSpec, trace_of, trace_of_tenants
from surgetank.traffic.trace import Batch, Trace

Drawn = Mapping[str, float]
Ranges = Mapping[str, tuple[float, float]]

PROMPT: Final = LengthSpec(median=2000.0, sigma=0.6, longest=8000)
OUTPUT: Final = LengthSpec(median=250.0, sigma=0.7, longest=1500)
CODE_PROMPT: Final = LengthSpec(median=1500.0, sigma=0.9, longest=7500)
CODE_OUTPUT: Final = LengthSpec(median=13.0, sigma=1.0, longest=1000)
AZURE: Final = "azure_llm_2023_code.csv"
_JITTER: Final = 2.0  # s between the copies of a trace that is laid over itself
_TENANTS: Final = 6


@dataclass(frozen=True, slots=True)
class Load:
    """A workload of two halves: arrivals in [0, 2 x half) seconds."""

    workload: Workload
    half: float
    clients: ClientSpec = field(default_factory=ClientSpec)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of workload. `half`: seconds; `make` gives arrivals within two of them.

    `burst`: the longest that its bursts are, s; None: it has none that are over soon.
    """

    name: str
    about: str
    half: float
    ranges: Ranges
    make: Callable[[Generator, Drawn, float], Trace]
    clients: ClientSpec = field(default_factory=ClientSpec)
    burst: float | None = None


def _pulses(rng: Generator, p: Drawn, span: float) -> Trace:
    times = arrivals.pulse(rng, p["base"], p["base"] * p["ratio"], p["width"], p["period"], span)
    return trace_of(rng, times, prompt=PROMPT, output=OUTPUT)


def _drift(rng: Generator, p: Drawn, span: float) -> Trace:
    slow = 2 * np.pi / p["period"]
    phase = rng.uniform(0, 2 * np.pi)

    def rate(t: arrivals.Times) -> arrivals.Times:
        wave = np.sin(slow * t + phase) + 0.4 * np.sin(2.7 * slow * t + 2 * phase)
        return np.maximum(0.1, p["mean"] * (1 + p["swing"] * wave / 1.4))

    times = arrivals.varying(rng, rate, span, step=5.0)
    return trace_of(rng, times, prompt=PROMPT, output=OUTPUT)


def _flash(rng: Generator, p: Drawn, span: float) -> Trace:
    parts = [arrivals.poisson(rng, p["base"], span)]
    at = rng.uniform(0.2, 0.8) * p["apart"]
    while at < span:
        crowd = arrivals.flash_crowd(
            rng,
            0.0,
            p["peak"] * rng.uniform(0.6, 1.0),
            start=at,
            ramp=p["ramp"],
            hold=p["hold"],
            decay=p["decay"],
            duration=span,
        )
        parts.append(crowd)
        at += p["apart"] * rng.uniform(0.6, 1.4)
    return trace_of(rng, np.sort(np.concatenate(parts)), prompt=PROMPT, output=OUTPUT)


def _cron(rng: Generator, p: Drawn, span: float) -> Trace:
    times = arrivals.cron_spike(
        rng,
        p["base"],
        p["spike"],
        every=p["every"],
        duration=span,
        offset=p["every"] / 2,
        spread=p["spread"],
    )
    return trace_of(rng, times, prompt=PROMPT, output=OUTPUT)


def _diurnal(rng: Generator, p: Drawn, span: float) -> Trace:
    streams = {}
    for number in range(_TENANTS):
        mean = p["mean"] * rng.uniform(0.4, 1.6) / _TENANTS
        streams[f"tenant-{number + 1}"] = arrivals.diurnal(
            rng,
            mean,
            p["swing"],
            span,
            period=p["day"],
            busiest=p["day"] * (0.5 + 0.15 * rng.standard_normal()),
        )
    spec = arrivals.Mmpp2Spec(p["mean"] * 0.05, p["mean"] * 0.8, 120.0, 20.0)
    streams["tenant-1"] = np.sort(
        np.concatenate([streams["tenant-1"], arrivals.mmpp2(rng, spec, span)])
    )
    return trace_of_tenants(rng, streams, prompt=PROMPT, output=OUTPUT)


def _agents(rng: Generator, p: Drawn, span: float) -> Trace:
    spec = AgentSpec(
        turns=p["turns"],
        think=p["think"],
        fan_probability=p["fan"],
        fan_out=round(p["wide"]),
        longest_context=16_000,
    )
    sessions = p["calls"] / spec.calls
    whole = agent_sessions(rng, spec, sessions, span)
    return Trace.of([whole.batch.take(whole.batch.arrived < span)], whole.source)


def _code(rng: Generator, p: Drawn, span: float) -> Trace:
    spec = arrivals.Mmpp2Spec.of_dispersion(p["mean"], p["idc"], time_scale=p["scale"])
    return trace_of(rng, arrivals.mmpp2(rng, spec, span), prompt=CODE_PROMPT, output=CODE_OUTPUT)


SCENARIOS: Final = MappingProxyType(
    {
        s.name: s
        for s in (
            Scenario(
                "azure-code",
                "code completion: long prompts, short answers, clumps (the trace laid over itself"
                " when it is given, else a fitted two-state process)",
                1740.0,
                {"mean": (4.5, 6.0), "idc": (60.0, 160.0), "scale": (10.0, 25.0)},
                _code,
            ),
            Scenario(
                "drift",
                "conversation that drifts over tens of minutes",
                1500.0,
                {"mean": (5.0, 8.0), "swing": (0.4, 0.7), "period": (900.0, 2400.0)},
                _drift,
            ),
            Scenario(
                "pulses",
                "a base and regular pulses, shorter than a start",
                1200.0,
                {
                    "base": (2.5, 4.0),
                    "ratio": (3.0, 5.0),
                    "width": (20.0, 40.0),
                    "period": (75.0, 120.0),
                },
                _pulses,
                burst=40.0,
            ),
            Scenario(
                "flash-crowds",
                "crowds at random times that climb within seconds and ebb away",
                1800.0,
                {
                    "base": (2.0, 3.0),
                    "peak": (12.0, 24.0),
                    "apart": (450.0, 750.0),
                    "ramp": (5.0, 20.0),
                    "hold": (30.0, 90.0),
                    "decay": (30.0, 90.0),
                },
                _flash,
            ),
            Scenario(
                "cron-spikes",
                "jobs that start at fixed minutes, all at once",
                1800.0,
                {
                    "base": (1.5, 2.5),
                    "spike": (80.0, 160.0),
                    "every": (600.0, 600.0),
                    "spread": (3.0, 10.0),
                },
                _cron,
                burst=10.0,
            ),
            Scenario(
                "diurnal-tenants",
                "six tenants with days of their own (a day is half an hour), one of them clumped",
                1800.0,
                {"mean": (4.0, 7.0), "swing": (0.6, 0.9), "day": (1800.0, 1800.0)},
                _diurnal,
            ),
            Scenario(
                "agent-fan-out",
                "agent sessions: growing context, turns that fan out into several calls",
                1200.0,
                {
                    "calls": (3.0, 6.0),
                    "turns": (6.0, 12.0),
                    "think": (5.0, 15.0),
                    "fan": (0.1, 0.3),
                    "wide": (4.0, 10.0),
                },
                _agents,
            ),
            Scenario(
                "retry-storm",
                "pulses of clients that hang up after 20 s and ask again, as openai-python does",
                1200.0,
                {
                    "base": (2.5, 4.0),
                    "ratio": (4.0, 6.0),
                    "width": (25.0, 50.0),
                    "period": (200.0, 300.0),
                },
                _pulses,
                ClientSpec(retries=2, timeout=20.0),
                burst=50.0,
            ),
        )
    }
)
"""By name. Rates are requests/s, times seconds; a range of one value is fixed."""


def find(name: str) -> Scenario:
    """Find a scenario. Raises InputError."""
    found = SCENARIOS.get(name)
    if found is None:
        raise InputError(f"scenario {name}: must be one of {', '.join(SCENARIOS)}")
    return found


def draw(name: str, seed: int, *, traces: Path | None = None) -> Load:
    """Draw a scenario's parameters and arrivals. `traces`: a folder with the public traces.

    Raises InputError.
    """
    chosen = find(name)
    kinds = sorted(SCENARIOS)
    rng = np.random.default_rng([seed, kinds.index(name)])
    if name == "azure-code" and traces is not None and (traces / AZURE).exists():
        return _azure(traces / AZURE, rng)
    drawn = {key: float(rng.uniform(low, high)) for key, (low, high) in chosen.ranges.items()}
    trace = chosen.make(rng, drawn, 2 * chosen.half)
    return Load(from_trace(trace), chosen.half, chosen.clients)


def _azure(path: Path, rng: Generator) -> Load:
    """Lay the trace over itself, the second copy moved by up to two seconds either way."""
    batch = read_trace(str(path), None, ()).batch
    begin = float(batch.arrived[0])
    span = float(batch.arrived[-1]) - begin + 1.0
    times, rows = arrivals.superposed(
        rng, batch.arrived - begin, 2.0, jitter=_JITTER, duration=span
    )
    kept = batch.take(rows)
    if kept.prompt_tokens is None or kept.output_tokens is None:
        raise InputError(f"{path}: no token counts in it")
    twice = Batch(times, prompt_tokens=kept.prompt_tokens, output_tokens=kept.output_tokens)
    return Load(from_trace(Trace.of([twice])), span / 2)
