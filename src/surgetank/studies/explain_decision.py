"""Why the fleet had the size it had at a moment, from the decision log.

Rule: it says what the log's lines say: what was seen, what was foretold, what was decided and why,
what else was asked for and why it did not decide, and what came of it. What a line does not hold is
unknown, never a zero.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

AFTER: Final = (
    900.0  # s in which what a decision started is looked for: the longest start waited for
)
_MOST_EVENTS: Final = 8
_PORTFOLIO: Final = "portfolio"  # the event of a choice among settings
_START: Final = 60.0  # s that a forecast looks ahead where no start was measured: ScaleSpec's
_RATE_OVER: Final = 10.0  # s that a rate is counted over, as the policy's influx window
_ERRORS: Final = 500  # of the last forecasts
_FEWEST: Final = 20  # errors, before they are an interval
_PART: Final = 0.9  # of them, within the interval
_DO: Final = {
    "start": "start",
    "attach": "send requests to",
    "detach": "send no more requests to",
    "drain": "drain",
    "stop": "stop",
}
_SEEN: Final = (  # name in the observation, how it is told
    ("arrivals", "{:,.0f} requests came"),
    ("prompt_tokens", "{:,.0f} prompt tokens"),
    ("expected_output", "{:,.0f} output tokens expected of them"),
    ("output_tokens", "{:,.0f} output tokens generated"),
    ("queue_length", "{:,.0f} waiting"),
    ("queue_age", "the oldest for {:.1f} s"),
    ("running", "{:,.0f} running"),
    ("outstanding_output", "{:,.0f} output tokens still to come"),
    ("start_time", "a start takes {:.0f} s (P95)"),
)


@dataclass(slots=True)
class Decision:
    """One pool at the moment asked for. `tick`: the line that decided; `before`: the one before it.

    `events`: what happened since the tick before; `came_of_it`: when what it started was ready,
    or failed, by replica. `chosen`: the portfolio's line that set what it scales by; None: none
    did since the log begins. `forecast`: prompt tokens/s, and between what they would be by the
    errors of the forecasts before it (None: too few).
    """

    tick: Mapping[str, Any]
    before: Mapping[str, Any] | None = None
    events: list[Mapping[str, Any]] = field(default_factory=list)
    came_of_it: dict[str, tuple[str, float]] = field(default_factory=dict)
    forecast: float | None = None
    interval: tuple[float, float] | None = None
    chosen: Mapping[str, Any] | None = None

    @property
    def pool(self) -> str:
        return f"{self.tick.get('model', '?')}/{self.tick.get('role', '?')}"


@dataclass(slots=True)
class Found:
    """What a log holds of a moment. `first` and `last`: of its ticks, Unix seconds."""

    decisions: list[Decision] = field(default_factory=list)
    first: float | None = None
    last: float | None = None
    ticks: int = 0


class Foresight:
    """A pool's forecasts against what came: how far off the last ones were."""

    def __init__(self) -> None:
        self._due: deque[tuple[float, float]] = deque()  # when, and what was foretold for then
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._came: deque[tuple[float, float]] = deque()  # until when, prompt tokens

    def take(self, row: Mapping[str, Any]) -> tuple[float | None, tuple[float, float] | None]:
        """Take a tick; give what it foretells, and the interval by the errors before it."""
        t, seen = float(row["t"]), row.get("observation", {})
        rate = self._rate(t, seen)
        while self._due and self._due[0][0] <= t:
            foretold = self._due.popleft()[1]
            if rate is not None:
                self._errors.append(rate - foretold)
        reasons = (*row.get("reasons", ()), *row.get("rejected", ()))
        value = next((r["value"] for r in reasons if r.get("signal") == "forecast"), None)
        if not isinstance(value, int | float):
            return None, None
        self._due.append((t + float(seen.get("start_time") or _START), float(value)))
        return float(value), self._interval(float(value))

    def _rate(self, t: float, seen: Mapping[str, Any]) -> float | None:
        if seen.get("prompt_tokens") is None:
            self._came.clear()
            return None
        self._came.append((t, float(seen["prompt_tokens"])))
        while self._came[0][0] < t - _RATE_OVER:
            self._came.popleft()
        span = t - self._came[0][0]  # the first of them came before that span
        return sum(tokens for _, tokens in list(self._came)[1:]) / span if span > 0 else None

    def _interval(self, value: float) -> tuple[float, float] | None:
        if len(self._errors) < _FEWEST:
            return None
        ordered, outside = sorted(self._errors), (1 - _PART) / 2
        low = ordered[int(outside * (len(ordered) - 1))]
        high = ordered[round((1 - outside) * (len(ordered) - 1))]
        return max(0.0, value + low), max(0.0, value + high)


def at(lines: Iterable[bytes], moment: float) -> Found:
    """Find each pool's last decision at or before a moment (Unix seconds); one pass."""
    found = Found()
    known: dict[str, Decision] = {}
    since: dict[str, list[Mapping[str, Any]]] = {}
    foresight: dict[str, Foresight] = {}
    chosen: dict[str, Mapping[str, Any]] = {}
    for row in _rows(lines):
        t, pool = float(row["t"]), f"{row.get('model')}/{row.get('role')}"
        if "plan" in row:
            found.ticks += 1
            found.first = t if found.first is None else min(found.first, t)
            found.last = t if found.last is None else max(found.last, t)
        if t > moment:
            if pool in known and t <= moment + AFTER:
                _follow(known[pool], row, t)
        elif "plan" in row:
            old = known.get(pool)
            known[pool] = Decision(row, None if old is None else old.tick, since.pop(pool, []))
            told = foresight.setdefault(pool, Foresight()).take(row)
            known[pool].forecast, known[pool].interval = told
            known[pool].chosen = chosen.get(pool)
        else:
            since.setdefault(pool, []).append(row)
            if row.get("event") == _PORTFOLIO:
                chosen[pool] = row
            if pool in known:
                _follow(known[pool], row, t)
    found.decisions = list(known.values())
    return found


def _rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The lines of a decision log; others are passed over."""
    for line in lines:
        if b'"effects"' not in line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("t"), int | float):
            yield row


def _follow(decision: Decision, row: Mapping[str, Any], t: float) -> None:
    """Note what became of a replica that the decision started."""
    replica = row.get("replica")
    started = {e.get("replica") for e in decision.tick.get("effects", ()) if e.get("do") == "start"}
    if replica in started and replica not in decision.came_of_it and row.get("event"):
        decision.came_of_it[str(replica)] = (str(row["event"]), t - float(decision.tick["t"]))


def when(t: float) -> str:
    """A time as UTC, to the millisecond."""
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def to_json(decision: Decision, moment: float) -> dict[str, Any]:
    """The stable form: the line as it is, with what came before and after."""
    tick = decision.tick
    before = decision.before
    return {
        "pool": decision.pool,
        "t": tick["t"],
        "age": moment - float(tick["t"]),
        "advisory": tick.get("advisory"),
        "held": tick.get("held"),
        "observation": tick.get("observation", {}),
        "plan": tick["plan"],
        "plan_before": None if before is None else before["plan"],
        "forecast": decision.forecast,
        "forecast_between": decision.interval,
        "reasons": tick.get("reasons", []),
        "rejected": tick.get("rejected", []),
        "effects": tick.get("effects", []),
        "events": decision.events,
        "chosen": decision.chosen,
        "came_of_it": {
            name: {"event": event, "after": after}
            for name, (event, after) in decision.came_of_it.items()
        },
        "sentences": sentences(decision, moment),
    }


def sentences(decision: Decision, moment: float) -> list[str]:
    """Tell it in plain sentences."""
    tick = decision.tick
    told = [_head(decision, moment)]
    told += [f"Just before: {_event(e)}." for e in decision.events[-_MOST_EVENTS:]]
    if decision.chosen is not None and decision.chosen not in decision.events:
        told.append(f"By settings of the portfolio's choice: {_event(decision.chosen)}.")
    told.append(_observed(tick.get("observation", {})))
    if decision.forecast is not None:
        told.append(_foretold(decision))
    told.append(_decided(decision))
    reasons, rejected = tick.get("reasons", ()), tick.get("rejected", ())
    told += [f"Because: {_reason(reason)}." for reason in reasons]
    if not reasons:
        told.append("Because: unknown, the line gives no reason.")
    told += [f"Considered, and did not decide: {_overruled(r, tick['plan'])}." for r in rejected]
    told.append(_did(tick.get("effects", ()), advisory=bool(tick.get("advisory"))))
    for name, (event, after) in decision.came_of_it.items():
        told.append(f"Later: {name} {event.replace('_', ' ')}, {after:.1f} s after this decision.")
    return told


def _head(decision: Decision, moment: float) -> str:
    t = float(decision.tick["t"])
    return f"Pool {decision.pool}, decided at {when(t)}, {moment - t:.1f} s before the time asked."


def _event(row: Mapping[str, Any]) -> str:
    what = str(row.get("event", "?")).replace("_", " ")
    why = f" ({row['why']})" if row.get("why") else ""
    return f"{row.get('replica', '')} {what}{why} at {when(float(row['t']))}".strip()


def _observed(seen: Mapping[str, Any]) -> str:
    fleet = ", ".join(
        f"{seen[name]} {word}"
        for name, word in (("serving", "serving"), ("starting", "starting"), ("standby", "standby"))
        if name in seen
    )
    told = [form.format(seen[name]) for name, form in _SEEN if seen.get(name) is not None]
    held, room = seen.get("kv_held"), seen.get("kv_capacity")
    if held is not None and room:
        told.append(f"the KV cache {held / room:.0%} full")
    unknown = [
        name
        for name in ("arrivals", "prompt_tokens", "queue_length", "running", "kv_held")
        if seen.get(name) is None
    ]
    text = f"It saw {fleet or 'an unknown fleet'}"
    text += f": {', '.join(told)}" if told else ""
    return text + (f"; unknown: {', '.join(unknown)}." if unknown else ".")


def _foretold(decision: Decision) -> str:
    ahead = decision.tick.get("observation", {}).get("start_time") or _START
    text = f"It expected {decision.forecast:,.0f} prompt tokens/s in {ahead:.0f} s"
    if decision.interval is None:
        return f"{text}; too few forecasts came before it to say how sure that is."
    low, high = decision.interval
    return f"{text}, {low:,.0f} to {high:,.0f} by {_PART:.0%} of the errors of those before it."


def _decided(decision: Decision) -> str:
    plan, before = decision.tick["plan"], decision.before
    text = f"It decided on {plan['replicas']} replicas and {plan.get('standbys', '?')} standbys"
    if before is not None:
        change = plan["replicas"] - before["plan"]["replicas"]
        more = f"{abs(change)} {'more' if change > 0 else 'fewer'}" if change else "as many"
        text += f", {more} than the tick before"
    if plan.get("launch") is not None and plan["launch"] != plan["replicas"]:
        text += f"; cold starts for {plan['launch']} of them now"
    if plan.get("demand") is not None:
        text += f"; {plan['demand']:.2f} were needed"
    if decision.tick.get("held") is not None:
        text += f"; an operator held the fleet at {decision.tick['held']}"
    return text + "."


def _reason(reason: Mapping[str, Any]) -> str:
    return f"{reason.get('text', '?')} [{reason.get('signal', '?')}]"


def _overruled(reason: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Say why it did not: it asked for less, was above a limit, or only measured."""
    wants, had = reason.get("wants"), plan["replicas"]
    text = _reason(reason)
    if not isinstance(wants, int):
        return text
    if wants < had:
        return f"{text}: it asked for {wants}, something else for more"
    if wants > had:
        return f"{text}: it asked for {wants}, which was not allowed, or is not taken for load"
    return f"{text}: it claimed no more than there was"


def _did(effects: Iterable[Mapping[str, Any]], *, advisory: bool) -> str:
    if advisory:
        return "It did nothing: this is advisory mode."
    done = [
        f"{_DO.get(e.get('do', ''), e.get('do', '?'))} {e.get('replica', '?')}" for e in effects
    ]
    return f"It did: {', '.join(done)}." if done else "It did nothing: nothing had to change."
