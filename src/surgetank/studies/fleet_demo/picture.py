"""The second act as one SVG: arrivals, first tokens of the quiet tenant, replicas over time.

Rule: self-contained and drawn from the act's own numbers, nothing smoothed: one mark is one
request, one step is one sample. Readable in light and dark, and without colour: the sides' marks
differ in shape, the replicas' states in pattern.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from surgetank.policy.record import FleetSample
from surgetank.studies.fleet_demo.act import FleetAct
from surgetank.studies.fleet_demo.pulse import BURST, NOISY, QUIET
from surgetank.studies.fleet_demo.setup import OBJECTIVE

_WIDTH: Final = 900
_LEFT: Final = 56
_RIGHT: Final = 880
_HEIGHT: Final = 668
_LEAST_TTFT: Final = 0.02  # seconds: the bottom of the logarithmic axis
_STATES: Final[tuple[tuple[str, Callable[[FleetSample], int]], ...]] = (
    ("serving", lambda s: s.serving),
    ("standby", lambda s: s.standby),
    ("starting", lambda s: s.starting + s.refilling),
    ("draining", lambda s: s.draining),
)
_STYLE: Final = """
svg { --back: #ffffff; --ink: #17202a; --soft: #5d6874; --grid: #dfe4e9; --band: #f1f3f6;
  --ours: #0072b2; --plain: #c45200; --serving: #00805d; --standby: #56a0d3;
  --starting: #b98a00; --draining: #b04c88; font: 12px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --back: #10151b; --ink: #e7edf3; --soft: #9aa8b5; --grid: #2d3945; --band: #1c252e;
    --ours: #56b4e9; --plain: #ff8c42; --serving: #2fa57c; --standby: #3f7fae;
    --starting: #d8b030; --draining: #e79bc8; } }
text { fill: var(--ink); } .soft { fill: var(--soft); }
.title { font-size: 15px; font-weight: 600; }
.head { font-weight: 600; } .grid { stroke: var(--grid); } .band { fill: var(--band); }
.quiet { fill: none; stroke: var(--ours); stroke-width: 2; }
.noisy { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.ours { fill: var(--ours); } .plain { fill: none; stroke: var(--plain); stroke-width: 1.5; }
.limit { stroke: var(--ink); stroke-dasharray: 5 4; }
.fixed { fill: none; stroke: var(--plain); stroke-width: 2; stroke-dasharray: 7 4; }
"""


@dataclass(frozen=True, slots=True)
class _Panel:
    """A plot's place; `seconds` along, `most` up; `least` > 0 makes the axis logarithmic."""

    top: float
    height: float
    seconds: float
    most: float
    least: float = 0.0

    def x(self, at: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(max(at / self.seconds, 0.0), 1.0)

    def y(self, value: float) -> float:
        if self.least:
            value = max(value, self.least)
            part = math.log(value / self.least) / math.log(self.most / self.least)
        else:
            part = value / self.most
        return self.top + self.height * (1 - min(part, 1.0))


def svg(act: FleetAct) -> str:
    """Draw it."""
    seconds = act.sides["surgetank"].ends - act.begins
    parts = [
        *_head(act),
        *_arrivals(act, seconds),
        *_first_tokens(act, seconds),
        *_replicas(act, seconds),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-labelledby="title">\n{body}\n</svg>\n'
    )


def _head(act: FleetAct) -> Iterator[str]:
    ours, plain = act.sides["surgetank"], act.sides["plain"]
    title = "The same burst through Surgetank and through a plain round-robin proxy"
    facts = (
        f"quiet tenant within {OBJECTIVE:g} s: {ours.attainment(QUIET):.1%} and "
        f"{plain.attainment(QUIET):.1%}; replica-seconds, standbys counted: "
        f"{ours.replica_seconds:.0f} and {plain.replica_seconds:.0f}"
    )
    yield f'<title id="title">{escape(title)}: {escape(facts)}</title><style>{_STYLE}</style>'
    yield (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--back)"/>'
        '<rect width="3" height="6" fill="var(--starting)"/></pattern>'
        '<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="6" fill="var(--standby)"/>'
        '<circle cx="3" cy="3" r="1.2" fill="var(--back)"/></pattern></defs>'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="var(--back)"/>'
    yield _text(_LEFT, 26, title, "title")
    yield _text(_LEFT, 44, facts, "soft")


def _frame(act: FleetAct, panel: _Panel, title: str, ticks: Sequence[float]) -> Iterator[str]:
    """Draw the burst's band, grid lines with their values, and the panel's title."""
    burst = next(p for p in act.schedule.phases if p.name == BURST)
    x, end = panel.x(burst.begins), panel.x(burst.ends)
    yield (
        f'<rect class="band" x="{x:.1f}" y="{panel.top}" width="{end - x:.1f}" '
        f'height="{panel.height}"/>'
    )
    for tick in ticks:
        y = panel.y(tick)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        yield _text(_LEFT - 8, y + 4, f"{tick:g}", "soft", anchor="end")
    yield _text(_LEFT, panel.top - 8, title, "head")
    bottom = panel.top + panel.height
    for second in range(0, int(panel.seconds) + 1, 10):
        yield _text(panel.x(second), bottom + 15, f"{second}", "soft", anchor="middle")


def _arrivals(act: FleetAct, seconds: float) -> Iterator[str]:
    due = {
        tenant: Counter(int(s.at) for s in act.schedule.shots if s.tenant == tenant)
        for tenant in (QUIET, NOISY)
    }
    most = max(count for counts in due.values() for count in counts.values())
    panel = _Panel(80, 110, seconds, most * 1.1)
    yield from _frame(act, panel, "Requests per second, the same to both", _ticks(most))
    for tenant, counts in due.items():
        steps = [(float(second), counts[second]) for second in range(math.ceil(seconds))]
        yield f'<path class="{tenant}" d="{_steps(panel, steps, seconds)}"/>'
    x = panel.x(act.schedule.onset)
    yield _text(x - 6, panel.top + 14, "noisy tenant", "soft", anchor="end")
    yield _text(x - 6, panel.y(due[QUIET].most_common(1)[0][1]) - 6, "quiet tenant", anchor="end")


def _first_tokens(act: FleetAct, seconds: float) -> Iterator[str]:
    panel = _Panel(246, 180, seconds, 20.0, _LEAST_TTFT)
    title = "Time to first token of the quiet tenant, seconds; one mark is one request"
    yield from _frame(act, panel, title, (0.02, 0.1, 0.5, 2, 10))
    y = panel.y(OBJECTIVE)
    yield f'<path class="limit" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
    yield _text(_LEFT + 6, y - 5, f"objective {OBJECTIVE:g} s", "soft")
    for name in ("plain", "surgetank"):
        for record in act.sides[name].of(QUIET):
            x = panel.x((record.scheduled or record.arrived) - act.begins)
            y = panel.y(panel.most if record.ttft is None else record.ttft)
            if name == "plain":
                yield f'<path class="plain" d="M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6"/>'
            else:
                yield f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
    key = panel.top - 12
    yield f'<circle class="ours" cx="{_RIGHT - 200}" cy="{key}" r="2.6"/>'
    yield _text(_RIGHT - 192, key + 4, "Surgetank")
    yield f'<path class="plain" d="M{_RIGHT - 117} {key - 3}l6 6m0 -6l-6 6"/>'
    yield _text(_RIGHT - 106, key + 4, "plain (top: never)")


def _replicas(act: FleetAct, seconds: float) -> Iterator[str]:
    side = act.sides["surgetank"]
    rows = [(s.t - act.begins, s) for s in side.samples if s.t <= side.ends]
    most = max(side.replicas()["peak"], act.plain_replicas) + 1
    panel = _Panel(482, 140, seconds, most)
    yield from _frame(act, panel, "Replicas", range(0, most, 2))
    fills = {"starting": "url(#hatch)", "standby": "url(#dots)"}
    below = [0] * len(rows)
    x = _LEFT + 70.0
    for state, count in _STATES:
        above = [low + count(sample) for low, (_, sample) in zip(below, rows, strict=True)]
        outline = _area(panel, [at for at, _ in rows], below, above, seconds)
        fill = fills.get(state, f"var(--{state})")
        yield f'<path d="{outline}" fill="{fill}"/>'
        yield f'<rect x="{x}" y="{panel.top - 17}" width="11" height="11" fill="{fill}"/>'
        yield _text(x + 15, panel.top - 8, state)
        x += 78
        below = above
    y = panel.y(act.plain_replicas)
    yield f'<path class="fixed" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
    yield _text(_RIGHT, y - 6, f"plain proxy: {act.plain_replicas}", anchor="end")
    yield _text(_RIGHT, panel.top + panel.height + 32, "seconds", "soft", anchor="end")


def _steps(panel: _Panel, points: Iterable[tuple[float, float]], until: float) -> str:
    """Draw values that hold until the next."""
    words: list[str] = []
    for at, value in points:
        x, y = panel.x(at), panel.y(value)
        words.append(f"H{x:.1f}V{y:.1f}" if words else f"M{x:.1f} {y:.1f}")
    return "".join([*words, f"H{panel.x(until):.1f}"])


def _area(
    panel: _Panel, times: Sequence[float], low: Sequence[int], high: Sequence[int], until: float
) -> str:
    there = _steps(panel, zip(times, high, strict=True), until)
    ends = [*times[1:], until]
    back = [
        f"L{panel.x(end):.1f} {panel.y(value):.1f}L{panel.x(at):.1f} {panel.y(value):.1f}"
        for at, end, value in reversed(list(zip(times, ends, low, strict=True)))
    ]
    return f"{there}{''.join(back)}Z"


def _ticks(most: float) -> list[float]:
    """Round values up to `most`, three to five of them."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if most / s <= 5)
    return [float(tick) for tick in range(0, int(most) + 1, step)]


def _text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
