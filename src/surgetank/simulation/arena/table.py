"""What the arena found, to read: means over seeds, and what must hold in every cell.

Rule: a policy that did not reach the target on the half it was chosen on is marked, and so is one
that missed it on the half that counts; no cell is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from surgetank.report.page import KeyFigure, Page, Section, Table, Text
from surgetank.simulation.arena.cell import BOUND, FEASIBLE, HINDSIGHT
from surgetank.simulation.arena.contenders import CONTENDERS
from surgetank.simulation.arena.workloads import SCENARIOS

Row = dict[str, Any]
Key = tuple[float, float, str, float]  # standby cost, target, workload, start

_SLACK: Final = 1e-6  # replica-hours: a solver's tolerance
_NEVER: Final = "-"


def problems(rows: Sequence[Row]) -> list[str]:
    """Cells in which something is below the bound (BELOW), or a policy beats the schedule."""
    found: list[str] = []
    for key, cell in sorted(_cells(rows).items()):
        by_name = {row["policy"]: row for row in cell}
        bound = by_name.get(BOUND)
        feasible = by_name.get(FEASIBLE)
        where = f"{key[2]}, start {key[3]:g} s, seed {key[4]}, standby {key[0]:g}, {key[1]:.0%}"
        for name, row in by_name.items():
            kept = row.get("attainment") is not None and row["attainment"] >= row["target"]
            if not kept:
                continue
            if bound is not None and name != BOUND and row["cost"] < bound["cost"] - _SLACK:
                found.append(
                    f"BELOW the bound: {name} {row['cost']:.3f} < {bound['cost']:.3f} ({where})"
                )
            others = name not in {BOUND, FEASIBLE, HINDSIGHT}
            if feasible is not None and others and row["cost"] < feasible["cost"] - _SLACK:
                found.append(
                    f"{name} beats the feasible schedule: {row['cost']:.2f} < "
                    f"{feasible['cost']:.2f} ({where})"
                )
    return found


def _cells(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    cells: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        names = ("standby_cost", "target", "workload", "start", "seed")
        key = (*(row[name] for name in names), row.get("standbys", 0))
        cells[key].append(row)
    return cells


def _mark(rows: Sequence[Row]) -> str:
    """Mean cost over seeds; * where some seed missed the target, - where none was within 2 points.

    The attainment that was reached stands beside a mark.
    """
    cost = sum(row["cost"] for row in rows) / len(rows)
    seen = [row["attainment"] for row in rows if row.get("attainment") is not None]
    if not seen:
        return f"{cost:.2f}"
    target, least = rows[0]["target"], min(seen)
    if least >= target:
        return f"{cost:.2f}"
    return f"{cost:.2f} ({least:.1%})"


def grouped(rows: Sequence[Row], *, starts: bool = True) -> dict[tuple[float, float], Table]:
    """Give a table for each standby cost and target: policies are rows, cells are columns.

    `starts`: the columns' heads name the start time.
    """
    found = {}
    for standby_cost, target in sorted({(r["standby_cost"], r["target"]) for r in rows}):
        some = [r for r in rows if (r["standby_cost"], r["target"]) == (standby_cost, target)]
        columns = sorted({(r["workload"], r["start"]) for r in some}, key=_order)
        names = [*dict.fromkeys(r["policy"] for r in some)]
        body = []
        for name in names:
            line = [name]
            for workload, start in columns:
                own = [
                    r
                    for r in some
                    if (r["policy"], r["workload"], r["start"]) == (name, workload, start)
                ]
                line.append(_mark(own) if own else _NEVER)
            body.append(tuple(line))
        head = ("policy", *(f"{w} {start:g} s" if starts else w for w, start in columns))
        caption = f"Replica-hours for {target:.0%}, a standby costs {standby_cost:g} of a replica"
        found[standby_cost, target] = Table(head, body, caption)
    return found


def _order(column: tuple[str, float]) -> tuple[int, float]:
    names = list(SCENARIOS)
    return names.index(column[0]) if column[0] in names else len(names), column[1]


def text(rows: Sequence[Row]) -> str:
    """Give the tables as Markdown, so that they can stand in a page as they are."""
    parts = []
    for table in grouped(rows).values():
        lines = [f"**{table.caption}**", ""]
        lines.append("| " + " | ".join(table.head) + " |")
        lines.append("|" + "---|" * len(table.head))
        lines += ["| " + " | ".join(row) + " |" for row in table.rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def page(rows: Sequence[Row]) -> str:
    """Give the tables as one HTML file."""
    from surgetank.report.page import html  # noqa: PLC0415 - its charts are heavy

    found = problems(rows)
    explained = Table(
        ("policy", "what it does", "its knob"),
        [(c.name, c.about, c.knob) for c in CONTENDERS.values()],
        words=(1, 2),
    )
    below = sum(p.startswith("BELOW") for p in found)
    return html(
        Page(
            title="Autoscalers in one arena",
            about="Each policy's knob is chosen on the first half of a workload and scored on the"
            " second. In brackets: the least attainment, where a seed missed the target.",
            figures=(
                KeyFigure("cells", f"{len(_cells(rows)):,}"),
                KeyFigure("choices", f"{len(rows):,}"),
                KeyFigure("below the bound", str(below), tone="bad" if below else "good"),
            ),
            sections=(
                Section("Replica-hours", tuple(grouped(rows).values())),
                Section("Policies", (explained,)),
                Section("Checks", (Text(tuple(found) or ("Nothing is below the bound.",)),)),
            ),
        )
    )
