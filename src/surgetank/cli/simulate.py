"""`surgetank simulate`: what would happen, policies side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:  # loaded when it runs: --help does not need it
    from surgetank.simulation.asked import Asked

from surgetank.cli.outputs import refuse_output
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
            " passthrough[:round_robin|:least_outstanding]."
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
        _replay(replay, as_json=as_json)
        return
    from surgetank.simulation import policies  # noqa: PLC0415 - heavy
    from surgetank.simulation.asked import Asked  # noqa: PLC0415
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
        columns=_columns(column or []),
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
        **_configured(config, slots),
    )
    asked = changed(asked, _pairs(set_ or []))
    _used(asked)
    names = [name.strip() for name in policy.split(",") if name.strip()]
    if not names:
        raise InputError("--policy: at least one name")
    if vary or sweep is not None:
        for option, given in (("--records", records), ("--journal", journal), ("--html", html)):
            if given is not None:
                raise InputError(f"{option}: is of single runs: a sweep keeps figures, in --out")
        _sweep(
            asked,
            names,
            range(seed, seed + seeds),
            [*(vary or []), *_file(sweep)],
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
    runs = [(name, seed + i) for name in names for i in range(seeds)]
    if journal is not None:
        for name in names:
            if not policies.policy(name).journals:
                raise InputError(f"--journal: {name} is no gateway of ours: it keeps no journal")
    read = [path for path in (trace, config, *(engine or [])) if path is not None]
    for option, path in (("--records", records), ("--journal", journal)):
        _check_path(option, path, read, policies=len(names), seeds=seeds)
    _check_path("--html", html, read, policies=1, seeds=1)
    if bulk and (journal is not None or html is not None):
        raise InputError("--bulk: keeps neither a journal nor the samples that --html draws")
    if bulk is None and (records or journal or html):
        bulk = False
    _compare(asked, runs, records=records, journal=journal, html=html, as_json=as_json, bulk=bulk)


def _compare(
    asked: Asked,
    runs: list[tuple[str, int]],
    *,
    records: Path | None,
    journal: Path | None,
    html: Path | None,
    as_json: bool,
    bulk: bool | None,
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
                with _lines(journal, name, number) as sink:
                    result = run(made, journal=sink, progress=told)
            if records is not None:
                output.write_records(result, _filled(records, name, number))
            summaries.append(summarise(result))
            if html is not None:
                results.append(result)
    if html is not None:
        output.write_page(results, summaries, html)
    if as_json:
        print(json.dumps({"runs": [summary.to_json() for summary in summaries]}, indent=2))
    else:
        output.show(summaries)


def _sweep(
    asked: Asked,
    policies: list[str],
    seeds: range,
    varied: list[str],
    *,
    out: Path | None,
    workers: int | None,
    dask: str | None,
    as_json: bool,
) -> None:
    """Run every combination, kept in a file as they end."""
    from surgetank.cli import simulate_output as output  # noqa: PLC0415 - heavy
    from surgetank.engine.replica import prepare  # noqa: PLC0415
    from surgetank.simulation import executors  # noqa: PLC0415
    from surgetank.simulation.asked import check  # noqa: PLC0415
    from surgetank.simulation.asked import vary as changed  # noqa: PLC0415
    from surgetank.simulation.sweep import cases, parse_vary, sweep  # noqa: PLC0415

    if out is None:
        raise InputError("--vary: give --out FILE.parquet for the results")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: no such directory: {out.parent}")
    todo = cases(policies, list(seeds), parse_vary(varied))
    for case in todo:
        check(_bounded(changed(asked, dict(case.values))))  # told before hours have passed
    where = executors.dask(dask) if dask is not None else executors.processes(workers)
    with output.Watch(len(todo)) as watch, where as (executor, count):
        prepare(watch.say)  # once, before each process would
        done = sweep(asked, todo, executor, out, workers=count, progress=watch.cases)
    output.show_sweep(done, out, as_json=as_json)
    if done.failed:
        raise typer.Exit(1)


def _file(path: Path | None) -> list[str]:
    """Read a sweep's YAML file as --vary options. Raises InputError."""
    if path is None:
        return []
    import yaml  # noqa: PLC0415 - only here

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--sweep {path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InputError(f"--sweep {path}: not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict) or not all(isinstance(v, list) for v in data.values()):
        raise InputError(f"--sweep {path}: must be a mapping such as `replicas: [2, 4]`")
    return [f"{key}={';'.join([*map(str, values), ''][:-1])}" for key, values in data.items()]


def _replay(path: Path, *, as_json: bool) -> None:
    """Decide a journal anew; exit 1 when a decision differs."""
    from surgetank.policy.journal import replay  # noqa: PLC0415 - only here

    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                count += 1
                yield line

    try:
        found = replay(lines())
    except OSError as error:
        raise InputError(f"--replay {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--replay {path}: {error}") from None
    if as_json:
        where = None if found is None else {"line": found.line, "was": found.expected}
        print(json.dumps({"lines": count, "same": found is None, "differs": where}))
    elif found is None:
        print(f"{count:,} lines, every decision the same")
    else:
        print(f"line {found.line} differs\n  was: {found.expected}\n  now: {found.got}")
    if found is not None:
        raise typer.Exit(1)


def _columns(texts: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=")[::2] for text in texts]
    if not all(ours and theirs for ours, theirs in pairs):
        raise InputError("--column: must be OURS=THEIRS, such as prompt_tokens=n_in")
    return tuple(pairs)


def _configured(path: Path | None, slots: int | None) -> dict[str, Any]:
    """The parts of a configuration file that a simulation takes."""
    if path is None:
        return {"slots": slots}
    from surgetank.config import load  # noqa: PLC0415 - heavy
    from surgetank.simulation.asked import ConfiguredPool  # noqa: PLC0415 - heavy

    config = load(path)
    pools = [
        ConfiguredPool(
            model=pool.model,
            role=pool.role,
            replicas=pool.base,
            max_replicas=pool.max_replicas,
            scale=pool.scale_spec(),
            drain_timeout=pool.drain_timeout,
        )
        for pool in config.autoscaler.pools
    ]
    listed = config.replicas
    return {
        "flow": config.flow,
        "tiers": config.tiers,
        "tenant_specs": config.tenants,
        "pools": tuple(pools),
        "listed": 0 if pools else len(listed),
        "slots": listed[0].slots if listed and slots is None else slots,
    }


def _pairs(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise InputError(f"--set {text}: must be flow.KEY=VALUE, scale. or engine. likewise")
        found[key.strip()] = value.strip()
    return found


def _used(asked: Asked) -> None:
    """Raise InputError for an option that would change nothing, or a setting out of its bounds."""
    _bounded(asked)
    if asked.pulse is not None and asked.trace is None:
        for option, given in (("--format", asked.log_format), ("--column", asked.columns)):
            if given:
                raise InputError(f"{option}: is of a log: a --pulse has none")
    if asked.trace is not None and asked.tenants is not None:
        raise InputError("--tenants: is of a pulse: a log names its own")


def _bounded(asked: Asked) -> Asked:
    """Hold single settings to the bounds of a configuration file. Raises InputError."""
    from surgetank.config.bounds import bound_of  # noqa: PLC0415 - heavy

    for key, text in asked.settings:
        part, _, name = key.partition(".")
        try:
            value = float(text)
        except ValueError:  # a word, or told where the setting is applied
            continue
        right = "must be finite" if not isfinite(value) else bound_of(name).problem(value)
        if part != "engine" and right is not None:
            raise InputError(f"{key} = {text}: {right}")
    return asked


def _check_path(
    option: str, path: Path | None, read: Sequence[str | Path], *, policies: int, seeds: int
) -> None:
    if path is None:
        return
    for word, number in (("{policy}", policies), ("{seed}", seeds)):
        if number > 1 and word not in path.name:
            raise InputError(f"{option} {path}: several runs: put {word} into its name")
    refuse_output(option, path, read)


def _filled(path: Path, policy: str, seed: int) -> Path:
    name = path.name.replace("{policy}", policy.replace(":", "-")).replace("{seed}", str(seed))
    return path.with_name(name)


@contextmanager
def _lines(path: Path | None, policy: str, seed: int) -> Iterator[Any]:
    """A sink for lines, or None. Raises InputError when the file cannot be written."""
    if path is None:
        yield None
        return
    name = _filled(path, policy, seed)
    try:
        with name.open("w", encoding="utf-8") as file:
            yield lambda line: file.write(line + "\n")
    except OSError as error:
        raise InputError(f"{name}: cannot be written: {error.strerror}") from None
