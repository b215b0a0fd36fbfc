"""What both sides of the second act are sent: a pulse of two tenants, or a log's own arrivals.

Rule: pure. The same seed gives the same requests to the byte, and both sides get the same list.

Two tenants: `quiet` sends at one rate throughout, `noisy` lies low, bursts, and lies low again.
Arrivals are Poisson, so that base and burst are no metronomes. A replayed log stands in for the
noisy tenant; the quiet one stays.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from surgetank.errors import InputError
from surgetank.loadtest.sender import Shot

MODEL: Final = "fleet"
QUIET: Final = "quiet"
NOISY: Final = "noisy"
BASE: Final = "base"
BURST: Final = "burst"
RECOVERY: Final = "recovery"

_QUIET_PATIENCE: Final = 10.0  # seconds: a chat's user is gone by then; an answer takes 2
_NOISY_TIMEOUT: Final = 60.0  # seconds: a batch client's usual bound
_WORD: Final = "surge tank "  # an engine counts a prompt by its length
_BYTES_PER_TOKEN: Final = 4
_TOKENS_PER_MESSAGE: Final = 4


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: [begins, ends), seconds after the schedule's start."""

    name: str
    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class Pulse:
    """The burst's shape. Seconds and requests/s."""

    base: float = 20.0
    burst: float = 25.0
    recovery: float = 30.0
    quiet_rate: float = 2.0
    noisy_rate: float = 0.5
    noisy_peak: float = 36.0

    @property
    def length(self) -> float:
        return self.base + self.burst + self.recovery

    def phases(self) -> tuple[Phase, ...]:
        """Base, burst and recovery, one after the other."""
        lengths = {BASE: self.base, BURST: self.burst, RECOVERY: self.recovery}
        ends = accumulate(lengths.values())
        return tuple(
            Phase(name, end - length, end)
            for (name, length), end in zip(lengths.items(), ends, strict=True)
        )

    def rates(self) -> tuple[float, ...]:
        """The noisy tenant's rate in each phase."""
        return self.noisy_rate, self.noisy_peak, self.noisy_rate


@dataclass(frozen=True, slots=True)
class Logged:
    """A request of a log. `at`: seconds after the log's first."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """All requests, in order of time, and the phases they fall in."""

    shots: tuple[Shot, ...]
    phases: tuple[Phase, ...]

    @property
    def length(self) -> float:
        return self.phases[-1].ends

    @property
    def onset(self) -> float:
        """When the burst begins, seconds after the start."""
        return next(phase.begins for phase in self.phases if phase.name == BURST)

    def phase_of(self, at: float) -> str:
        """Name of the phase a moment lies in; the last one's for all after it."""
        return next((p.name for p in self.phases if at < p.ends), self.phases[-1].name)


def pulse(spec: Pulse, seed: int) -> Schedule:
    """Draw a pulse."""
    draw = random.Random(seed)
    phases = spec.phases()
    shots = list(_quiet(spec, draw))
    for phase, rate in zip(phases, spec.rates(), strict=True):
        for at in _poisson(rate, phase, draw):
            prompt, output = draw.randint(100, 300), draw.randint(30, 60)
            shots.append(_shot(at, NOISY, len(shots), prompt, output))
    return Schedule(tuple(sorted(shots, key=lambda shot: shot.at)), phases)


def replay(rows: Sequence[Logged], spec: Pulse, seed: int, *, most_tokens: int) -> Schedule:
    """Take the log's densest stretch of a burst's length, with what came before and after it.

    `most_tokens`: a longer context is cut to it, since no replica could hold it. Raises InputError
    when the log is shorter than a run, since there would be nothing before the burst.
    """
    if not rows or rows[-1].at < spec.length:
        raise InputError(f"the log spans {rows[-1].at if rows else 0:.0f} s: needs {spec.length:g}")
    start = _densest(rows, spec) - spec.base
    draw = random.Random(seed)
    shots = list(_quiet(spec, draw))
    for row in rows:
        at = row.at - start
        if 0 <= at < spec.length:
            output = max(2, min(row.output_tokens, most_tokens // 2))
            prompt = max(_TOKENS_PER_MESSAGE + 1, min(row.prompt_tokens, most_tokens - output))
            shots.append(_shot(at, NOISY, len(shots), prompt, output))
    return Schedule(tuple(sorted(shots, key=lambda shot: shot.at)), spec.phases())


def _densest(rows: Sequence[Logged], spec: Pulse) -> float:
    """Where the stretch with the most tokens begins that leaves room before and after."""
    best, best_work, first, work = spec.base, -1, 0, 0
    for row in rows:
        work += row.prompt_tokens + row.output_tokens
        while rows[first].at <= row.at - spec.burst:
            work -= rows[first].prompt_tokens + rows[first].output_tokens
            first += 1
        begins = rows[first].at
        fits = begins >= spec.base and begins + spec.burst + spec.recovery <= rows[-1].at
        if fits and work > best_work:
            best, best_work = begins, work
    return best


def _quiet(spec: Pulse, draw: random.Random) -> Iterator[Shot]:
    whole = Phase("", 0.0, spec.length)
    for number, at in enumerate(_poisson(spec.quiet_rate, whole, draw)):
        yield _shot(at, QUIET, number, draw.randint(60, 120), draw.randint(20, 40))


def _poisson(rate: float, phase: Phase, draw: random.Random) -> Iterable[float]:
    at = phase.begins + (draw.expovariate(rate) if rate > 0 else phase.ends)
    while at < phase.ends:
        yield at
        at += draw.expovariate(rate)


def _shot(at: float, tenant: str, number: int, prompt: int, output: int) -> Shot:
    quiet = tenant == QUIET
    return Shot(
        at,
        body(prompt, output),
        tenant=tenant,
        id=f"{tenant}-{number:04d}",
        model=MODEL,
        max_tokens=output,
        timeout=_NOISY_TIMEOUT,
        abandon_after=_QUIET_PATIENCE if quiet else None,
    )


def body(prompt: int, output: int) -> bytes:
    """Make a request of exactly so many prompt and output tokens."""
    size = max(1, prompt - _TOKENS_PER_MESSAGE) * _BYTES_PER_TOKEN
    text = (_WORD * (size // len(_WORD) + 1))[:size]
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": output,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(asked, separators=(",", ":")).encode()
