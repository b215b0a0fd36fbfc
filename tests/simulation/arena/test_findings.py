"""What is said of the arena's rows: true to them, and told when they do not bear it out."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from surgetank.errors import InputError
from surgetank.simulation.arena import findings, markdown
from surgetank.simulation.arena.cell import BOUND, FEASIBLE, HINDSIGHT


def row(name: str, cost: float, attainment: float | None = 0.99, **more: Any) -> dict[str, Any]:
    return {
        "policy": name, "workload": "pulses", "start": 60.0, "seed": 0, "standbys": 2,
        "standby_cost": 1.0, "target": 0.95, "cost": cost, "attainment": attainment,
        "cpu_s": 36.0, **more,
    }  # fmt: skip


def test_a_rule_that_keeps_the_target_for_less_breaks_the_finding() -> None:
    told = findings.short_bursts([row(HINDSIGHT, 2.0), row("hpa", 3.0), row("kpa", 1.0, 0.9)])
    assert "starts: reproduced" not in told
    assert ": reproduced: in 1 of 1 choices" in told
    assert "cost 1.50x" in told
    told = findings.short_bursts([row(HINDSIGHT, 2.0), row("hpa", 1.9)])
    assert "NOT reproduced: in 0 of 1" in told


def test_bursts_longer_than_a_start_and_our_own_policy_are_not_asked() -> None:
    short = [row(HINDSIGHT, 2.0, start=20.0), row("hpa", 1.9, start=20.0)]  # pulses last up to 40 s
    assert "no rows" in findings.short_bursts(short)
    assert "no rows" in findings.short_bursts([row(HINDSIGHT, 2.0), row("surgetank", 1.0)])


def test_a_choice_that_a_rule_has_not_been_run_in_is_left_out() -> None:
    whole = [row(HINDSIGHT, 2.0), row("hpa", 3.0), row("kpa", 3.0)]
    part = [row(HINDSIGHT, 2.0, seed=1), row("hpa", 3.0, seed=1)]
    assert "in 1 of 1 choices" in findings.short_bursts(whole + part)


def crowds(of: dict[tuple[str, int], float]) -> list[dict[str, Any]]:
    return [
        row(name, 3.0, kept, workload="flash-crowds", standbys=k, standby_cost=cost)
        for (name, k), kept in of.items()
        for cost in (1.0, 0.25)
    ]


def test_the_warm_pool_is_weighed_against_the_rule() -> None:
    pool = {("hpa", 0): 0.6, ("hpa", 8): 0.9, ("kpa", 0): 0.65, ("kpa", 8): 0.95}
    assert ": reproduced: attainment, mean of 2 rules" in findings.warm_pool(crowds(pool))
    rule = {("hpa", 0): 0.6, ("hpa", 8): 0.65, ("kpa", 0): 0.9, ("kpa", 8): 0.95}
    assert "NOT reproduced" in findings.warm_pool(crowds(rule))
    assert findings.warm_pool(crowds({("hpa", 0): 0.6, ("hpa", 8): 0.9})) == ""
    table = findings.pools(crowds(pool))
    assert table.rows[0] == ("hpa", "3.0/3.0 (60.0%)", "3.0/3.0 (90.0%)")


def test_who_kept_its_target_is_counted_and_set_beside_the_fixed_number() -> None:
    rows = [row(BOUND, 1.0, None), row(HINDSIGHT, 2.0), row("hpa", 3.0), row("kpa", 1.0, 0.9)]
    assert findings.standing(rows).rows == [
        (HINDSIGHT, "1 of 1", "1.00x", "-", "99.0%"),
        ("hpa", "1 of 1", "1.50x", "-", "99.0%"),
        ("kpa", "0 of 1", "-", "-", "90.0%"),
    ]


def test_who_beats_the_schedule_is_listed_and_what_is_missing_is_said() -> None:
    rows = [
        row(name, cost, seed=seed)
        for (name, cost), seed in product(((FEASIBLE, 2.0), ("hpa", 1.5)), (0, 1))
    ]
    assert findings.below(rows) == ["hpa: pulses 60 s (2)"]
    text = markdown.grid([*rows, row(FEASIBLE, 2.0, seed=2)], 72)
    assert "3 of 72 cells (seeds 0, 1, 2), 5 choices, 0.05 CPU-hours" in text
    assert "Not run yet: hpa in 1 cells." in text
    assert "### Starts around 60 s" in text
    assert "  - hpa: pulses 60 s (2)" in text


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- a -->\nold\n<!-- end of a -->\nbelow\n")
    markdown.put(page, "a", "new")
    markdown.put(page, "a", "newer")
    assert page.read_text() == "above\n<!-- a -->\n\nnewer\n\n<!-- end of a -->\nbelow\n"
    with pytest.raises(InputError, match="must hold the lines <!-- b --> and <!-- end of b -->"):
        markdown.put(page, "b", "new")
