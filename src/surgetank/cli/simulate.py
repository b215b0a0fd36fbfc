"""`surgetank simulate`: what would happen, policies side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:  # loaded when it runs: --help does not need it
    from surgetank.simulation.asked import Asked

from surgetank.cli.simulate_files import check_path, decide_anew, filled, journal_lines
from surgetank.cli.simulate_settings import check_used, columns, configured, pairs_of
from surgetank.cli.simulate_sweep import run_sweep, swept
from surgetank.errors import InputError

app = typer.Typer(add_completion=False)

_EXAMPLES = (
    "surgetank simulate --pulse 2:20:15:60 --replicas 2 --policy passthrough,surgetank\n\n"
    "surgetank simulate access.log --engine h100-llama-3.1-8b-bf16-tp1 --replicas 4 --ttft 1"
)


@app.command(epilog=_EXAMPLES)
def simulate(
    *,
    trace: Annotated[
        str | None,
        typer.Argument(help="A log, as `analyze` reads them: its requests are sent as they came."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--format", help="Format of the log, when not told right.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="OURS=THEIRS", help="As for `analyze`; repeatable.")
    ] = None,
    pulse: Annotated[
        str | None,
        typer.Option(help="base:peak:width:period[:duration], requests/s and seconds."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Engine profile, a .toml file, or MODEL=PROFILE; repeatable."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="NAME[,NAME...]: surgetank, static[:N], fifo-cap[:CAP],"
            " passthrough[:round_robin|:least_outstanding]; others' autoscalers, each with its"
            " knob: hpa, keda, kpa, apa, wva, dynamo-throughput, dynamo-load, dynamo-hybrid,"
            " ray-serve, ttft-gradient, ttft-gradient-down [:KNOB]."
        ),
    ] = "passthrough,fifo-cap,surgetank",
    replicas: Annotated[
        int | None, typer.Option(min=0, help="Replicas that always serve. [default: 1]")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="All that may exist. [default: as at the start]")
    ] = None,
    standby: Annotated[
        int | None, typer.Option(min=0, help="Warm replicas beside them. [default: 0]")
    ] = None,
    cold_start: Annotated[
        float | None,
        typer.Option(min=0, help="Mean seconds of a start. [default: the profile's stages]"),
    ] = None,
    wake: Annotated[
        float | None, typer.Option(min=0, help="Standby to serving. [default: the profile's]")
    ] = None,
    snapshot: Annotated[
        float | None,
        typer.Option(min=0, help="Start from a snapshot, seconds. [default: the profile's]"),
    ] = None,
    start_failures: Annotated[
        float, typer.Option(min=0, max=1, help="Share of starts that fail.")
    ] = 0.0,
    start_denied: Annotated[
        float, typer.Option(min=0, max=1, help="Share of starts for which no machine is there.")
    ] = 0.0,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Machines to start on; a used one starts faster.")
    ] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(min=1, help="Requests on a replica at once. [default: the flow's]")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="What a replica says it runs at once.")
    ] = None,
    prompt: Annotated[
        str, typer.Option(help="Prompt tokens of a pulse: N, uniform:, exponential:, lognormal:.")
    ] = "lognormal:500,0.8,8000",
    output: Annotated[
        str | None,
        typer.Option(
            help="Output tokens, in the same forms; for a log, those of rows that say none."
            " [default: lognormal:200,0.7,4000]"
        ),
    ] = None,
    tenants: Annotated[
        str | None,
        typer.Option(help="Of a pulse: NAME[*COUNT][=SHARE|=RATE/s],... as quiet=2/s,noisy."),
    ] = None,
    clients: Annotated[
        str, typer.Option(help="sdk (as openai-python), naive or none (no retries).")
    ] = "none",
    patience: Annotated[
        float | None, typer.Option(min=0, help="Seconds without a first token: the user leaves.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds without the whole answer: the client asks anew."),
    ] = None,
    ttft: Annotated[
        float | None, typer.Option(min=0, help="Objective, seconds. [default: the tenant's own]")
    ] = None,
    tpot: Annotated[float, typer.Option(min=0, help="Objective, seconds a token.")] = 0.1,
    metric_lag: Annotated[
        float, typer.Option(min=0, help="Age of what scaling reads, seconds.")
    ] = 0.0,
    kv_transfer: Annotated[
        float, typer.Option(min=0, help="Prefill to decode where those are apart, seconds.")
    ] = 0.0,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="surgetank.yaml: flow, tiers, tenants and pools of it."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="flow.KEY=VALUE, scale.KEY=VALUE, engine.KEY=VALUE; repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, starts and jitter.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="So many runs, from --seed on.")] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many requests.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Write records and fleet samples; {policy} and {seed} are filled in."),
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Write the gateway's journal; as --records.")
    ] = None,
    literal: Annotated[
        bool, typer.Option("--literal", help="Step by step, token by token: exact, and slow.")
    ] = False,
    bulk: Annotated[
        bool | None,
        typer.Option(
            "--bulk/--no-bulk",
            help="All in machine code: passthrough only, without clients, fleet samples, journal."
            " [default: where the figures are all that is wanted, and the same]",
        ),
    ] = None,
    bound: Annotated[
        bool,
        typer.Option(
            "--bound",
            help="Also what it could cost at the least: the clairvoyant bound, a schedule that"
            " knew, the best fixed number, and what no start can be ready for.",
        ),
    ] = False,
    target: Annotated[
        float, typer.Option(help="Part of the requests within objectives, of --bound.")
    ] = 0.95,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="KEY=A,B,C: a sweep over an option or a --set key; repeatable."),
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="The same from a YAML file: KEY: [A, B, C].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results of a sweep, Parquet; goes on where it was.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of a sweep. [default: all CPUs]")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run a sweep on a Dask cluster.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Decide a gateway's journal anew, and say where it differs."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same figures as JSON.")] = False,
) -> None:
    """Play a log or a pulse through a simulated fleet: the policies are the live gateway's own.

    Every policy gets the same requests. Times are as exact as the engine's profile: 5-15 % unless
    it was calibrated.
    """
    if replay is not None:
        decide_anew(replay, as_json=as_json)
        return
    from surgetank.simulation import policies  # noqa: PLC0415 - heavy
    from surgetank.simulation.asked import Asked, check  # noqa: PLC0415
    from surgetank.simulation.asked import vary as changed  # noqa: PLC0415

    asked = Asked(
        trace=trace,
        pulse=pulse,
        engine=tuple(engine or Asked().engine),
        replicas=replicas,
        max_replicas=max_replicas,
        standby=standby,
        cold_start=cold_start,
        wake=wake,
        snapshot=snapshot,
        kv_transfer=kv_transfer,
        start_failures=start_failures,
        start_denied=start_denied,
        log_format=log_format,
        columns=columns(column or []),
        nodes=nodes,
        max_in_flight=max_in_flight,
        prompt=prompt,
        output=output,
        tenants=tenants,
        clients=clients,
        patience=patience,
        timeout=timeout,
        ttft=ttft,
        tpot=tpot or None,
        metric_lag=metric_lag,
        seed=seed,
        limit=limit,
        literal=literal,
        **configured(config, slots),
    )
    asked = changed(asked, pairs_of(set_ or []))
    check_used(asked)
    names = [name.strip() for name in policy.split(",") if name.strip()]
    if not names:
        raise InputError("--policy: at least one name")
    if vary or sweep is not None:
        single = (
            ("--records", records),
            ("--journal", journal),
            ("--html", html),
            ("--bound", bound or None),
        )
        for option, given in single:
            if given is not None:
                raise InputError(f"{option}: is of single runs: a sweep keeps figures, in --out")
        run_sweep(
            asked,
            names,
            range(seed, seed + seeds),
            [*(vary or []), *swept(sweep)],
            out=out,
            workers=workers,
            dask=dask,
            as_json=as_json,
        )
        return
    if out is not None or dask is not None or workers is not None:
        raise InputError(
            "--out, --workers and --dask are of a sweep: give --vary KEY=A,B,C as well"
        )
    for name in names:  # told before the first has run for minutes
        check(replace(asked, policy=name))
    runs = [(name, seed + i) for name in names for i in range(seeds)]
    if journal is not None:
        for name in names:
            if not policies.policy(name).journals:
                raise InputError(f"--journal: {name} is no gateway of ours: it keeps no journal")
    read = [path for path in (trace, config, *(engine or [])) if path is not None]
    for option, path in (("--records", records), ("--journal", journal)):
        check_path(option, path, read, policies=len(names), seeds=seeds)
    check_path("--html", html, read, policies=1, seeds=1)
    if bulk and (journal is not None or html is not None):
        raise InputError("--bulk: keeps neither a journal nor the samples that --html draws")
    if bulk is None and (records or journal or html):
        bulk = False
    if not 0 < target < 1:
        raise InputError(f"--target {target:g}: must be between 0 and 1, as 0.95")
    _compare(
        asked,
        runs,
        records=records,
        journal=journal,
        html=html,
        as_json=as_json,
        bulk=bulk,
        target=target if bound else None,
    )


def _compare(
    asked: Asked,
    runs: list[tuple[str, int]],
    *,
    records: Path | None,
    journal: Path | None,
    html: Path | None,
    as_json: bool,
    bulk: bool | None,
    target: float | None,
) -> None:
    """Run policies one after the other on the same requests, and show them side by side."""
    from surgetank.cli import simulate_output as output  # noqa: PLC0415 - heavy
    from surgetank.engine.replica import prepare  # noqa: PLC0415
    from surgetank.simulation.asked import scenario, vary  # noqa: PLC0415
    from surgetank.simulation.bulk import hindrance, simulate_fast  # noqa: PLC0415
    from surgetank.simulation.run import simulate as run  # noqa: PLC0415
    from surgetank.simulation.summary import summarise  # noqa: PLC0415

    summaries, results = [], []
    with output.Watch(len(runs)) as watch:
        prepare(watch.say)  # so that it is in no policy's time
        for name, number in runs:
            made = scenario(vary(asked, {"policy": name, "seed": str(number)}))
            told = watch.run(f"{name}, seed {number}")
            if bulk and (why := hindrance(made)):
                raise InputError(f"--bulk: {why}")
            if bulk is not False:
                result = simulate_fast(made, progress=told)
            else:
                with journal_lines(journal, name, number) as sink:
                    result = run(made, journal=sink, progress=told)
            if records is not None:
                output.write_records(result, filled(records, name, number))
            summaries.append(summarise(result))
            if html is not None:
                results.append(result)
        known = None
        if target is not None:
            from surgetank.simulation.reference import reference  # noqa: PLC0415

            watch.bound()
            known = reference(made, target)
    if html is not None:
        output.write_page(results, summaries, html)
    if as_json:
        told_all: dict[str, Any] = {"runs": [summary.to_json() for summary in summaries]}
        if known is not None:
            told_all["bound"] = known.to_json()
        print(json.dumps(told_all, indent=2))
    else:
        output.show(summaries)
        if known is not None:
            output.show_bound(known)
