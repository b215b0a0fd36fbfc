"""What the rows say in sentences: who kept its targets, at what cost, and two findings to check.

Rule: a sentence is made of rows alone, and says so when they do not bear it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean, median
from typing import Any, Final

from surgetank.report.page import Table
from surgetank.simulation.arena.cell import BOUND, COSTS, FEASIBLE, HINDSIGHT, REFERENCES
from surgetank.simulation.arena.contenders import CONTENDERS
from surgetank.simulation.arena.workloads import SCENARIOS

Row = dict[str, Any]
Where = tuple[str, float, int, float, float]  # workload, start, seed, standby cost, target

_CROWDS: Final = "flash-crowds"
_FIXED: Final = "static"


def where(row: Row) -> Where:
    """Give a row's choice: where contenders can be compared."""
    return row["workload"], row["start"], row["seed"], row["standby_cost"], row["target"]


def kept(row: Row) -> bool:
    """Tell whether the half that counts kept the target."""
    return row.get("attainment") is not None and row["attainment"] >= row["target"]


def standing(rows: Sequence[Row]) -> Table:
    """How many choices each kept, and what those cost beside the best fixed number."""
    fixed = {where(r): r["cost"] for r in rows if r["policy"] == HINDSIGHT and kept(r)}
    body = []
    for name, own in _by(rows, "policy").items():
        if name == BOUND:
            continue
        line = [name]
        for target in sorted({r["target"] for r in rows}):
            some = [r for r in own if r["target"] == target]
            line.append(f"{sum(map(kept, some))} of {len(some)}")
        for cost in COSTS:
            ratios = [
                r["cost"] / fixed[where(r)]
                for r in own
                if r["standby_cost"] == cost and kept(r) and where(r) in fixed
            ]
            line.append(f"{median(ratios):.2f}x" if ratios else "-")
        line.append(f"{mean(r['attainment'] for r in own):.1%}")
        body.append(tuple(line))
    targets = [f"kept {t:.0%}" for t in sorted({r["target"] for r in rows})]
    costs = [f"cost, standby {c:g}" for c in COSTS]
    caption = (
        "Choices whose target the second half kept; the median cost of those beside the best fixed"
        " number in hindsight; mean attainment of all"
    )
    return Table(("policy", *targets, *costs, "attained"), body, caption)


def short_bursts(rows: Sequence[Row]) -> str:
    """Say whether a fixed number in hindsight is ahead of reactive rules on short bursts.

    A choice that some rule has not been run in is left out.
    """
    ahead = asked = 0
    every = {r["policy"] for r in rows} & _rules()
    ratios = []
    by_workload: dict[str, list[bool]] = defaultdict(list)
    for own in _choices(rows).values():
        fixed, burst = own.get(HINDSIGHT), SCENARIOS[next(iter(own.values()))["workload"]].burst
        rules = [r for name, r in own.items() if name in _rules()]
        if fixed is None or not kept(fixed) or burst is None or burst > fixed["start"]:
            continue
        if not rules or len(rules) < len(every):
            continue
        asked += 1
        best = min((r["cost"] for r in rules if kept(r)), default=None)
        won = best is None or fixed["cost"] <= best
        ahead += won
        by_workload[fixed["workload"]].append(won)
        if best is not None:
            ratios.append(best / fixed["cost"])
    if not asked:
        return "On bursts shorter than a start: no rows to say."
    each = ", ".join(f"{name} {sum(w)} of {len(w)}" for name, w in sorted(by_workload.items()))
    word = "reproduced" if ahead > 0.5 * asked else "NOT reproduced"
    beside = (
        f" In the median the best rule that kept it cost {median(ratios):.2f}x." if ratios else ""
    )
    return (
        f"Static in hindsight ahead of every reactive rule on bursts shorter than a start: {word}:"
        f" in {ahead} of {asked} choices no rule kept the target for less ({each}).{beside}"
    )


def warm_pool(rows: Sequence[Row]) -> str:
    """Say whether the size of the warm pool is worth more than the choice of the rule."""
    some = [r for r in rows if r["workload"] == _CROWDS and r["policy"] in _rules()]
    pools, rules = _by(some, "standbys"), _by(some, "policy")
    if len(pools) < 2 or len(rules) < 2:
        return ""
    by_pool = {k: mean(r["attainment"] for r in own) for k, own in sorted(pools.items())}
    by_rule = {n: mean(r["attainment"] for r in own) for n, own in rules.items()}
    gain, spread = max(by_pool.values()) - min(by_pool.values()), _spread(by_rule.values())
    best, worst = max(by_rule, key=by_rule.__getitem__), min(by_rule, key=by_rule.__getitem__)
    word = "reproduced" if gain > spread else "NOT reproduced"
    told = ", ".join(f"{k}: {value:.1%}" for k, value in by_pool.items())
    return (
        f"A warm pool worth more than the rule on flash crowds: {word}: attainment, mean of"
        f" {len(rules)} rules, by standbys {told}; by rule, mean of the pools, from {worst}"
        f" {by_rule[worst]:.1%} to {best} {by_rule[best]:.1%}."
    )


def pools(rows: Sequence[Row], target: float = 0.95) -> Table:
    """Rules with and without a warm pool: cost and attainment, means over seeds and starts."""
    sizes = sorted({r["standbys"] for r in rows})
    body = []
    for name, own in _by(rows, "policy").items():
        line = [name]
        for size in sizes:
            some = [r for r in own if r["standbys"] == size and r["target"] == target]
            if not some:
                line.append("-")
                continue
            costs = "/".join(
                f"{mean(r['cost'] for r in some if r['standby_cost'] == c):.1f}" for c in COSTS
            )
            line.append(f"{costs} ({mean(r['attainment'] for r in some):.1%})")
        body.append(tuple(line))
    head = ("policy", *(f"{size} standbys" for size in sizes))
    costs = " or ".join(f"{c:g}" for c in COSTS)
    caption = f"Replica-hours for {target:.0%} where a standby costs {costs}, and what was attained"
    return Table(head, body, caption)


def below(rows: Sequence[Row]) -> list[str]:
    """Where a policy that kept its target beat the schedule that knew: a line each policy."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for own in _choices(rows).values():
        schedule = own.get(FEASIBLE)
        for name, row in own.items():
            if schedule is None or name in REFERENCES or not kept(row):
                continue
            if row["cost"] < schedule["cost"] - 1e-6:
                found[name][f"{row['workload']} {row['start']:g} s"] += 1
    return [
        f"{name}: " + ", ".join(f"{cell} ({n})" for cell, n in sorted(cells.items()))
        for name, cells in found.items()
    ]


def hours(rows: Iterable[Row]) -> float:
    """CPU-hours that the rows took."""
    return float(sum(row.get("cpu_s", 0.0) for row in rows)) / 3600


def _rules() -> frozenset[str]:
    """Those who react: all but the fixed number and our own policy, which may hold one."""
    return frozenset(CONTENDERS) - {_FIXED, "surgetank"}


def _by(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[column]].append(row)
    return found


def _choices(rows: Iterable[Row]) -> dict[Where, dict[str, Row]]:
    found: dict[Where, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        found[where(row)][row["policy"]] = row
    return found


def _spread(values: Iterable[float]) -> float:
    known = [*values]
    return max(known) - min(known)
