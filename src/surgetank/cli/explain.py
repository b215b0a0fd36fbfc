"""`surgetank explain`: why a request waited, ran or was refused, from the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from surgetank.errors import InputError

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    records: Annotated[
        Path,
        typer.Argument(
            metavar="RECORDS",
            help="Records or decisions: a file, with those cut off from it, or a folder.",
        ),
    ],
    *,
    request: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The request to explain.", show_default=False),
    ] = None,
    shadow: Annotated[
        bool,
        typer.Option("--shadow", help="Sum up a time in which admission was in shadow."),
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Of decisions: why this size then. A date, 10:15:30, or Unix seconds.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell the story of one request, or why the fleet had the size it had.

    For a request also what would have let it in. With --shadow: what admission would have done with
    all requests, had it been on. The id is what the client read in x-request-id. Records of older
    versions can be read: what they do not hold is unknown.
    """
    if request is not None and at is not None:
        raise InputError("explain takes --request ID, of records, or --at TIME, of decisions: one")
    if request is not None:
        _request(records, request, as_json=as_json)
    elif at is not None:
        _decision(records, at, as_json=as_json)
    elif shadow:
        _shadow(records, as_json=as_json)
    else:
        raise InputError(
            "explain needs --request ID or --shadow, of records, or --at TIME, of decisions"
        )


def _decision(path: Path, text: str, *, as_json: bool) -> None:
    from surgetank.adapters.recordset import last_stamp, lines_of, record_files  # noqa: PLC0415
    from surgetank.studies import explain_decision as decisions  # noqa: PLC0415

    files = record_files(path)
    last = last_stamp(files)
    if last is None:
        raise InputError(f"{path}: holds no decisions: name the file of autoscaler.decisions")
    moment = _moment(text, last)
    found = decisions.at(lines_of(files), moment)
    if found.first is None or found.last is None:
        raise InputError(f"{path}: holds no decisions: name the file of autoscaler.decisions")
    if not found.decisions:
        raise InputError(
            f"--at {text}: no decision in {path} is so early: its {found.ticks:,} are from "
            f"{decisions.when(found.first)} to {decisions.when(found.last)}"
        )
    if as_json:
        told = [decisions.to_json(decision, moment) for decision in found.decisions]
        print(json.dumps({"v": 1, "at": moment, "pools": told}, allow_nan=False))
        return
    for decision in found.decisions:
        for i, sentence in enumerate(decisions.sentences(decision, moment)):
            print(f"{'  ' if i else ''}{sentence}")


def _moment(text: str, last: float) -> float:
    """Read --at; a time of day is that of the log's last day, in UTC. Raises InputError."""
    from datetime import UTC, datetime, time  # noqa: PLC0415

    try:
        return float(text)
    except ValueError:
        pass
    try:
        if len(text) <= len("10:15:30.123") and ":" in text:
            day = datetime.fromtimestamp(last, UTC).date()
            return datetime.combine(day, time.fromisoformat(text), UTC).timestamp()
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"--at {text}: must be a time such as 2026-11-30T10:15:30, 10:15:30 or Unix seconds"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _request(path: Path, request_id: str, *, as_json: bool) -> None:
    from surgetank.adapters.recordset import during, find, record_files  # noqa: PLC0415
    from surgetank.studies.explain_request import MINUTE  # noqa: PLC0415
    from surgetank.studies.explain_request import explain as explained  # noqa: PLC0415

    files = record_files(path)
    found = find(files, request_id)
    if not found:
        raise InputError(f"--request {request_id!r}: {_unknown(path, files, request_id)}")
    record = found[-1]
    end = record.arrived if record.ended is None else record.ended
    story = explained(record, during(files, record.arrived - MINUTE, end))
    if as_json:
        print(json.dumps(story.to_json() | {"same_id": len(found)}, allow_nan=False))
        return
    print(f"Request {record.id}")
    if len(found) > 1:
        print(f"{len(found)} records have this id: this is the last one.")
    for sentence in [*story.sentences, *story.advice]:
        print(f"  {sentence}")


def _shadow(path: Path, *, as_json: bool) -> None:
    from surgetank.adapters.recordset import everything, record_files  # noqa: PLC0415
    from surgetank.studies.explain_shadow import summarise  # noqa: PLC0415

    report = summarise(everything(record_files(path)))
    if not report.records:
        raise InputError(f"{path}: has no records")
    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
    else:
        print("\n".join(report.sentences()))


def _unknown(path: Path, files: list[Path], request_id: str) -> str:
    """Say what there is instead of it."""
    from surgetank.adapters.recordset import extent, nearest  # noqa: PLC0415
    from surgetank.studies.explain_request import when  # noqa: PLC0415

    there = extent(files)
    if not there.records:
        return f"{path} has no records"
    like = ", ".join(nearest(files, request_id))
    return (
        f"no such request in {path}, which has {there.records:,} from {when(there.first)} to"
        f" {when(there.last)}; nearest: {like}"
    )
