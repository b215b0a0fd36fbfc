"""What `load` and `replay` show of a plan and of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import surgetank
from surgetank.loadtest import reportscreen
from surgetank.loadtest.report import Report
from surgetank.loadtest.reportpage import page
from surgetank.loadtest.runfile import Run
from surgetank.loadtest.schedule import Schedule
from surgetank.report import numbers, terminal
from surgetank.report.files import write_whole
from surgetank.report.page import html


def plan_json(schedule: Schedule, notes: tuple[str, ...]) -> dict[str, Any]:
    """Say what would be sent."""
    return {
        "requests": len(schedule),
        "duration_s": schedule.duration,
        "mean_rate": len(schedule) / schedule.duration,
        "busiest_second": schedule.peak_rate,
        "prompt_tokens": int(schedule.prompt_tokens.sum()),
        "output_tokens": int(schedule.max_tokens.sum()),
        "tenants": {
            name: int((schedule.tenant.codes == code).sum())
            for code, name in enumerate(schedule.tenant.names)
        },
        "phases": [
            {"name": p.name, "cycle": p.cycle, "start": p.start, "end": p.end}
            for p in schedule.phases
        ],
        "description": dict(schedule.description),
        "fingerprint": schedule.fingerprint,
        "notes": list(notes),
    }


def show_plan(schedule: Schedule, notes: tuple[str, ...], *, as_json: bool) -> None:
    """Print what would be sent."""
    said = plan_json(schedule, notes)
    if as_json:
        print(json.dumps(said, indent=2))
        return
    console = terminal.console()
    rows = [
        ("requests", numbers.count(said["requests"])),
        ("duration", numbers.seconds(said["duration_s"])),
        ("mean rate", numbers.rate(said["mean_rate"], "req")),
        ("busiest second", numbers.rate(said["busiest_second"], "req")),
        ("prompt tokens", numbers.compact(said["prompt_tokens"])),
        ("output tokens, at most", numbers.compact(said["output_tokens"])),
        ("pulses", str(sum(p.name == "pulse" for p in schedule.phases))),
        *(
            (f"requests of {name}", numbers.count(count))
            for name, count in list(said["tenants"].items())[:12]
        ),
        ("fingerprint", said["fingerprint"]),
    ]
    console.print(terminal.table(("would be sent", ""), rows))
    for note in notes:
        console.print(f"note: {note}")


def show(found: Report) -> None:
    """Print the report of a run."""
    reportscreen.show(found, terminal.console())


def write_page(run: Run, found: Report, path: Path) -> None:
    """Write the report as a page."""
    made = f"Made by surgetank {surgetank.__version__}. It asks no other host for anything."
    write_whole(path, html(page(run, found, made_by=made)))
