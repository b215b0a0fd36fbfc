"""Fit the step time to what an engine was seen to do: from requests to coefficients.

The engine model itself is run on the observed arrivals, and its coefficients are moved until its
first tokens and its time per output token are those observed: Levenberg-Marquardt on the logarithms
of the coefficients. So queueing, chunked prefill and preemption are accounted for as the engine
does them, and no step has to be observed.

A single request's TTFT depends on where in a step it happened to arrive, which no model can tell:
so residuals are the means of log(model / observed), outliers damped (Huber), over groups of
requests near in time or alike in size, and slopes are taken over a wide step.

A coefficient that the data do not tell (c without long prompts, e without long contexts) stays near
where it began: a weak prior holds it there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.profile import EngineProfile

COEFFICIENTS: Final = ("a_ms", "b_us", "c_ns", "d_us", "e_ns", "f_ms")
_ROUNDS: Final = 40
_STEP: Final = 0.15  # in logarithms, to each side: far above the jumps that scheduling makes
_PRIOR: Final = 1e-3  # of a coefficient's distance from its beginning, in logarithms
_GROUPS: Final = 40  # of each kind, at most
_GROUP: Final = 8  # requests in a group, at least
_HUBER: Final = 0.7  # a log ratio beyond this counts for a tenth
_ENOUGH: Final = 1e-4  # relative gain of a round that ends the search

Times = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Observed:
    """Requests of one or more engines as columns of one length. Seconds; NaN: did not happen.

    `arrived` is when the engine got it, in order. `ttft` counts from there. `computed`: prompt
    tokens that no cache had. `counts`: it was completed, so that its figures are compared; the
    others only load the engine. `engine` tells the replicas apart.
    """

    arrived: Times
    engine: NDArray[np.int64]
    prompt: NDArray[np.int64]
    computed: NDArray[np.int64]
    output: NDArray[np.int64]
    ttft: Times
    tpot: Times
    counts: Flags


@dataclass(frozen=True, slots=True)
class Modelled:
    """What the model says of the same requests, in the same order; NaN: never came."""

    ttft: Times
    tpot: Times


Run = Callable[[EngineProfile], Modelled]


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of the model on some requests; None where there is nothing to compare.

    mean: mean of |model / observed - 1|; bias: its median with the sign; p95: of the absolute.
    """

    requests: int
    ttft_mean: float | None
    ttft_bias: float | None
    ttft_p95: float | None
    tpot_mean: float | None
    tpot_bias: float | None
    tpot_p95: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile, and its errors on what it was fitted to and on what it was not shown."""

    profile: EngineProfile
    fitted: Error
    held_out: Error


def fit(begin: EngineProfile, run: Run, seen: Observed, held_out: Flags) -> Fit:
    """Fit the step coefficients of `begin` to `seen` but for `held_out`.

    `run` simulates all requests with a profile. Limits and KV are those of `begin`. Raises
    ValueError when fewer than 8 requests remain to fit to.
    """
    shown = seen.counts & ~held_out
    if shown.sum() < 8:
        raise ValueError(f"{int(shown.sum())} completed requests to fit to: must be >= 8")
    names = [name for name in COEFFICIENTS if getattr(begin, name) > 0]
    start = np.log([getattr(begin, name) for name in names])

    groups = _groups(seen, shown)

    def residuals(theta: Times) -> Times:
        modelled = run(_with(begin, names, theta))
        prior = math.sqrt(_PRIOR * shown.sum()) * (theta - start)
        return np.concatenate([_residuals(seen, modelled, groups), prior])

    theta = _search(residuals, start)
    profile = _with(begin, names, theta)
    modelled = run(profile)
    return Fit(
        profile,
        error(seen, modelled, shown),
        error(seen, modelled, seen.counts & held_out),
    )


def _with(profile: EngineProfile, names: list[str], theta: Times) -> EngineProfile:
    return replace(profile, **dict(zip(names, np.exp(theta).tolist(), strict=True)))


_Groups = list[NDArray[np.intp]]


def _groups(seen: Observed, shown: Flags) -> tuple[_Groups, _Groups]:
    """Group requests near in time, and those of like size: (for TTFT, for TPOT)."""
    has_ttft = np.flatnonzero(shown & np.isfinite(seen.ttft))
    has_tpot = np.flatnonzero(shown & np.isfinite(seen.tpot))
    return (
        _parts(has_ttft, seen.arrived) + _parts(has_ttft, seen.computed),
        _parts(has_tpot, seen.arrived) + _parts(has_tpot, seen.prompt + seen.output),
    )


def _parts(rows: NDArray[np.intp], order: NDArray[Any]) -> _Groups:
    if not len(rows):
        return []
    rows = rows[np.argsort(order[rows], kind="stable")]
    return np.array_split(rows, max(1, min(_GROUPS, len(rows) // _GROUP)))


def _residuals(seen: Observed, modelled: Modelled, groups: tuple[_Groups, _Groups]) -> Times:
    """Give each group's mean log ratio, weighted by its size; a figure the model lacks counts 0."""
    found = []
    for ours, theirs, chosen in (
        (modelled.ttft, seen.ttft, groups[0]),
        (modelled.tpot, seen.tpot, groups[1]),
    ):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(ours / theirs)
        ratio[~np.isfinite(ratio)] = 0.0
        ratio = np.clip(ratio, -_HUBER, _HUBER) + 0.1 * ratio
        found += [math.sqrt(len(group)) * float(ratio[group].mean()) for group in chosen]
    return np.array(found)


def _search(residuals: Callable[[Times], Times], start: Times) -> Times:
    """Levenberg-Marquardt with finite differences; moves of at most a factor of e a round."""
    theta, damping = start.copy(), 1e-2
    now = residuals(theta)
    cost = float(now @ now)
    for _ in range(_ROUNDS):
        slopes = np.empty((len(now), len(theta)))
        for i in range(len(theta)):
            side = np.zeros(len(theta))
            side[i] = _STEP
            slopes[:, i] = (residuals(theta + side) - residuals(theta - side)) / (2 * _STEP)
        normal, gradient = slopes.T @ slopes, slopes.T @ now
        gained = 0.0
        while damping < 1e6:
            scaled = normal + damping * np.diag(np.diag(normal) + 1e-9)
            move = np.clip(np.linalg.solve(scaled, -gradient), -1.0, 1.0)
            tried = residuals(theta + move)
            if float(tried @ tried) < cost:
                gained = cost - float(tried @ tried)
                theta, now, cost = theta + move, tried, float(tried @ tried)
                damping = max(damping / 5, 1e-6)
                break
            damping *= 4
        if gained <= _ENOUGH * cost:
            break
    return theta


def error(seen: Observed, modelled: Modelled, chosen: Flags) -> Error:
    """Compare the model with what was seen, on some of the requests."""
    ttft = _relative(modelled.ttft[chosen], seen.ttft[chosen])
    tpot = _relative(modelled.tpot[chosen], seen.tpot[chosen])
    return Error(int(chosen.sum()), *_summary(ttft), *_summary(tpot))


def _relative(ours: Times, theirs: Times) -> Times:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = ours / theirs - 1.0
    return ratio[np.isfinite(ratio)]


def _summary(ratio: Times) -> tuple[float | None, float | None, float | None]:
    if not len(ratio):
        return None, None, None
    size = np.abs(ratio)
    return float(size.mean()), float(np.median(ratio)), float(np.quantile(size, 0.95))


def begin_from(seen: Observed, limits: EngineProfile) -> EngineProfile:
    """Guess where to begin, by linear least squares over what can be read off without a model.

    While a request decodes, it gets one token a step. So its decode time is a (n - 1) + b P + c S +
    d B + e KV, with n its output tokens, and P, S, B, KV what the steps meanwhile had in all: the
    prefill work of those whose first tokens fall into that time, and the decoded tokens and their
    contexts, spread evenly over each request's own decode time. A request that finds its engine
    idle adds: TTFT = a ceil(P / budget) + b P + c P^2 / 2. Coefficients cannot be negative.
    """
    rows, times = [], []
    for engine in np.unique(seen.engine):
        work, took = _equations(seen, seen.engine == engine, limits.max_num_batched_tokens)
        rows.append(work)
        times.append(took)
    work, took = np.concatenate(rows), np.concatenate(times)
    a, b, c, d, e = _positive_least_squares(work / took[:, None])
    return replace(
        limits,
        a_ms=max(a * 1e3, 1e-3),
        b_us=max(b * 1e6, 1e-3),
        c_ns=max(c * 1e9, b * 2e3, 1e-6),  # at least: attention adds a tenth at 50,000 tokens
        d_us=max(d * 1e6, a * 3e2, 1e-3),  # at least: 3,000 sequences double a step
        e_ns=max(e * 1e9, a * 2e1, 1e-6),  # at least: 50 million tokens of context double it
    )


def _equations(seen: Observed, mine: Flags, budget: int) -> tuple[Times, Times]:
    """Give (work of a, b, c, d, e per request; seconds it took) of one engine's requests."""
    arrived, prompt = seen.arrived[mine], seen.prompt[mine].astype(float)
    computed, output = seen.computed[mine].astype(float), seen.output[mine]
    first = arrived + seen.ttft[mine]
    steps = np.where(np.isfinite(seen.tpot[mine]), output - 1.0, 0.0)
    took = np.where(steps > 0, seen.tpot[mine] * steps, 0.0)
    ended = first + took
    known = np.isfinite(first)
    attention = computed * (prompt - computed / 2)
    decoding = known & (steps > 0)
    pace = steps[decoding] / took[decoding]
    tokens = _ramps(first[decoding], ended[decoding], pace)
    context = _ramps(
        first[decoding], ended[decoding], pace * (prompt[decoding] + output[decoding] / 2)
    )
    prefill = _stairs(first[known], computed[known])
    prefill_attention = _stairs(first[known], attention[known])
    begin, end = first[decoding], ended[decoding]
    decode = np.column_stack(
        [steps[decoding]]
        + [f(end) - f(begin) for f in (prefill, prefill_attention, tokens, context)]
    )
    last = np.maximum.accumulate(np.where(np.isfinite(ended), ended, -np.inf))
    idle = known & (arrived >= np.concatenate([[-np.inf], last[:-1]]))
    alone = np.column_stack(
        [np.ceil(computed / budget), computed, attention, 0 * computed, 0 * computed]
    )
    compared = seen.counts[mine]
    return (
        np.concatenate([decode[compared[decoding]], alone[idle & compared]]),
        np.concatenate([took[decoding & compared], (first - arrived)[idle & compared]]),
    )


def _ramps(begin: Times, end: Times, slope: Times) -> Callable[[Times], Times]:
    """Add up lines that rise with `slope` from `begin` to `end`; the sum as a function of time."""
    starts, ends = np.argsort(begin), np.argsort(end)
    up = _prefix(slope[starts]), _prefix((slope * begin)[starts])
    down = _prefix(slope[ends]), _prefix((slope * end)[ends])

    def total(t: Times) -> Times:
        i = np.searchsorted(begin[starts], t, "right")
        j = np.searchsorted(end[ends], t, "right")
        rising: Times = t * (up[0][i] - down[0][j]) - (up[1][i] - down[1][j])
        return rising

    return total


def _stairs(at: Times, size: Times) -> Callable[[Times], Times]:
    """Add up jumps of `size` at `at`; the sum as a function of time, the jump at t included."""
    order = np.argsort(at)
    height = _prefix(size[order])

    def total(t: Times) -> Times:
        reached: Times = height[np.searchsorted(at[order], t, "right")]
        return reached

    return total


def _prefix(values: Times) -> Times:
    return np.concatenate([[0.0], np.cumsum(values)])


def _positive_least_squares(work: Times) -> list[float]:
    """Solve work x = 1, x >= 0, one unknown after the other until nothing moves."""
    scale = np.maximum(np.sqrt((work**2).sum(0)), 1e-300)
    scaled = work / scale
    normal, wanted = scaled.T @ scaled + 1e-9 * np.eye(work.shape[1]), scaled.sum(0)
    x = np.zeros(work.shape[1])
    for _ in range(5000):
        before = x.copy()
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (wanted[i] - normal[i] @ x) / normal[i, i])
        if np.abs(x - before).max() <= 1e-9 * max(1.0, float(np.abs(x).max())):
            break
    return [float(value) for value in x / scale]
