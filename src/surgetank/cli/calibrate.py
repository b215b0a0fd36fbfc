"""`surgetank calibrate`: fit an engine profile to records, or to a short probe of a live engine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from surgetank.adapters.engines import EngineFacts
from surgetank.adapters.engines import probe as ask
from surgetank.adapters.http import FetchError
from surgetank.adapters.records import read_records
from surgetank.engine import profile as profiles
from surgetank.engine import written
from surgetank.engine.profile import EngineProfile
from surgetank.errors import InputError
from surgetank.policy.record import RequestRecord
from surgetank.report.files import write_whole

if TYPE_CHECKING:  # the engine model loads machine code: at the first use
    from surgetank.studies.calibrate import Calibration
    from surgetank.studies.probe import Probed, Target

app = typer.Typer(add_completion=False)

_ASK: Final = 10.0  # seconds for each question to an engine
_AT_ONCE: Final = 16  # where nothing tells how many an engine runs
_UNKNOWN_BLOCKS: Final = 1 << 20  # where nothing tells: no bound in practice


@app.command()
def calibrate(  # noqa: PLR0917 - Typer reads options from positional parameters
    source: Annotated[
        str, typer.Argument(metavar="RECORDS|URL", help="Records of requests, or a live engine.")
    ],
    like: Annotated[
        str, typer.Option(help="Profile whose limits and coefficients to begin from.")
    ] = "",
    engine: Annotated[
        str, typer.Option(metavar="URL", help="With RECORDS: ask this engine for its KV blocks.")
    ] = "",
    model: Annotated[str, typer.Option(help="Model to probe. [default: the first listed]")] = "",
    key_file: Annotated[Path | None, typer.Option(help="File with the engine's API key.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(min=1, help="KV blocks of the engine.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens a block.")] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Sequences that it runs at once.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token budget of a step.")
    ] = None,
    within: Annotated[float, typer.Option(min=1, help="Seconds a probe may take.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Seed of the probe's prompts and times.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "calibrated",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the profile (TOML) here.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a profile's step time, and say how far off it is on requests it was not shown.

    RECORDS is what the gateway or a load test wrote. A URL is probed: at most 400 requests, one
    after the other and side by side. Both times the last part is held out, and its error is told.
    """
    from surgetank.studies import calibrate as study  # noqa: PLC0415 - heavy
    from surgetank.studies.probe import probe  # noqa: PLC0415 - heavy

    if output is not None and not output.parent.is_dir():
        raise InputError(f"{output}: {output.parent} is no directory")
    if output is not None and output.is_dir():
        raise InputError(f"{output}: is a directory: name a file to write")
    live = source.startswith(("http://", "https://"))
    headers = _headers(key_file)
    asked = source if live else engine
    facts = _facts(asked, headers) if asked else None
    limits = _limits(facts, profiles.find(like) if like else None)
    given = {
        "kv_blocks": kv_blocks,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }
    limits = _changed(limits, {key: value for key, value in given.items() if value is not None})
    begin = limits if like else None
    with _working() as say:
        if live:
            target = _target(source, facts, limits, model=model, key=_key(key_file), within=within)
            probed = uvloop.run(probe(target, seed=seed, progress=say))
            result = _fit_probe(probed, limits, begin, say)
        else:
            records = read_records(source)
            say("reading", 0)
            rows: list[RequestRecord] = list(records)
            say("fitting", len(rows))
            result = study.calibrate(rows, limits, begin=begin)
    what = f"a probe of {asked}" if live else Path(source).name
    fitted = study.described(result, name, f"surgetank calibrate, {what}")
    if output is not None:
        write_whole(output, written.toml(fitted))
    if as_json:
        print(json.dumps(result.as_json() | {"name": name}))
    else:
        _show(result, fitted, output)


def _fit_probe(
    probed: Probed, limits: EngineProfile, begin: EngineProfile | None, say: _Say
) -> Calibration:
    from surgetank.studies import calibrate as study  # noqa: PLC0415 - heavy

    say("fitting", len(probed.records))
    return study.calibrate(
        probed.records,
        limits,
        begin=begin,
        hold_out=lambda kept: study.chosen(kept, probed.mixed),
    )


def _headers(key_file: Path | None) -> tuple[tuple[bytes, bytes], ...]:
    key = _key(key_file)
    return ((b"authorization", f"Bearer {key}".encode()),) if key else ()


def _key(key_file: Path | None) -> str:
    if key_file is None:
        return ""
    try:
        return key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{key_file}: cannot be read: {error}") from None


def _facts(url: str, headers: tuple[tuple[bytes, bytes], ...]) -> EngineFacts:
    try:
        return asyncio.run(ask(url, timeout=_ASK, headers=headers))
    except FetchError as error:
        raise InputError(f"{url}: no engine answers there: {error}") from None


def _limits(facts: EngineFacts | None, like: EngineProfile | None) -> EngineProfile:
    """Join what an engine says of itself with a profile, or with vLLM's defaults."""
    base = like or EngineProfile(
        name="calibrated",
        a_ms=10.0,
        b_us=50.0,
        c_ns=1.0,
        d_us=50.0,
        e_ns=50.0,
        kv_blocks=_UNKNOWN_BLOCKS,
        max_model_len=131072,
    )
    if facts is None:
        return base
    said: dict[str, Any] = {}
    if facts.block_size:
        said["block_size"] = facts.block_size
    if facts.kv_tokens:
        said["kv_blocks"] = facts.kv_tokens // (facts.block_size or base.block_size)
        said["max_model_len"] = min(facts.max_context or facts.kv_tokens, facts.kv_tokens)
    elif facts.max_context:
        said["max_model_len"] = facts.max_context
    if facts.slots:
        said["max_num_seqs"] = facts.slots
    return _changed(base, said)


def _changed(profile: EngineProfile, said: dict[str, Any]) -> EngineProfile:
    """Change limits; a context that no longer fits in the KV is cut to it."""
    blocks = said.get("kv_blocks", profile.kv_blocks)
    room = blocks * said.get("block_size", profile.block_size)
    longest = min(said.get("max_model_len", profile.max_model_len), room)
    try:
        return replace(profile, **{**said, "max_model_len": longest})
    except ValueError as error:
        raise InputError(str(error)) from None


def _target(
    url: str,
    facts: EngineFacts | None,
    limits: EngineProfile,
    *,
    model: str,
    key: str,
    within: float,
) -> Target:
    from surgetank.studies.probe import Target  # noqa: PLC0415 - heavy

    listed = facts.models if facts else ()
    if model and listed and model not in listed:
        raise InputError(f"{url}: has no model `{model}`: it lists {', '.join(listed)}")
    if not model and not listed:
        raise InputError(f"{url}: lists no model: name it with --model")
    slots = facts.slots if facts and facts.slots else min(_AT_ONCE, limits.max_num_seqs)
    return Target(
        url,
        model or listed[0],
        at_once=min(slots, 64),
        max_context=limits.max_model_len,
        kv_tokens=limits.kv_tokens,
        key=key,
        within=within,
    )


class _Say:
    """Tells how far it is, on a terminal."""

    def __init__(self, bars: Progress | None) -> None:
        self._bars = bars
        self._task = bars.add_task("asking the engine", total=None) if bars else None

    def __call__(self, kind: str, done: int) -> None:
        if self._bars is not None and self._task is not None:
            told = f"{kind}: {done:,} requests" if done else kind
            self._bars.update(self._task, description=told)


@contextmanager
def _working() -> Iterator[_Say]:
    if not sys.stderr.isatty():
        yield _Say(None)
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Say(bars)


def _show(result: Calibration, fitted: EngineProfile, output: Path | None) -> None:
    from surgetank.studies import calibrate as study  # noqa: PLC0415 - heavy

    console = Console(highlight=False, markup=False)
    left = ", ".join(f"{count:,} {why}" for why, count in result.left_out.items())
    console.print(
        f"{result.used:,} of {result.records:,} requests used"
        f"{f' (left out: {left})' if left else ''}, {result.replicas} engine(s)"
    )
    console.print(
        f"step = {fitted.a_ms:.4g} ms + {fitted.b_us:.4g} us x prefill tokens"
        f" + {fitted.c_ns:.4g} ns x prefill attention\n"
        f"     + {fitted.d_us:.4g} us x sequences + {fitted.e_ns:.4g} ns x context tokens"
    )
    if fitted.kv_blocks == _UNKNOWN_BLOCKS:
        console.print("KV blocks: unknown, taken as unbounded: give --kv-blocks or --engine URL")
    else:
        console.print(f"KV: {fitted.kv_blocks:,} blocks of {fitted.block_size} tokens")
    console.print(f"runs {fitted.max_num_seqs:,} sequences at once")
    console.print(f"error, fitted:   {study.explain(result.fit.fitted)}")
    console.print(f"error, held out: {study.explain(result.fit.held_out)}")
    if output is not None:
        console.print(f"wrote {output}: use it wherever a profile is named")
    else:
        print(f"\n{written.toml(fitted)}", end="")
