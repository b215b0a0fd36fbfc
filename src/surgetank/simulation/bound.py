"""The clairvoyant bound: the fewest replica-hours with which anybody could keep an objective.

A linear programme over a grid of time, solved by HiGHS. It knows every arrival, its fleet is
divisible, its engines do each request at the least it can cost, work may be split and reordered at
will, and it drops the requests that are allowed to miss. So no policy can be below it:

    minimise  sum dt (N + c (M - N)) + L sum U
    served    S(t) - S(t-1) <= N(t) dt,   S never falls
    in time   S(t) + X(t) >= work due by t          (X: dropped, at most the allowed)
    causal    S(t) + X(t) <= work that came by t
    fleet     least <= N <= M <= most,   U(t) >= M(t) - M(t-1)

N replicas serve and M are loaded; a standby costs c of a serving one, a start L seconds of one. The
replicas of the first moment are there without a start, as in the simulator.

Rule: every simplification is in the bound's favour; the bench checks it against every policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.profile import EngineProfile
from surgetank.errors import InputError
from surgetank.simulation.workload import Workload

Floats = NDArray[np.float64]

_FAST_START: Final = 2.33  # sigmas below the median: 1 of 100 starts is as short
_MOST_STEPS: Final = 2400  # of the grid; beyond them its steps grow


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of an engine that each request takes at the least, and when they are due."""

    arrived: Floats
    prefill: Floats
    prefill_due: Floats
    decode: Floats
    decode_due: Floats

    @property
    def whole(self) -> Floats:
        return self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a fleet may be and costs. Seconds and replicas; `standby_cost` of a serving replica."""

    start: float
    standby_cost: float = 1.0
    least: int = 1
    most: int = 64


@dataclass(frozen=True, slots=True)
class Bound:
    """A solution. `serving` and `loaded` on the grid of `step` seconds from `begin` on."""

    replica_hours: float
    begin: float
    step: float
    serving: Floats
    loaded: Floats
    dropped: float  # share of the work


def least_work(load: Workload, profile: EngineProfile, ttft: float, tpot: float) -> Work:
    """Give the least engine time of each request, by the step-time formula.

    t = a + bP + cS + dB + eKV. A request's own b, c, d and e terms cannot be shared. Steps can: one
    holds at most the token budget, at most max_num_seqs decoding sequences, and at most the KV in
    contexts of those. Each of the three is a share of `a` that a request takes at the least; the
    one that is the most in all is charged.
    """
    cached = np.zeros(len(load)) if load.cached is None else np.maximum(0, load.cached)
    prompt = load.prompt - np.minimum(cached, load.prompt - 1)
    output = load.output.astype(float)
    if load.max_tokens is not None:
        bound = load.max_tokens
        output = np.where((bound >= 0) & (bound < output), bound, output)
    later = np.maximum(0.0, output - 1)  # the first token comes of the prefill's last step
    s = prompt * (load.prompt - prompt) + prompt**2 / 2
    prefill = 1e-6 * profile.b_us * prompt + 1e-9 * profile.c_ns * s
    context = load.prompt + output / 2
    decode = later * (1e-6 * profile.d_us + 1e-9 * profile.e_ns * context)
    a = 1e-3 * profile.a_ms
    nothing = np.zeros(len(load))
    shares = (  # of prefill and of decode
        (prompt / profile.max_num_batched_tokens, later / profile.max_num_batched_tokens),
        (nothing, later / profile.max_num_seqs),
        (nothing, later * context / profile.kv_tokens),
    )
    of_prefill, of_decode = max(shares, key=lambda pair: float(pair[0].sum() + pair[1].sum()))
    prefill, decode = prefill + a * of_prefill, decode + a * of_decode
    first = load.arrived + ttft
    return Work(load.arrived, prefill, first, decode, first + tpot * later)


def usual_work(
    load: Workload, prompt_rate: float, output_rate: float, *, slack: float, tpot: float
) -> Work:
    """What each request takes of a replica that does so many tokens/s of either kind alone.

    For a schedule that is meant to be run: `slack` is the wait that leaves time for its prefill.
    """
    later = np.maximum(0.0, load.output - 1.0)
    first = load.arrived + slack
    return Work(
        load.arrived,
        load.prompt / prompt_rate,
        first,
        later / output_rate,
        first + tpot * later / 2,  # half of its time: a batch is not divisible
    )


def shortest_start(mean: float, sigma: float = 0.2) -> float:
    """Seconds below which one start of a hundred is (lognormal with this mean)."""
    return mean * math.exp(-(sigma**2) / 2 - _FAST_START * sigma)


def solve(
    work: Work,
    fleet: Fleet,
    attainment: float,
    *,
    end: float,
    begin: float = 0.0,
    most_steps: int = _MOST_STEPS,
) -> Bound:
    """Solve for a fleet from `begin` to `end` (s) on a grid of at most so many steps.

    Raises InputError when no fleet is enough.
    """
    if not 0 <= attainment <= 1:
        raise InputError(f"attainment {attainment}: must be between 0 and 1")
    span = max(1e-9, end - begin)
    step = max(1.0, math.ceil(span / most_steps))
    size = max(1, math.ceil(span / step))
    came = _cumulated(work.arrived, work.whole, begin, step, size)
    due = _cumulated(work.prefill_due, work.prefill, begin, step, size)
    due += _cumulated(work.decode_due, work.decode, begin, step, size)
    missed = _droppable(work.whole, attainment)
    found = _minimise(came, np.minimum(due, came), missed, fleet, step)
    if found is None:
        raise InputError(
            f"no fleet of {fleet.most} replicas attains {attainment:.1%}, whatever it knows"
        )
    cost, serving, loaded, dropped = found
    whole = float(came[-1])
    return Bound(cost / 3600, begin, step, serving, loaded, dropped / whole if whole else 0.0)


def _cumulated(times: Floats, amounts: Floats, begin: float, step: float, size: int) -> Floats:
    """Amounts by the end of each step: what comes in one may be served, is due by its end."""
    at = (times - begin) / step
    index = np.floor(at).astype(np.int64)
    kept = index < size  # what is due after the end is never asked for
    return np.cumsum(
        np.bincount(np.maximum(0, index[kept]), weights=amounts[kept], minlength=size)[:size]
    )


def _droppable(work: Floats, attainment: float) -> float:
    """Most work that the requests allowed to miss can hold: that of the largest ones."""
    misses = math.floor((1 - attainment) * len(work) + 1e-9)
    return float(np.sort(work)[len(work) - misses :].sum())


def _minimise(
    came: Floats, due: Floats, missed: float, fleet: Fleet, step: float
) -> tuple[float, Floats, Floats, float] | None:
    """Cost in replica-seconds, N, M, and what is dropped; None: infeasible."""
    import scipy.sparse as sp  # noqa: PLC0415 - heavy, and only here
    from scipy.optimize import linprog  # noqa: PLC0415

    n = len(came)
    one, none = sp.identity(n, format="csr"), sp.csr_matrix((n, n))
    rise = one - sp.diags([np.ones(n - 1)], [-1], shape=(n, n), format="csr")
    started = rise.tolil()
    started[0, 0] = 0.0  # what is there at first was not started
    started = started.tocsr()
    # columns: N, M, U, S, X
    rows = [
        ([-step * one, none, none, rise, none], np.zeros(n)),
        ([none, none, none, -rise, none], np.zeros(n)),
        ([none, none, none, none, -rise], np.zeros(n)),
        ([none, none, none, -one, -one], -due),
        ([none, none, none, one, one], came),
        ([one, -one, none, none, none], np.zeros(n)),
        ([none, started, -one, none, none], np.zeros(n)),
    ]
    found = linprog(
        np.concatenate(
            [
                np.full(n, step * (1 - fleet.standby_cost)),
                np.full(n, step * fleet.standby_cost),
                np.full(n, fleet.start),
                np.zeros(2 * n),
            ]
        ),
        A_ub=sp.vstack([sp.hstack(blocks) for blocks, _ in rows], format="csr"),
        b_ub=np.concatenate([right for _, right in rows]),
        bounds=[(fleet.least, fleet.most)] * (2 * n) + [(0, None)] * (2 * n) + [(0, missed)] * n,
        method="highs",
    )
    if not found.success:
        return None
    x: Floats = found.x
    return float(found.fun), x[:n], x[n : 2 * n], float(x[-1])


def unavoidable(load: Workload, *, start: float, window: float = 10.0) -> float:
    """Share of the requests that a burst brings before any start it causes can be ready.

    Of each stretch above twice the median rate: min(length, start) x (rate - headroom), where the
    headroom is twice the median: what a fleet at half its capacity takes at once. Nobody who
    launches only when a burst is there can serve them in time; warm standbys can.
    """
    if not len(load):
        return 0.0
    first = float(load.arrived[0])
    index = ((load.arrived - first) // window).astype(np.int64)
    rates = np.bincount(index) / window
    headroom = 2 * float(np.median(rates))
    above = np.concatenate([[False], rates > headroom, [False]])
    edges = np.flatnonzero(np.diff(above.astype(np.int8)))
    lost = 0.0
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        length = (end - begin) * window
        rate = float(rates[begin:end].mean())
        lost += min(length, start) * (rate - headroom)
    return lost / len(load)
