"""The journal of decisions: every input with what it caused, one JSON object a line.

Rule: replaying the inputs gives the same effects. The first line holds all that was handed in at
the start; times are monotonic seconds, with one wall-clock offset to read them by; numbers drawn
for jitter are written down, so that a replay needs no generator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, TypeVar

from surgetank.policy.effect import Dispatch, Effect
from surgetank.policy.flow import FlowControl, FlowSettings, FlowSpec, RetryCause
from surgetank.policy.ladder import Fallback, LadderSpec
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import KeyLimits, ModelLimits, Tenant, Tier

_SCHEMA: Final = 1
_LADDER: Final = LadderSpec()
_INPUTS: Final = frozenset(
    (
        "offer", "first_token", "finish", "abandon", "retry", "join", "leave", "observe", "advance",
        "reconfigure", "expect",
    )
)  # fmt: skip

_LISTS: Final = {"keys": KeyLimits, "models": ModelLimits, "fallbacks": Fallback}

V = TypeVar(
    "V", FlowSpec, LadderSpec, Fallback, Tenant, KeyLimits, ModelLimits, Tier, Request, Replica,
    Signals, Usage,
)  # fmt: skip
Row = (
    FlowSpec | LadderSpec | Fallback | Tenant | KeyLimits | ModelLimits | Tier | Request | Replica
    | Signals | Usage
)  # fmt: skip


def to_row(value: Row) -> dict[str, Any]:
    """One value as JSON-able fields; those equal to their default are left out."""
    row: dict[str, Any] = {}
    for name, default in _defaults(type(value)):
        own = getattr(value, name)
        if default is MISSING or own != default:
            listed = isinstance(own, tuple) and name in _LISTS
            row[name] = [to_row(entry) for entry in own] if listed else own
    return row


def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """Names and defaults of the fields of a dataclass or a named tuple."""
    if issubclass(kind, tuple):
        return [(name, kind._field_defaults.get(name, MISSING)) for name in kind._fields]
    return [(field.name, field.default) for field in fields(kind)]


def from_row(kind: type[V], row: Mapping[str, Any]) -> V:
    """Make the value `to_row` was given; raises TypeError when the fields are others."""
    if kind is Replica and "role" in row:
        row = {**row, "role": Role(row["role"])}
    for name, entry in _LISTS.items():
        if name in row:
            row = {**row, name: tuple(from_row(entry, inner) for inner in row[name])}
    return kind(**row)


def effect_row(effect: Effect) -> dict[str, Any]:
    """An effect as JSON-able fields; its request by id, since its offer has been written."""
    row: dict[str, Any] = {"do": type(effect).__name__, "request": effect.request.id}
    for name, default in _defaults(type(effect)):
        if name == "request":
            continue
        own = getattr(effect, name)
        if default is MISSING or own != default:
            row[name] = own
    if isinstance(effect, Dispatch):
        row["legs"] = [[leg.role, leg.replica] for leg in effect.legs]
    return row


class Journal:
    """A FlowControl whose every input and its effects go to `sink`, as lines without a newline.

    `wall_offset`: Unix seconds less monotonic seconds. Queries are asked of `flow`. An input that
    raises is written with its error; the state is as FlowControl left it.
    """

    def __init__(
        self,
        sink: Callable[[str], object],
        spec: FlowSpec,
        *,
        tenants: Iterable[Tenant] = (),
        tiers: Iterable[Tier] = (),
        models: Iterable[str] = (),
        draw: Callable[[], float] = lambda: 0.5,
        learned: Mapping[str, Any] | None = None,
        wall_offset: float = 0.0,
        ladder: LadderSpec = _LADDER,
    ) -> None:
        self._sink = sink
        self._source = draw
        self._drawn: list[float] = []
        self._inputs = 0
        tenants, tiers, models = tuple(tenants), tuple(tiers), tuple(models)
        header = {
            "journal": _SCHEMA,
            "wall_offset": wall_offset,
            **_settings_row(FlowSettings(spec, tenants, tiers, models, ladder)),
            "learned": learned,
        }
        sink(_line(header))
        self.flow = FlowControl(
            spec,
            tenants=tenants,
            tiers=tiers,
            models=models,
            draw=self._draw,
            learned=learned,
            ladder=ladder,
        )

    def _draw(self) -> float:
        number = self._source()
        self._drawn.append(number)
        return number

    def _write(self, name: str, args: list[Any], now: float, call: _Call) -> Sequence[Effect]:
        self._inputs += 1
        row: dict[str, Any] = {"n": self._inputs, "do": name, "args": args, "now": now}
        try:
            effects = call(now)
        except (KeyError, ValueError) as error:
            row["error"] = type(error).__name__
            raise
        else:
            if effects:
                row["effects"] = [effect_row(effect) for effect in effects]
            return effects
        finally:
            if self._drawn:
                row["drawn"] = self._drawn
                self._drawn = []
            self._sink(_line(row))

    def offer(self, request: Request, now: float) -> Sequence[Effect]:
        return self._write("offer", [to_row(request)], now, lambda at: self.flow.offer(request, at))

    def first_token(self, request_id: str, now: float) -> Sequence[Effect]:
        return self._write(
            "first_token", [request_id], now, lambda at: self.flow.first_token(request_id, at)
        )

    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]:
        row = None if usage is None else to_row(usage)
        return self._write(
            "finish",
            [request_id, outcome, row],
            now,
            lambda at: self.flow.finish(request_id, outcome, usage, at),
        )

    def abandon(self, request_id: str, usage: Usage | None, now: float) -> Sequence[Effect]:
        row = None if usage is None else to_row(usage)
        return self._write(
            "abandon", [request_id, row], now, lambda at: self.flow.abandon(request_id, usage, at)
        )

    def retry(
        self, request_id: str, cause: RetryCause, retry_after: float | None, now: float
    ) -> Sequence[Effect]:
        return self._write(
            "retry",
            [request_id, cause, retry_after],
            now,
            lambda at: self.flow.retry(request_id, cause, retry_after, at),
        )

    def join(self, replica: Replica, now: float) -> Sequence[Effect]:
        return self._write("join", [to_row(replica)], now, lambda at: self.flow.join(replica, at))

    def leave(self, replica_id: str, now: float) -> Sequence[Effect]:
        return self._write("leave", [replica_id], now, lambda at: self.flow.leave(replica_id, at))

    def expect(self, model: str, etas: Iterable[float], now: float) -> Sequence[Effect]:
        times = list(etas)
        return self._write(
            "expect", [model, times], now, lambda at: self.flow.expect(model, times, at)
        )

    def observe(self, replica_id: str, signals: Signals, now: float) -> Sequence[Effect]:
        return self._write(
            "observe",
            [replica_id, to_row(signals)],
            now,
            lambda at: self.flow.observe(replica_id, signals, at),
        )

    def reconfigure(self, settings: FlowSettings, now: float) -> Sequence[Effect]:
        row = _settings_row(settings)
        return self._write(
            "reconfigure", [row], now, lambda at: self.flow.reconfigure(settings, at)
        )

    def advance(self, now: float) -> Sequence[Effect]:
        return self._write("advance", [], now, self.flow.advance)

    def next_deadline(self) -> float | None:
        return self.flow.next_deadline()


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a replay first did something else. `line` counts from 1, the header being 1."""

    line: int
    expected: str
    got: str


def replay(lines: Iterable[str]) -> Divergence | None:
    """Decide everything anew; None when each decision is the same.

    A file may hold several lives, one after another: each begins with its header. The last line of
    a life may be cut off, and is then left out. Raises ValueError for anything else that is not a
    journal, and for lines that are missing (a disk too slow for them), naming the line.
    """
    flow: FlowControl | None = None
    drawn: list[float] = []
    broken: int | None = None
    inputs = 0
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        begins = isinstance(row, dict) and "journal" in row
        if broken is not None and not begins:
            raise ValueError(f"line {broken}: not JSON, and not the last line of a life")
        broken = None
        if row is None:
            broken = number
            continue
        if flow is None or begins:
            flow, inputs = _restart(row, drawn, number), 0
            continue
        if row.get("do") not in _INPUTS:
            raise ValueError(f"line {number}: do = {row.get('do')!r}: not an input of FlowControl")
        inputs += 1
        if row.get("n") != inputs:
            said = f"n = {row.get('n')!r}, expected {inputs}"
            raise ValueError(f"line {number}: {said}: lines were lost before it")
        drawn[:] = row.get("drawn", [])
        expected = {"effects": row.get("effects", []), "error": row.get("error")}
        try:
            effects = _apply(flow, row)
            got: dict[str, Any] = {"effects": [effect_row(e) for e in effects], "error": None}
        except (KeyError, ValueError) as error:
            got = {"effects": [], "error": type(error).__name__}
        except _DrawnOut:
            return Divergence(number, _line(expected), "draws more numbers than were written down")
        if (have := _line(got)) != (want := _line(expected)):
            return Divergence(number, want, have)
        if drawn:
            return Divergence(number, _line(expected), "draws fewer numbers than were written down")
    if flow is None:
        raise ValueError("line 1: no journal header")
    return None


_Call = Callable[[float], Sequence[Effect]]


class _DrawnOut(Exception):  # noqa: N818 - a signal within replay, not an error of anyone's
    """A replay asked for a number that was never drawn."""


def _restart(row: Any, drawn: list[float], number: int) -> FlowControl:
    if not isinstance(row, dict) or row.get("journal") != _SCHEMA:
        raise ValueError(f'line {number}: expected a journal header with "journal": {_SCHEMA}')

    def draw() -> float:
        if not drawn:
            raise _DrawnOut
        return drawn.pop(0)

    settings = _settings(row)
    return FlowControl(
        settings.spec,
        tenants=settings.tenants,
        tiers=settings.tiers,
        models=settings.models,
        draw=draw,
        learned=row["learned"],
        ladder=settings.ladder,
    )


def _settings_row(settings: FlowSettings) -> dict[str, Any]:
    return {
        "spec": to_row(settings.spec),
        "tenants": [to_row(tenant) for tenant in settings.tenants],
        "tiers": [to_row(tier) for tier in settings.tiers],
        "models": list(settings.models),
        "ladder": to_row(settings.ladder),
    }


def _settings(row: Mapping[str, Any]) -> FlowSettings:
    return FlowSettings(
        from_row(FlowSpec, row["spec"]),
        tuple(from_row(Tenant, tenant) for tenant in row["tenants"]),
        tuple(from_row(Tier, tier) for tier in row["tiers"]),
        tuple(row["models"]),
        from_row(LadderSpec, row.get("ladder", {})),
    )


def _apply(flow: FlowControl, row: Mapping[str, Any]) -> Sequence[Effect]:
    args, now = row["args"], row["now"]
    match row["do"]:
        case "offer":
            return flow.offer(from_row(Request, args[0]), now)
        case "first_token":
            return flow.first_token(args[0], now)
        case "finish":
            return flow.finish(args[0], Outcome(args[1]), _usage(args[2]), now)
        case "abandon":
            return flow.abandon(args[0], _usage(args[1]), now)
        case "retry":
            return flow.retry(args[0], args[1], args[2], now)
        case "join":
            return flow.join(from_row(Replica, args[0]), now)
        case "leave":
            return flow.leave(args[0], now)
        case "expect":
            return flow.expect(args[0], args[1], now)
        case "observe":
            return flow.observe(args[0], from_row(Signals, args[1]), now)
        case "reconfigure":
            return flow.reconfigure(_settings(args[0]), now)
        case _:
            return flow.advance(now)


def _usage(row: Mapping[str, Any] | None) -> Usage | None:
    return None if row is None else from_row(Usage, row)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)
