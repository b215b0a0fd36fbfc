"""The arena's part of a page, written from the rows.

Rule: between its two marks a page holds nothing but what a command put there; what stands around
them is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surgetank.errors import InputError
from surgetank.report.files import write_whole
from surgetank.report.page import Table
from surgetank.simulation.arena import findings, table

Row = dict[str, Any]


def put(page: Path, mark: str, body: str) -> None:
    """Replace what stands between `<!-- MARK -->` and `<!-- end of MARK -->`.

    Raises InputError for a page without them.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page}: cannot be read: {error.strerror}") from None
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise InputError(f"{page}: must hold the lines {begin} and {end}")
    write_whole(page, f"{before}{begin}\n\n{body.strip()}\n\n{end}{after}")


def grid(rows: Sequence[Row], cells: int) -> str:
    """Give the tables of the grid. `cells`: that were asked for."""
    there = {(r["workload"], r["start"], r["seed"]) for r in rows}
    seeds = ", ".join(str(s) for s in sorted({r["seed"] for r in rows}))
    names = [*dict.fromkeys(r["policy"] for r in rows)]
    head = (
        f"{len(there)} of {cells} cells (seeds {seeds}), {len(rows)} choices,"
        f" {findings.hours(rows):.2f} CPU-hours. Numbers are means over seeds; in brackets the"
        " least attainment, where a seed missed the target."
    )
    parts = [head]
    missing = [
        f"{name} in {len(there) - own} cells"
        for name in names
        if (own := len({findings.where(r)[:3] for r in rows if r["policy"] == name})) < len(there)
    ]
    if missing:
        parts.append("Not run yet: " + ", ".join(missing) + ".")
    parts += ["### Who keeps its target", markdown(findings.standing(rows))]
    for start in sorted({r["start"] for r in rows}):
        parts.append(f"### Starts around {start:g} s")
        some = [r for r in rows if r["start"] == start]
        parts += [markdown(found) for found in table.grouped(some, starts=False).values()]
    parts += ["### What the rows say", f"- {findings.short_bursts(rows)}"]
    under = [p for p in table.problems(rows) if p.startswith("BELOW")]
    parts.append("\n".join(f"- {p}" for p in under) or "- Nothing is below the bound, in any cell.")
    beaten = findings.below(rows)
    if beaten:
        parts.append(
            "- The schedule is a heuristic; policies that kept their target for less, with the"
            " number of choices:"
        )
        parts.append("\n".join(f"  - {line}" for line in beaten))
    else:
        parts.append("- No policy that kept its target beat the schedule that knew.")
    return "\n\n".join(parts)


def study(rows: Sequence[Row]) -> str:
    """Give the table of the warm pools."""
    where = f"{len({(r['start'], r['seed']) for r in rows})} starts and seeds of flash-crowds."
    return f"{where} {findings.warm_pool(rows)}\n\n{markdown(findings.pools(rows))}"


def markdown(found: Table) -> str:
    """Write a table as Markdown."""
    lines = [f"**{found.caption}**", "", "| " + " | ".join(found.head) + " |"]
    lines.append("|" + "---|" * len(found.head))
    lines += ["| " + " | ".join(row) + " |" for row in found.rows]
    return "\n".join(lines)
