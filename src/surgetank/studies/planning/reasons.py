"""The why of a plan: a sentence for each number, from what was measured or simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from surgetank.simulation.workload import Workload
from surgetank.studies.planning.growth import Growth
from surgetank.studies.planning.thresholds import Replica, Thresholds
from surgetank.studies.planning.traffic import Traffic, work_of
from surgetank.studies.planning.wish import Size, Trial, Wish
from surgetank.traffic.analysis import Analysis

_SHORT: Final = 0.5  # quantile of the answers that degrading would cut them to


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found."""

    load: Workload
    traffic: Traffic
    replica: Replica
    wish: Wish
    limits: Thresholds
    trial: Trial
    stressed: Trial
    fixed: Trial | None
    less: Mapping[Size, float]
    analysis: Analysis


def tell(facts: Facts) -> tuple[str, ...]:
    """Every reason, in the order of the plan's numbers."""
    return (
        *_sizes(facts),
        *_lead(facts),
        *_limits(facts),
        *_agents(facts),
    )


def _sizes(facts: Facts) -> Iterator[str]:
    size, wish, traffic = facts.trial.size, facts.wish, facts.traffic
    rates = traffic.replicas_of_work["60"]
    one = facts.replica
    yield (
        f"one replica of {wish.profile.name} takes {one.requests:.2f} of these requests/s within"
        f" {wish.tpot:g} s a token: {one.prompt_tokens:,.0f} prompt or {one.output_tokens:,.0f}"
        " output tokens/s, each alone"
    )
    if rates.most is not None and rates.p95 is not None and rates.p99 is not None:
        yield (
            f"work per minute: {rates.mean:.2f} replicas in the mean, P95 {rates.p95:.2f}, P99"
            f" {rates.p99:.2f}, at most {rates.most:.2f}"
        )
    ten = traffic.replicas_of_work["600"]
    if ten.p95 is not None and ten.p99 is not None:
        yield f"work per 10 minutes: P95 {ten.p95:.2f} replicas, P99 {ten.p99:.2f}"
    yield from _growth(traffic.growth)
    names = {"base": size.base, "elastic": size.elastic, "standby": size.standby}
    for smaller, attained in facts.less.items():
        pool = next(n for n in names if getattr(smaller, n) < names[n])
        yield (
            f"{pool} = {names[pool]}: with one less {attained:.1%} of the requests would be within"
            f" the objectives, {wish.attainment:.1%} are asked"
        )
    if size.base == 1:
        yield "base = 1: a pool without any replica serves nobody until a start has ended"
    if not size.elastic:
        yield "elastic = 0: no fleet that starts more replicas was cheaper and attained it"
    if not size.standby:
        yield "standby = 0: no fleet with warm replicas was cheaper and attained it"
    yield (
        f"with a tenth more traffic the plan attains {facts.stressed.attainment:.1%}: plan anew"
        " when the traffic has grown by as much"
    )


def _growth(growth: Growth) -> Iterator[str]:
    if growth.factor > 1 and growth.seen >= growth.ahead:
        yield (
            f"the second half of the log peaks {growth.seen - 1:.0%} above the first: the plan is"
            f" for {growth.factor - 1:.0%} more traffic than the log, and minimal for that"
        )
    elif growth.factor > 1:
        yield (
            f"the log moves slowly: its {growth.windows} windows of {growth.window:g} s are worth"
            f" {growth.independent:.1f} independent ones, and the next may come to"
            f" {growth.ahead - 1:.0%} above its peak (95 % prediction limit): the plan is for"
            f" {growth.factor - 1:.0%} more traffic than the log, and minimal for that"
        )
    if growth.unbounded:
        yield (
            f"this log cannot promise what comes after it: up to"
            f" {max(growth.seen, growth.ahead):.1f} times its peak would be no surprise; plan from"
            " a longer one"
        )
    elif growth.independent is None:
        yield (
            f"the log is too short to say what comes after it ({growth.windows} whole windows of"
            f" {growth.window:g} s): the plan is for the log as it is"
        )


def _lead(facts: Facts) -> Iterator[str]:
    wish, traffic, fixed = facts.wish, facts.traffic, facts.fixed
    yield f"lead = {wish.lead:.0f} s: P95 of a start, from wanting a replica to its serving"
    burst = traffic.burst_s
    if burst is None:
        yield "no bursts stand out: capacity that follows the rate is enough"
        return
    late = traffic.unavoidable > 1 - wish.attainment
    if burst > wish.lead and not late:
        yield (
            f"bursts last {burst:.0f} s, longer than the lead: starting replicas helps after the"
            f" first {wish.lead:.0f} s of each"
        )
        return
    yield (
        f"autoscaling alone cannot help: bursts last {burst:.0f} s, a start {wish.lead:.0f} s;"
        f" {traffic.unavoidable:.1%} of the requests come before any start that their burst causes"
        f" could be ready, and {1 - wish.attainment:.1%} may miss (the bound)"
    )
    if fixed is not None:
        yield (
            f"what helps: a static floor of {fixed.size.base} attains {fixed.attainment:.1%}"
            f" without any start"
        )
    yield (
        f"what helps: standbys, which serve {wish.start.wake_s:g} s after the onset, at"
        f" {wish.standby_cost:g} of a replica's cost each"
    )
    yield (
        f"what helps: admission; {facts.limits.max_in_flight} in flight a replica keep what runs"
        " within its objectives, and the rest of a burst waits or is told when to come back"
    )
    yield _degrading(facts)
    if traffic.period_s is not None:
        yield (
            f"what helps: a calendar (--calendar); bursts come every {traffic.period_s:.0f} s, so"
            " starts can be asked for before them"
        )


def _degrading(facts: Facts) -> str:
    load = facts.load
    cut = max(1, int(np.quantile(load.output, _SHORT)))
    spared = np.maximum(0, load.output - cut).sum() / facts.replica.output_tokens
    part = float(spared / work_of(load, facts.replica).sum())
    return (
        f"what helps: degrading; answers cut at {cut} tokens (their median) during bursts take"
        f" {part:.0%} of the work away"
    )


def _limits(facts: Facts) -> Iterator[str]:
    limits, one = facts.limits, facts.replica
    yield (
        f"max_in_flight = {limits.max_in_flight}: half again what keeps a replica busy within"
        f" {facts.wish.tpot:g} s a token, and what its KV cache holds"
    )
    yield (
        f"max_queued = {limits.max_queued}: what the replicas for the busiest minute begin"
        f" within the queue timeout of {limits.queue_timeout:g} s, at {one.requests:.2f} requests/s"
        " each; what is behind that would wait in vain"
    )
    more = facts.traffic.growth.factor
    than = "its busiest minute" if more == 1 else f"{more:.2f} times its busiest minute"
    for limit in limits.tenants[:5]:
        yield (
            f"quota of {limit.name}: {limit.requests_per_minute:,} requests and"
            f" {limit.tokens_per_minute:,} tokens a minute, half again {than}"
            f" ({limit.busiest_requests:,} and {limit.busiest_tokens:,})"
        )
    if len(limits.tenants) > 5:
        yield f"quotas of {len(limits.tenants) - 5} further tenants, by the same rule"


def _agents(facts: Facts) -> Iterator[str]:
    agents = facts.traffic.agents
    if agents is None:
        return
    tokens = facts.traffic.prompt_tokens_per_s["60"]
    burn = ""
    if agents.burn_p50 is not None and agents.burn_p99 is not None:
        burn = f", each burning {agents.burn_p50:,.0f} tokens/s (P99 {agents.burn_p99:,.0f})"
    most = "" if tokens.most is None else f"; the busiest minute takes {tokens.most:,.0f} prompt"
    yield (
        f"agents' traffic: {agents.sessions:,} sessions of {agents.calls_mean:.1f} calls{burn}"
        f"{most}{' tokens/s' if most else ''}: it is sized and limited by tokens, not by requests"
    )
