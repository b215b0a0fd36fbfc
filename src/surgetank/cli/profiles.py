"""`surgetank profiles`: the engine profiles that come with the package, and one written out."""

from __future__ import annotations

import json
import tomllib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from surgetank.engine import fitted, profile, written
from surgetank.engine.profile import EngineProfile
from surgetank.engine.steptime import StepWork, step_seconds

app = typer.Typer(add_completion=False)


@app.command()
def profiles(
    name: Annotated[
        str | None,
        typer.Argument(help="Write this one out as TOML: a start for a profile of your own."),
    ] = None,
    *,
    match: Annotated[str, typer.Option(help="Only names that hold this text.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the engine profiles: step time, KV, start time and how far off each is known to be.

    `surgetank profiles NAME > mine.toml` writes one out; a file's path is accepted wherever a
    profile's name is.
    """
    if name is not None:
        found = profile.find(name)
        text = json.dumps(_row(found) | {"profile": tomllib.loads(written.toml(found))}) + "\n"
        print(text if as_json else written.toml(found), end="")
        return
    found_all = [profile.find(known) for known in profile.builtin_names() if match in known]
    if as_json:
        print(json.dumps([_row(found) for found in found_all]))
        return
    console = Console(highlight=False, soft_wrap=False)
    console.print(_table(found_all))
    console.print(
        "decode step: 64 sequences of 1,000 tokens; prefill: 2,048 prompt tokens alone"
        "\n* experimental: such rows checked poorly against measured silicon"
    )


def _row(found: EngineProfile) -> dict[str, Any]:
    """What the list says of one profile."""
    name = found.name
    return {
        "name": name,
        "kv_tokens": found.kv_tokens,
        "max_num_seqs": found.max_num_seqs,
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "decode_step_ms": round(1e3 * step_seconds(found, _decode()), 3),
        "prefill_2048_ms": round(1e3 * step_seconds(found, _prefill()), 3),
        "cold_start_s": round(found.cold_start_s, 1),
        "wake_s": found.wake_s,
        "experimental": name in fitted.names() and fitted.is_experimental(name),
        "description": found.description,
        "source": found.source,
        "error": found.error,
    }


def _decode() -> StepWork:
    return StepWork(decodes=64, decode_context=64_000)


def _prefill() -> StepWork:
    work = StepWork()
    work.add_prefill(2048, 0)
    return work


def _table(found: list[EngineProfile]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("profile", no_wrap=True)
    for column in ("KV tokens", "seqs", "decode step", "prefill", "start", "wake"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in map(_row, found):
        table.add_row(
            f"{row['name']}{' *' if row['experimental'] else ''}",
            f"{row['kv_tokens']:,}",
            f"{row['max_num_seqs']:,}",
            f"{row['decode_step_ms']:.1f} ms",
            f"{row['prefill_2048_ms']:.0f} ms",
            f"{row['cold_start_s']:.0f} s",
            f"{row['wake_s']:g} s",
        )
    return table
