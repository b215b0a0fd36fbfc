"""What a plan says of the traffic: rates, tokens, bursts, agents; and a log without gaps in it.

Rule: what a log does not say is drawn from what was assumed, and the plan says so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.simulation.bound import unavoidable
from surgetank.simulation.workload import Workload, from_trace
from surgetank.studies.planning.growth import Growth, growth
from surgetank.studies.planning.thresholds import Replica
from surgetank.traffic.analysis import Analysis
from surgetank.traffic.tokencounts import TokenCounts
from surgetank.traffic.trace import UNKNOWN, Counts, Trace

_WINDOWS: Final = (60, 600)
_MINUTE: Final = 60.0
_POINTS: Final = 300  # of a curve
_DAY: Final = 86_400.0
_MOST_DAYS: Final = 1000  # of a log: it is looked at in windows of ten seconds
_AGENTS: Final = 0.5  # of the requests in sessions: then it is agents' traffic


@dataclass(frozen=True, slots=True)
class Rates:
    """Amounts per second over full windows; None where the log holds none."""

    mean: float
    p95: float | None
    p99: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class Agents:
    """Sessions, and the tokens/s that one burns while it lasts (P50, P99)."""

    sessions: int
    calls_mean: float
    burn_p50: float | None
    burn_p99: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """Replicas' work in windows of `window_s`, from the log's begin on: at most 300 of them."""

    window_s: float
    replicas: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of a log: rates by window (60 and 600 s) of requests, tokens and replicas' work.

    `burst_s`: how long a burst lasts, None without bursts; `unavoidable`: share of the requests
    that bursts bring before a start they cause can be ready; `period_s`: of pulses, if there are;
    `growth`: how far above the log's own peak the plan has to reach.
    """

    requests: int
    span_s: float
    requests_per_s: dict[str, Rates]
    prompt_tokens_per_s: dict[str, Rates]
    output_tokens_per_s: dict[str, Rates]
    replicas_of_work: dict[str, Rates]
    course: Course
    burst_s: float | None
    period_s: float | None
    unavoidable: float
    growth: Growth
    agents: Agents | None

    def to_json(self) -> dict[str, Any]:
        """JSON-able: names as here."""
        return asdict(self)


def completed(
    trace: Trace, prompt: TokenCounts, output: TokenCounts, *, seed: int
) -> tuple[Trace, tuple[str, ...]]:
    """Fill in the tokens that rows do not state, and say for how many."""
    batch = trace.batch
    rng = np.random.default_rng(seed)
    notes = []
    filled: dict[str, Counts] = {}
    for name, lengths, least in (("prompt_tokens", prompt, 1), ("output_tokens", output, 0)):
        column: Counts | None = getattr(batch, name)
        if column is None:
            column = np.full(len(batch), UNKNOWN, np.int64)
        missing = column < least
        if missing.any():
            filled[name] = np.where(missing, lengths.draw(len(batch), rng), column)
            share = missing.mean()
            notes.append(
                f"{name.replace('_', ' ')} of {share:.0%} of the requests are assumed, not read: "
                f"the log does not state them (--{name.partition('_')[0]})"
            )
    return replace(trace, batch=replace(batch, **filled)), tuple(notes)  # type: ignore[arg-type]  # columns by name


def one_pool(trace: Trace, name: str) -> tuple[Workload, tuple[str, ...]]:
    """Take all requests for one pool's, whatever model they name."""
    load = from_trace(trace, model=name)
    used = np.unique(load.model)
    notes: tuple[str, ...] = ()
    if len(used) > 1:
        names = ", ".join(load.models[i] for i in used[:4])
        notes = (f"the log names {len(used)} models ({names}): planned as one pool of this engine",)
    chosen = load.models[int(used[0])] if len(used) == 1 else name
    if not chosen.isprintable():  # a log's text; a configuration could not say it
        chosen = name
    begin = float(load.arrived[0])  # a log's own clock may begin at any number
    days = (float(load.arrived[-1]) - begin) / _DAY
    if days > _MOST_DAYS:
        raise InputError(
            f"the log's requests are {days:,.0f} days apart, more than {_MOST_DAYS}: "
            "some of its times are wrong, or choose a part with --from and --to"
        )
    load = replace(
        load,
        arrived=load.arrived - begin,
        origin=load.origin + begin,
        model=np.zeros(len(load), np.int32),
        models=(chosen,),
    )
    return load, notes


def traffic_of(load: Workload, analysis: Analysis, one: Replica, lead: float) -> Traffic:
    """Make the figures."""
    work = work_of(load, one)
    sessions = analysis.sessions
    agents = None
    if sessions is not None and sessions.share_of_requests >= _AGENTS:
        agents = Agents(
            sessions.sessions,
            sessions.calls_mean,
            sessions.tokens_per_second_p50,
            sessions.tokens_per_second_p99,
        )
    return Traffic(
        requests=len(load),
        span_s=load.span,
        requests_per_s=_rates(load, np.ones(len(load))),
        prompt_tokens_per_s=_rates(load, load.prompt.astype(float)),
        output_tokens_per_s=_rates(load, load.output.astype(float)),
        replicas_of_work=_rates(load, work),
        course=_course(load, work),
        burst_s=analysis.burst_seconds,
        period_s=None if analysis.pulse is None else analysis.pulse.period_s,
        unavoidable=float(unavoidable(load, start=lead)),
        growth=growth(load, work),
        agents=agents,
    )


def work_of(load: Workload, one: Replica) -> NDArray[np.float64]:
    """Replica-seconds that each request takes."""
    fresh = load.prompt.astype(float)
    if load.cached is not None:
        fresh = np.maximum(1.0, fresh - np.maximum(0, load.cached))
    return fresh / one.prompt_tokens + load.output / one.output_tokens


def _course(load: Workload, work: NDArray[np.float64]) -> Course:
    minutes = max(1, ceil(load.span / _POINTS / _MINUTE))
    window = _MINUTE * minutes
    index = ((load.arrived - load.arrived[0]) // window).astype(np.int64)
    whole = max(1, int(load.span // window))
    return Course(window, tuple((np.bincount(index, weights=work)[:whole] / window).tolist()))


def _rates(load: Workload, amounts: NDArray[np.float64]) -> dict[str, Rates]:
    span = max(load.span, 1.0)
    return {str(w): _rate(load, amounts, w, span) for w in _WINDOWS}


def _rate(load: Workload, amounts: NDArray[np.float64], window: int, span: float) -> Rates:
    mean = float(amounts.sum()) / span
    index = ((load.arrived - load.arrived[0]) // window).astype(np.int64)
    sums = np.bincount(index, weights=amounts)[: int(span // window)] / window
    if not len(sums):
        return Rates(mean, None, None, None)
    p95, p99 = np.quantile(sums, (0.95, 0.99)).tolist()
    return Rates(mean, p95, p99, float(sums.max()))
