"""Agent sessions: chains of calls with growing context, and calls that fan out into several.

A session starts (Poisson), makes a geometric number of turns, and thinks an exponential time
between the answer to one and the next. With probability `fan_probability` a turn is `fan_out` calls
within `fan_spread` seconds, and the session goes on when the last of them is answered. Each turn's
prompt is the one before it, the answers to it, and something new; what was there before is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from surgetank.traffic.arrivals import poisson
from surgetank.traffic.lengths import LengthSpec, draw_lengths
from surgetank.traffic.trace import Batch, Labels, Source, Trace

FIRST_PROMPT: Final = LengthSpec(median=2000.0, sigma=0.5)
NEW_PROMPT: Final = LengthSpec(median=300.0, sigma=1.0)
OUTPUT: Final = LengthSpec(median=200.0, sigma=0.8)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What a session does."""

    turns: float = 8.0  # mean number of turns, geometric, at least 1
    think: float = 10.0  # mean seconds between an answer and the next turn (tools, reading)
    fan_probability: float = 0.1  # of a turn
    fan_out: int = 5  # calls of a turn that fans out
    fan_spread: float = 0.2  # s within which they start
    seconds_per_output_token: float = 0.02  # how long an answer takes
    first_prompt: LengthSpec = FIRST_PROMPT
    new_prompt: LengthSpec = NEW_PROMPT  # per turn: tool results, what the user adds
    output: LengthSpec = OUTPUT
    longest_context: int = 131_072  # tokens: a session ends before it would pass them

    @property
    def calls(self) -> float:
        """Mean calls of a session, context bound aside."""
        return self.turns * (1 + self.fan_probability * (self.fan_out - 1))


def agent_sessions(
    rng: Generator, spec: AgentSpec, sessions_per_second: float, duration: float
) -> Trace:
    """Sessions that start within `duration` seconds, each to its end (calls may come later)."""
    if spec.turns < 1 or spec.fan_out < 1:
        raise ValueError(f"turns = {spec.turns}, fan_out = {spec.fan_out}: must be >= 1")
    starts = poisson(rng, sessions_per_second, duration)
    rows: list[tuple[float, int, int, int, float, int]] = []
    for number, start in enumerate(starts.tolist()):
        rows.extend((*call, number) for call in _session(rng, spec, start))
    table = np.array(rows, float).reshape(-1, 6)
    names = tuple(f"session-{i}" for i in range(len(starts)))
    batch = Batch(
        np.ascontiguousarray(table[:, 0]),
        prompt_tokens=table[:, 1].astype(np.int64),
        output_tokens=table[:, 2].astype(np.int64),
        cached_tokens=table[:, 3].astype(np.int64),
        duration=np.ascontiguousarray(table[:, 4]),
        session=Labels(table[:, 5].astype(np.int32), names),
    )
    source = Source(path="generated", format="generated", rows=len(batch))
    return Trace.of([batch], source)


def _session(
    rng: Generator, spec: AgentSpec, start: float
) -> list[tuple[float, int, int, int, float]]:
    """Calls of one session: arrival, prompt, output and cached tokens, duration."""
    turns = int(rng.geometric(1.0 / spec.turns))
    context = int(draw_lengths(rng, spec.first_prompt, 1)[0])
    cached = 0
    now = start
    calls: list[tuple[float, int, int, int, float]] = []
    for _ in range(turns):
        if context > spec.longest_context:
            break
        wide = spec.fan_out if rng.random() < spec.fan_probability else 1
        outputs = draw_lengths(rng, spec.output, wide)
        offsets = np.sort(rng.uniform(0, spec.fan_spread, wide)) if wide > 1 else np.zeros(1)
        durations = outputs * spec.seconds_per_output_token
        calls.extend(
            (now + offset, context, output, cached, lasts)
            for offset, output, lasts in zip(
                offsets.tolist(), outputs.tolist(), durations.tolist(), strict=True
            )
        )
        now += float((offsets + durations).max()) + rng.exponential(spec.think)
        cached = context
        context += int(outputs.sum() + draw_lengths(rng, spec.new_prompt, 1)[0])
    return calls
