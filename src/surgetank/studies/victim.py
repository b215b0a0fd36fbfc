"""A quiet tenant beside one that pulses: what each way of admission leaves of it.

The victim sends 20 % of the measured capacity, steadily. The noisy one sends 50 %, and for 30 of 90
seconds 300 %. Both ask for the same, and retry as SDKs do. (The design's experiment, gateway notes,
section 5: a toy run of it gave a pass-through 17 %, per-tenant counters 94 %, with predicted-wait
shedding 99.6 %.)

Rule: a round counts only if a pass-through leaves the victim at most 40 %, else it was no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from surgetank.policy.flow import FlowSpec
from surgetank.simulation.clients import KINDS
from surgetank.simulation.ledger import COMPLETED
from surgetank.simulation.result import Result
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import Scenario
from surgetank.simulation.workload import of_batch
from surgetank.studies.attainment import TINY, Replicas, capacity
from surgetank.traffic import arrivals
from surgetank.traffic.tokencounts import parse_lengths
from surgetank.traffic.trace import Batch, Codes, Labels, Seconds

VICTIM: Final = "victim"
NOISY: Final = "noisy"
VOID_ABOVE: Final = 0.4  # of the victim, with a pass-through
WIDTH: Final = 30.0
PERIOD: Final = 90.0
_SHARES: Final = (0.2, 0.5, 3.0)  # victim, noisy's base and its peak, of the capacity
_WORK_CONSERVING: Final = "fifo-cap"  # nothing is refused, and no slot is idle while one waits


def contenders(of: Replicas) -> tuple[str, ...]:
    """Policies by name. Caps are set as a careful operator would who knows the capacity.

    The bucket: half of the capacity for each of two.
    """
    bucket = round(30.0 * capacity(of))
    return (
        "passthrough",
        "fifo-cap:8",
        "fifo-cap",
        f"request-bucket:{bucket}",
        "round-robin",
        "counters",
        "static",
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Shares 0..1: `victim` and `noisy` within objectives, of what each sent.

    `noisy_work`: output tokens that the noisy one got within the time, of its equal share: half of
    all that a work-conserving queue did, and what the victim leaves of its half, as far as it asked
    for that; `total`: of both, of all that such a queue did. `wasted`: tokens.
    """

    policy: str
    seed: int
    victim: float
    victim_p95: float  # s
    noisy: float
    noisy_work: float
    total: float
    wasted: int
    refused: int


def arriving(rng: np.random.Generator, full: float, span: float) -> tuple[Seconds, Codes]:
    """Draw when requests come, and whose each is: 0 the victim's, 1 the noisy one's.

    `full`: the capacity in requests/s; `span`: seconds.
    """
    steady, base, peak = (share * full for share in _SHARES)
    times = (
        arrivals.poisson(rng, steady, span),
        arrivals.pulse(rng, base, peak, WIDTH, PERIOD, span, offset=(PERIOD - WIDTH) / 2),
    )
    at = np.concatenate(times)
    who = np.repeat(np.arange(2, dtype=np.int32), [len(t) for t in times])
    order = np.argsort(at, kind="stable")
    return at[order], who[order]


def equal_share(done: tuple[float, float], asked: tuple[float, float]) -> float:
    """Output tokens that are the noisy one's share; each pair is the victim's, the noisy one's.

    Half of what a queue that refuses nothing has done, and what the victim leaves of its own half,
    as far as the noisy one asked for that.
    """
    return min(asked[1], max(sum(done) / 2, sum(done) - asked[0]))


def scenario(of: Replicas, policy: str, seed: int, *, periods: int = 3) -> Scenario:
    rng = np.random.default_rng([seed, 20])
    at, who = arriving(rng, capacity(of), PERIOD * periods)
    prompt = parse_lengths(of.prompt, "prompt").draw(len(at), rng)
    output = parse_lengths(of.output, "output").draw(len(at), rng)
    labels = Labels(who, (VICTIM, NOISY))
    return Scenario(
        workload=of_batch(Batch(at, prompt, output, tenant=labels)),
        pools=(of.pool,),
        policy=policy,
        flow=FlowSpec(),
        clients=KINDS["sdk"],
        seed=seed,
    )


def compare(
    of: Replicas = TINY, *, seed: int, periods: int = 3, policies: Sequence[str] = ()
) -> list[Figures]:
    """Run every contender on the same requests."""
    until = PERIOD * periods
    done = _work(simulate(scenario(of, _WORK_CONSERVING, seed, periods=periods)), until)
    found = []
    for name in policies or contenders(of):
        result = simulate(scenario(of, name, seed, periods=periods))
        found.append(_figures(result, name, seed, done, until))
    return found


def _work(result: Result, until: float) -> tuple[float, float]:
    """Output tokens of each tenant's answers that were complete by then."""
    seen, load = result.requests, result.scenario.workload
    there = (seen.outcome == COMPLETED) & (seen.ended <= until)
    tokens = np.bincount(load.tenant[there], weights=load.output[there], minlength=2)
    return float(tokens[0]), float(tokens[1])


def _figures(
    result: Result, name: str, seed: int, most: tuple[float, float], until: float
) -> Figures:
    seen, load = result.requests, result.scenario.workload
    victim, noisy = load.tenant == 0, load.tenant == 1
    mine, its = _work(result, until)
    asked = float(load.output[victim].sum()), float(load.output[noisy].sum())
    first = seen.ttft[victim]
    return Figures(
        policy=name,
        seed=seed,
        victim=float(seen.attained[victim].mean()),
        victim_p95=float(
            np.quantile(np.where(np.isnan(first), np.inf, first), 0.95, method="higher")
        ),
        noisy=float(seen.attained[noisy].mean()),
        noisy_work=its / equal_share(most, asked),
        total=(mine + its) / sum(most),
        wasted=result.wasted_tokens,
        refused=result.summary.refused,
    )
