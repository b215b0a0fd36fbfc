"""make_plan(): from a log to a fleet, its limits and its cost; check(): a plan on other traffic.

Rule: the attainment of a plan is that of its simulation; what cannot be attained is said, with the
bound that shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np

from surgetank.errors import InputError
from surgetank.policy.plan import ScaleSpec
from surgetank.simulation.bound import Fleet, least_work, shortest_start, solve
from surgetank.simulation.workload import Workload
from surgetank.studies.planning import reasons, search
from surgetank.studies.planning.thresholds import Replica, Thresholds, replica_of, thresholds
from surgetank.studies.planning.traffic import Traffic, completed, one_pool, traffic_of
from surgetank.studies.planning.trials import Told, Trials
from surgetank.studies.planning.windows import Window, busier, grown, windows
from surgetank.studies.planning.wish import Size, Trial, Wish
from surgetank.traffic.tokencounts import TokenCounts
from surgetank.traffic.trace import Trace

_UTILISATION: Final = ScaleSpec().utilisation
_STRESS: Final = 0.1  # more traffic, which a plan should bear as well
_DAY: Final = 24.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a fleet: replicas paid for in the mean (standbys at their part), and for a day."""

    replicas: float
    attainment: float
    replica_hours_per_day: float
    price_per_day: float | None


@dataclass(frozen=True, slots=True)
class Cannot:
    """Why no fleet attains what was asked. `most_attainment`: of any fleet, by the bound."""

    text: str
    most_attainment: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A fleet, its limits, and why. `cannot`: None when the attainment asked for is reached.

    `busiest`: attainment within the busiest parts of a long log, which must keep it as well.
    `one_less`: attainment, of all or in those, of each size with one replica less in one pool.
    `stressed`: attainment with a tenth more traffic. `bursts_beat_starts`: launching when a burst
    is there comes too late for more of the requests than may miss.
    """

    size: Size
    lead_s: float
    attainment: float
    busiest: float
    asked: float
    stressed: float
    one_less: dict[Size, float]
    thresholds: Thresholds
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    cost: dict[str, Cost]
    traffic: Traffic
    replica: Replica
    parts: tuple[str, ...]
    cannot: Cannot | None
    bursts_beat_starts: bool
    alternatives: tuple[Trial, ...]
    trials: int
    scale: ScaleSpec
    model: str

    def to_json(self) -> dict[str, Any]:
        """The stable form."""
        return {
            "base": self.size.base,
            "elastic": self.size.elastic,
            "standby": self.size.standby,
            "lead_s": self.lead_s,
            "attainment": self.attainment,
            "attainment_busiest": self.busiest,
            "asked": self.asked,
            "reached": self.cannot is None,
            "cannot": None if self.cannot is None else self.cannot.text,
            "most_attainment": None if self.cannot is None else self.cannot.most_attainment,
            "attainment_with_a_tenth_more": self.stressed,
            "one_less": [
                {"base": s.base, "elastic": s.elastic, "standby": s.standby, "attainment": a}
                for s, a in self.one_less.items()
            ],
            "bursts_beat_starts": self.bursts_beat_starts,
            "thresholds": self.thresholds.to_json(),
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "cost": {
                name: {
                    "replicas": cost.replicas,
                    "attainment": cost.attainment,
                    "replica_hours_per_day": cost.replica_hours_per_day,
                    "price_per_day": cost.price_per_day,
                }
                for name, cost in self.cost.items()
            },
            "traffic": self.traffic.to_json(),
            "simulated": list(self.parts),
            "trials": self.trials,
        }


def make_plan(
    trace: Trace,
    wish: Wish,
    *,
    prompt: TokenCounts,
    output: TokenCounts,
    progress: Told | None = None,
) -> Plan:
    """Plan for a log. `prompt` and `output`: tokens of rows that state none. Raises InputError."""
    known, assumed = completed(trace, prompt, output, seed=wish.seed)
    load, pooled = one_pool(known, wish.profile.name)
    load, fit = that_fit(load, wish)
    one = replica_of(load, wish)
    analysis = trace.burstiness(capacity_delay=wish.lead)
    traffic = traffic_of(load, analysis, one, wish.lead)
    growth = traffic.growth.factor
    peak = traffic.replicas_of_work["60"].most or wish.max_replicas
    most = min(wish.max_replicas, ceil(growth * peak / _UTILISATION))
    limits = thresholds(load, wish, one, most, _UTILISATION, growth=growth)
    rng = np.random.default_rng(wish.seed)
    chosen = grown(windows(load, wish.requests), growth, rng)
    trials = Trials(chosen, wish, limits, fit=fit, progress=progress)
    fixed = search.least_fixed(trials)
    found = search.minimal(trials, fixed)
    stress = Trials(busier(chosen, _STRESS, rng), wish, limits, fit=fit, progress=progress)
    best = search.choose(found, stress, margin=growth == 1)
    cannot = None
    if best is None:
        trial = _most(trials)
        best, cannot = (trial, stress.run(trial.size)), _cannot(load, wish, trial, fit)
    trial, stressed = best
    less = {s: trials.run(s).kept for s in trial.size.smaller()}
    costs = _costs(trials, trial, fixed, traffic)
    beaten = traffic.unavoidable > 1 - wish.attainment
    made = trials.scenario(trial.size, chosen[0])
    more = growth - 1
    return Plan(
        size=trial.size,
        lead_s=wish.lead,
        attainment=trial.attainment,
        asked=wish.attainment,
        busiest=trial.busiest,
        stressed=stressed.kept,
        one_less=less,
        thresholds=limits,
        reasons=reasons.tell(
            reasons.Facts(load, traffic, one, wish, limits, trial, stressed, fixed, less, analysis)
        ),
        notes=(*assumed, *pooled, *_too_long(fit, wish), *_beside(found, trial)),
        cost=costs,
        traffic=traffic,
        replica=one,
        parts=(
            *(_told(window, load) for window in chosen),
            *([f"all with {more:.0%} more traffic"] if more else []),
        ),
        cannot=cannot,
        bursts_beat_starts=beaten,
        alternatives=tuple(found),
        trials=len(trials.done) + len(stress.done),
        scale=trials.scale_spec(trial.size, made),
        model=load.models[0],
    )


def held_out(
    trace: Trace,
    wish: Wish,
    *,
    prompt: TokenCounts,
    output: TokenCounts,
    progress: Told | None = None,
) -> tuple[Plan, Trial]:
    """Plan from the first half of the log's time, and simulate the plan on the second.

    Raises InputError.
    """
    known, _ = completed(trace, prompt, output, seed=wish.seed)
    arrived = known.batch.arrived
    middle = (float(arrived[0]) + float(arrived[-1])) / 2
    cut = int(np.searchsorted(arrived, middle))
    if not 0 < cut < len(known):
        raise InputError("--hold-out: the log has no two halves")
    halves = [replace(known, batch=known.batch.take(s)) for s in (slice(cut), slice(cut, None))]
    plan = make_plan(halves[0], wish, prompt=prompt, output=output, progress=progress)
    load, _ = one_pool(halves[1], wish.profile.name)
    load, fit = that_fit(load, wish)
    return plan, check(plan, load, wish, fit=fit)


def check(
    plan: Plan,
    load: Workload,
    wish: Wish,
    size: Size | None = None,
    *,
    growth: float = 1.0,
    fit: float = 1.0,
) -> Trial:
    """Simulate a plan, or another size with its limits, on other traffic, grown or as it is.

    `fit`: part of that traffic's requests which the load holds, as `that_fit` says.
    """
    rng = np.random.default_rng(wish.seed)
    parts = grown(windows(load, wish.requests), growth, rng)
    return Trials(parts, wish, plan.thresholds, fit=fit).run(size or plan.size)


def that_fit(load: Workload, wish: Wish) -> tuple[Workload, float]:
    """Leave out what no replica of this engine can hold; the part that stays. Raises InputError.

    No number of replicas helps those: they are not simulated, and count as misses.
    """
    room = _room(wish)
    fits = load.prompt + load.output <= room
    if not fits.any():
        raise InputError(
            f"no request of the log fits the {room:,} tokens of {wish.profile.name}: "
            "choose another --engine"
        )
    return (load if fits.all() else load.only(fits)), float(fits.mean())


def _room(wish: Wish) -> int:
    """Tokens of one request that a replica holds at most."""
    return min(wish.profile.max_model_len, wish.profile.kv_tokens)


def _too_long(fit: float, wish: Wish) -> tuple[str, ...]:
    if fit == 1:
        return ()
    note = (
        f"{1 - fit:.2%} of the requests are longer than the {_room(wish):,} tokens that one replica"
        " holds: they would be refused, and count as misses"
    )
    return (note,)


def _most(trials: Trials) -> Trial:
    """The least fixed fleet that does nearly as well as any that was tried."""
    most = max(trial.kept for trial in trials.done.values())
    near = [t for t in trials.done.values() if t.size.fixed and t.kept >= most - 0.005]
    return min(near or trials.done.values(), key=lambda t: t.cost)


def _cannot(load: Workload, wish: Wish, trial: Trial, fit: float) -> Cannot:
    """Say why no fleet was found, with the bound that shows it if one does."""
    if fit < wish.attainment:
        return Cannot(
            f"{wish.attainment:.1%} cannot be attained by any number of replicas: {1 - fit:.1%} of"
            f" the requests are longer than the {_room(wish):,} tokens that one holds; an engine"
            " with a longer context, or shorter prompts can",
            fit,
        )
    work = least_work(load, wish.profile, wish.ttft, wish.tpot)
    alone = float((work.prefill <= wish.ttft).mean())
    asked = f"{wish.attainment:.1%}"
    if alone < wish.attainment:
        return Cannot(
            f"{asked} cannot be attained by any number of replicas: {1 - alone:.1%} of the prompts"
            f" take longer than {wish.ttft:g} s on an idle one; a faster engine, shorter prompts or"
            " a longer objective can",
            alone,
        )
    mean = sum(stage.median_s for stage in wish.start.course())
    fleet = Fleet(shortest_start(mean), wish.standby_cost, 1, wish.max_replicas)
    try:
        solve(work, fleet, wish.attainment, end=float(load.arrived[-1]))
    except InputError as error:
        return Cannot(f"{asked} cannot be attained: {error} (the clairvoyant bound)", None)
    return Cannot(
        f"{asked} was attained by no fleet of at most {wish.max_replicas} replicas that was"
        f" simulated: {trial.attainment:.1%} is the most; raise --max-replicas",
        None,
    )


def _costs(trials: Trials, trial: Trial, fixed: Trial | None, traffic: Traffic) -> dict[str, Cost]:
    """Of the plan, and of fixed fleets for the busiest minute, the mean, and the objective."""
    rates = traffic.replicas_of_work["60"]
    found = {"plan": trial}
    for name, work in (("static_peak", rates.most), ("static_average", rates.mean)):
        if work is not None:
            number = max(1, ceil(work / _UTILISATION))
            found[name] = trials.run(Size(min(number, trials.wish.max_replicas)))
    if fixed is not None:
        found["static_least"] = fixed
    return {name: _cost(t, trials.wish) for name, t in found.items()}


def _cost(trial: Trial, wish: Wish) -> Cost:
    per_day = _DAY * trial.cost
    price = None if wish.price is None else wish.price * per_day
    return Cost(trial.cost, trial.attainment, per_day, price)


def _beside(found: Sequence[Trial], chosen: Trial) -> list[str]:
    """What was cheaper and did not bear more traffic."""
    cheaper = [t for t in found if t.cost < chosen.cost * 0.99 and t.size != chosen.size]
    return [
        f"{t.size} attains {t.attainment:.1%} at {t.cost:.2f} replicas in the mean, but bears a"
        " tenth more traffic worse"
        for t in cheaper[:2]
    ]


def _told(window: Window, load: Workload) -> str:
    length = window.until - window.since
    if window.kind == "all":
        return f"the whole log: {len(load):,} requests in {length:,.0f} s"
    begin = window.load.origin - load.origin + window.since
    stands = f", stands for {window.weight:.0f} such" if window.weight > 1 else ""
    return (
        f"{window.kind}: {length:,.0f} s from second {begin:,.0f} on,"
        f" {len(window.load):,} requests with those before it{stands}"
    )
