"""What a user asked to simulate, in plain words, and the Scenario made of it.

Rule: plain values only, so that a sweep can change any of them by name and send it to another
process; the same values give the same scenario.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from typing import Any, Final

import numpy as np

from surgetank.engine import coldstart
from surgetank.engine import profile as profiles
from surgetank.engine.coldstart import ColdStart
from surgetank.engine.profile import EngineProfile
from surgetank.errors import InputError
from surgetank.policy.flow import FlowSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.replica import Role
from surgetank.policy.tenant import Tenant, Tier
from surgetank.simulation.clients import KINDS, ClientSpec
from surgetank.simulation.logs import read_trace
from surgetank.simulation.policies import policy
from surgetank.simulation.pulses import draw_pulse, parse_senders
from surgetank.simulation.scenario import Objective, PoolPlan, Scenario
from surgetank.simulation.workload import Workload, from_trace
from surgetank.traffic.pulse import parse_pulse
from surgetank.traffic.tokencounts import parse_lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredPool:
    """A pool of a configuration file."""

    model: str
    role: Role
    replicas: int
    max_replicas: int
    scale: ScaleSpec
    drain_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A simulation as asked for. Names are those of the command's options, in words of its own.

    `settings`: single settings by dotted name (`flow.max_queued`, `scale.standbys`,
    `engine.kv_blocks`), applied last.
    """

    trace: str | None = None
    log_format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()  # ours, the log's
    pulse: str | None = None
    engine: tuple[str, ...] = ("h100-llama-3.1-8b-bf16-tp1",)  # PROFILE, or MODEL=PROFILE
    policy: str = "surgetank"
    replicas: int | None = None
    max_replicas: int | None = None
    standby: int | None = None
    slots: int | None = None
    nodes: int | None = None
    cold_start: float | None = None  # mean seconds, instead of the profile's stages
    wake: float | None = None
    snapshot: float | None = None  # seconds to restore one, instead of a start
    kv_transfer: float = 0.0  # seconds from prefill to decode, where those are apart
    start_failures: float = 0.0
    start_denied: float = 0.0
    prompt: str = "lognormal:500,0.8,8000"
    output: str | None = None
    tenants: str | None = None
    clients: str = "none"
    patience: float | None = None
    timeout: float | None = None
    ttft: float | None = None
    tpot: float | None = 0.1
    max_in_flight: int | None = None
    metric_lag: float = 0.0
    limit: int | None = None
    seed: int = 0
    literal: bool = False
    flow: FlowSpec = field(default_factory=FlowSpec)
    tiers: tuple[Tier, ...] = ()
    tenant_specs: tuple[Tenant, ...] = ()
    pools: tuple[ConfiguredPool, ...] = ()
    listed: int = 0  # replicas that the configuration lists one by one
    settings: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Raise InputError for a number that cannot be, whichever way it came."""
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None:
                continue
            right = _problem(name, value)
            if right is not None:
                raise InputError(f"--{name.replace('_', '-')} {value:g}: must be {right}")


def _problem(name: str, value: float) -> str | None:
    """What would be right, None when the value is."""
    if not isfinite(value):
        return "finite"
    least = _LEAST.get(name, 0)
    if value < least:
        return f">= {least}"
    if name in _PARTS and value > 1:
        return "<= 1"
    return "> 0" if name == "ttft" and value == 0 else None


_OUTPUT: Final = "lognormal:200,0.7,4000"
_WORDS: Final = frozenset(
    ("engine", "policy", "trace", "pulse", "prompt", "output", "tenants", "clients")
)
_NUMBERS: Final = {
    "replicas": int,
    "max_replicas": int,
    "standby": int,
    "slots": int,
    "nodes": int,
    "max_in_flight": int,
    "limit": int,
    "seed": int,
    "patience": float,
    "timeout": float,
    "ttft": float,
    "tpot": float,
    "metric_lag": float,
    "cold_start": float,
    "wake": float,
    "snapshot": float,
    "kv_transfer": float,
    "start_failures": float,
    "start_denied": float,
}
_LEAST: Final = dict.fromkeys(("max_replicas", "slots", "nodes", "max_in_flight", "limit"), 1)
_DAY: Final = 86_400.0
_MOST_DAYS: Final = 62  # two months: a fleet sample a second is kept, 5 million of them
_PARTS: Final = frozenset(("start_failures", "start_denied"))
_SPECS: Final[Mapping[str, type]] = {"flow": FlowSpec, "scale": ScaleSpec, "engine": EngineProfile}


def vary(asked: Asked, values: Mapping[str, str]) -> Asked:
    """Change parameters by name, as a user writes them (`max-replicas` or `max_replicas`).

    Raises InputError for an unknown name, or a value that is no number where one is needed.
    """
    changed: dict[str, Any] = {}
    settings = dict(asked.settings)
    for name, text in values.items():
        key = name.replace("-", "_")
        if "." in key:
            part, _, setting = key.partition(".")
            spec = _SPECS.get(part)
            if spec is None:
                raise InputError(f"{name}: must be {', '.join(f'{p}.SETTING' for p in _SPECS)}")
            if setting not in {f.name for f in fields(spec)}:
                raise InputError(f"{name}: no such setting{_meant(setting, part, spec)}")
            settings[key] = text
        elif key == "engine":
            changed[key] = (text,)
        elif key in _WORDS:
            changed[key] = text
        elif key in _NUMBERS:
            changed[key] = _number(text, _NUMBERS[key], name)
        else:
            known = ", ".join(sorted({*_WORDS, *_NUMBERS}))
            raise InputError(f"{name}: not a parameter: known are {known}, and flow.SETTING ...")
    return replace(asked, **changed, settings=tuple(settings.items()))


def _meant(setting: str, part: str, spec: type) -> str:
    known = [f.name for f in fields(spec)]
    near = get_close_matches(setting, known, n=1)
    if near:
        return f": did you mean {part}.{near[0]}?"
    return f": {part} has {', '.join(known)}"


def check(asked: Asked) -> None:
    """Raise InputError for what can be told without reading a log or drawing a pulse."""
    policy(asked.policy).check((pool.model, pool.role) for pool in asked.pools)
    _clients(asked)
    _engines(asked)
    parse_senders(asked.tenants)
    parse_lengths(asked.prompt, "--prompt")
    parse_lengths(asked.output or _OUTPUT, "--output")
    if asked.pulse is not None:
        parse_pulse(asked.pulse)
    for part, spec in (("flow", asked.flow), ("scale", ScaleSpec())):
        _set(spec, part, asked)


def _number(text: str, kind: type, name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        right = "a whole number" if kind is int else "a number"
        raise InputError(f"{name}={text}: must be {right}") from None


def scenario(asked: Asked) -> Scenario:
    """Make what was asked for. Raises InputError, naming the option that is wrong."""
    engines, first = _engines(asked)
    load = workload(asked, model=first)
    flow = asked.flow
    if asked.max_in_flight is not None:
        flow = replace(flow, max_in_flight=asked.max_in_flight)
    flow = _set(flow, "flow", asked)
    objective = Objective(ttft=asked.ttft, tpot=asked.tpot or None)
    if asked.ttft is not None:
        flow = replace(flow, ttft_objective=asked.ttft)
    made = Scenario(
        workload=load,
        pools=_pools(asked, load, engines),
        policy=asked.policy,
        flow=flow,
        tiers=asked.tiers,
        tenants=asked.tenant_specs,
        clients=_clients(asked),
        objective=objective,
        seed=asked.seed,
        metric_lag=asked.metric_lag,
        kv_transfer=asked.kv_transfer,
        engine="literal" if asked.literal else "exact",
    )
    return _scaled(made, asked)


def workload(asked: Asked, *, model: str) -> Workload:
    """Read the log, or draw the pulse. Raises InputError."""
    if (asked.trace is None) == (asked.pulse is None):
        raise InputError("give a log, or --pulse base:peak:width:period: one of them")
    if asked.pulse is not None:
        load = draw_pulse(
            parse_pulse(asked.pulse),
            parse_lengths(asked.prompt, "--prompt"),
            parse_lengths(asked.output or _OUTPUT, "--output"),
            senders=parse_senders(asked.tenants),
            model=model,
            seed=asked.seed,
        )
    else:
        expected = round(parse_lengths(asked.output, "--output").mean) if asked.output else None
        trace = read_trace(asked.trace or "", asked.log_format, asked.columns)
        load = from_trace(trace, model=model, output=expected)
    load = load if asked.limit is None else load.first(asked.limit)
    _hold_to_months(load)
    return load


def _hold_to_months(load: Workload) -> None:
    """Raise InputError for what would be simulated for hours: a stray stamp, mostly."""
    days = float(load.arrived[-1] - load.arrived[0]) / _DAY if len(load) > 1 else 0.0
    if days > _MOST_DAYS:
        gaps = np.diff(load.arrived)
        at = int(gaps.argmax())
        raise InputError(
            f"{days:,.0f} days of requests: must be <= {_MOST_DAYS}, for each second of them is"
            f" simulated; {gaps[at] / _DAY:,.1f} days pass between request {at + 1:,} and the next:"
            " a stray time stamp?"
        )


def _engines(asked: Asked) -> tuple[dict[str, EngineProfile], str]:
    """Profiles by model ("" for all others), and the name of a model that no log names."""
    found: dict[str, EngineProfile] = {}
    for text in asked.engine:
        model, equals, name = text.rpartition("=")
        found[model if equals else ""] = _set(profiles.find(name), "engine", asked)
    if asked.pools:
        return found, asked.pools[0].model
    named = next((model for model in found if model), None)
    return found, named or next(iter(found.values())).name


def _pools(
    asked: Asked, load: Workload, engines: Mapping[str, EngineProfile]
) -> tuple[PoolPlan, ...]:
    configured = {(pool.model, pool.role): pool for pool in asked.pools}
    models = dict.fromkeys(load.models)
    keys = list(configured) or [(model, Role.BOTH) for model in models]
    pools = []
    for model, role in keys:
        profile = engines.get(model) or engines.get("")
        if profile is None:
            known = ", ".join(sorted(engines))
            raise InputError(f"--engine: none for the model {model} (given: {known})")
        own = configured.get((model, role))
        replicas = asked.replicas
        if replicas is None:
            replicas = own.replicas if own else max(1, asked.listed)
        standby = asked.standby if asked.standby is not None else (own.scale.standbys if own else 0)
        most = asked.max_replicas
        if most is None and own is not None:
            most = own.max_replicas
        scale = own.scale if own else None
        if scale is not None:
            scale = replace(
                scale,
                standbys=standby,
                max_standbys=max(standby, scale.max_standbys),
                min_replicas=replicas,
                max_replicas=max(most or 0, replicas, 1),
            )
        pools.append(
            PoolPlan(
                model=model,
                profile=profile,
                role=role,
                replicas=replicas,
                standbys=standby,
                max_replicas=most,
                slots=asked.slots,
                scale=scale,
                start=_start(asked, profile),
                nodes=asked.nodes,
                drain_timeout=own.drain_timeout if own else 600.0,
            )
        )
    return tuple(pools)


def _scaled(made: Scenario, asked: Asked) -> Scenario:
    """Apply `scale.` settings to what each pool would have."""
    if not any(key.startswith("scale.") for key, _ in asked.settings):
        return made
    pools = tuple(
        replace(pool, scale=_set(made.scale_spec(pool), "scale", asked)) for pool in made.pools
    )
    return replace(made, pools=pools)


def _start(asked: Asked, profile: EngineProfile) -> ColdStart:
    """The profile's starts, or those asked for."""
    start = coldstart.of_profile(profile)
    if asked.cold_start is not None:
        start = replace(coldstart.whole(asked.cold_start), wake_s=profile.wake_s)
    if asked.wake is not None:
        start = replace(start, wake_s=asked.wake)
    if asked.snapshot is not None:
        start = replace(start, snapshot_s=asked.snapshot)
    return replace(start, failure=asked.start_failures, denied=asked.start_denied)


def _clients(asked: Asked) -> ClientSpec:
    kind = KINDS.get(asked.clients)
    if kind is None:
        raise InputError(f"--clients {asked.clients}: must be one of {', '.join(KINDS)}")
    if asked.patience is not None:
        kind = replace(kind, patience=asked.patience)
    if asked.timeout is not None:
        kind = replace(kind, timeout=asked.timeout)
    return kind


def _set(spec: Any, part: str, asked: Asked) -> Any:
    """Apply the dotted settings of one part. Raises InputError."""
    changed: dict[str, Any] = {}
    for key, text in asked.settings:
        where, _, name = key.partition(".")
        if where != part:
            continue
        kind = str(next(f.type for f in fields(spec) if f.name == name))
        if text.lower() in {"none", "null"} and "None" in kind:
            changed[name] = None
        elif kind.startswith("int"):
            changed[name] = _number(text, int, key)
        elif kind.startswith("float"):
            changed[name] = _number(text, float, key)
        elif kind == "bool":
            if text.lower() not in {"true", "false"}:
                raise InputError(f"{key}={text}: must be true or false")
            changed[name] = text.lower() == "true"
        elif kind.startswith("tuple"):
            raise InputError(f"{key}: cannot be set in a word: write a profile of your own")
        else:
            changed[name] = text
    if not changed:
        return spec
    try:
        return replace(spec, **changed)
    except ValueError as error:
        raise InputError(f"{part}: {error}") from None
