"""Agent sessions: how many calls, how many at once, how fast they burn tokens.

Rule: sessions have a verdict of their own. A session that fans out makes clumps, one that chains
its calls does not, and neither is seen in the stream as a whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import SessionFigures
from surgetank.traffic.sessions import Sessions

AT_ONCE: Final = 1.0  # s: calls so close count as concurrent when durations are unknown
FANS_OUT: Final = 3
CHAINS: Final = 2.0
SHORTEST: Final = 1.0  # s: shorter sessions have no rate

Floats = NDArray[np.float64]


def session_figures(sessions: Sessions | None, requests: int) -> SessionFigures | None:
    """Make the figures; None for a log without sessions."""
    if sessions is None or not sessions.names:
        return None
    session, arrived, duration, tokens = sessions.table()
    order = np.lexsort((arrived, session))
    session, arrived, duration, tokens = (c[order] for c in (session, arrived, duration, tokens))
    begins = np.flatnonzero(np.diff(session, prepend=-1))
    calls = np.diff(np.append(begins, len(session)))
    known = bool(np.isfinite(duration).mean() >= 0.5)
    lasts = np.where(np.isfinite(duration), np.maximum(duration, 0.0), 0.0)
    length = np.maximum.reduceat(arrived + lasts, begins) - arrived[begins]
    fan_out = _peak_at_once(session, arrived, lasts if known else np.full(len(arrived), AT_ONCE))
    stated = np.maximum.reduceat(np.isfinite(tokens), begins)  # sessions that tell any tokens
    has_tokens = bool(stated.any())
    total = np.add.reduceat(np.nan_to_num(tokens), begins)
    long_enough = (length >= SHORTEST) & stated
    burn = total[long_enough] / length[long_enough]
    return SessionFigures(
        sessions=len(calls),
        sampled_share=0.5**sessions.level,
        calls_mean=float(calls.mean()),
        calls_p50=_quantile(calls, 0.5),
        calls_p99=_quantile(calls, 0.99),
        calls_max=int(calls.max()),
        fan_out_p50=_quantile(fan_out, 0.5),
        fan_out_p99=_quantile(fan_out, 0.99),
        fan_out_max=int(fan_out.max()),
        fan_out_from="durations" if known else f"calls within {AT_ONCE:g} s",
        duration_p50=_quantile(length, 0.5),
        duration_p99=_quantile(length, 0.99),
        tokens_p50=_quantile(total[stated], 0.5) if has_tokens else None,
        tokens_p99=_quantile(total[stated], 0.99) if has_tokens else None,
        tokens_per_second_p50=_quantile(burn, 0.5) if has_tokens and len(burn) else None,
        tokens_per_second_p99=_quantile(burn, 0.99) if has_tokens and len(burn) else None,
        share_of_requests=sessions.calls / requests if requests else 0.0,
        verdict=_verdict(calls, fan_out),
    )


def _peak_at_once(session: Floats, arrived: Floats, lasts: Floats) -> NDArray[np.int64]:
    """Peak number of calls under way per session; a call that ends as another begins is over."""
    at = np.concatenate([arrived, arrived + lasts])
    change = np.concatenate([np.ones(len(arrived)), -np.ones(len(arrived))])
    whose = np.concatenate([session, session])
    # Calls of no length still count as one: their end comes after their begin.
    instant = np.concatenate([np.zeros(len(arrived)), np.where(lasts > 0, 0.0, 2.0)])
    order = np.lexsort((change + instant, at, whose))
    # Every session's changes sum to 0, so one running sum serves all.
    running = np.cumsum(change[order])
    begins = np.flatnonzero(np.diff(whose[order], prepend=-1))
    return np.maximum.reduceat(running, begins).astype(np.int64)


def _verdict(calls: NDArray[np.int64], fan_out: NDArray[np.int64]) -> str:
    wide = float(calls[fan_out >= FANS_OUT].sum() / calls.sum())
    if wide >= 0.2:
        return (
            f"fan-out: {wide:.0%} of the calls belong to sessions with {FANS_OUT} or more under way"
            f" at once (at most {int(fan_out.max())}): one user makes a clump"
        )
    if calls.mean() >= CHAINS:
        return (
            f"chains: {calls.mean():.3g} calls a session, mostly one after another: a session holds"
            " its place in the prefix cache, it does not burst"
        )
    each = "one call" if calls.max() == 1 else f"{calls.mean():.3g} calls"
    return f"flat: {each} a session: sessions are no cause of bursts"


def _quantile(values: NDArray[np.int64] | Floats, share: float) -> float:
    return float(np.quantile(values, share))
