"""Tenants and what each sends: from shapes and token counts to one schedule.

Rule: each tenant draws from a generator of its own, seeded by the run's seed and its name: another
tenant beside it changes nothing of what it sends.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from surgetank.errors import InputError
from surgetank.loadtest.phases import Phase
from surgetank.loadtest.schedule import MOST_REQUESTS, NO_ROOT, Schedule, merged
from surgetank.loadtest.sessions import SessionSpec, Turns, unfold
from surgetank.loadtest.shapes import Pulses, Shape, describe
from surgetank.traffic.tokencounts import TokenCounts
from surgetank.traffic.trace import Labels

LONGEST: Final = 1 << 17  # tokens of a session's prompt: 128 k, where no bound is given


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `tokens` of each prompt are one of `count` texts (system prompts, documents)."""

    tokens: int
    count: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.count < 1:
            raise InputError(
                f"prefix {self.tokens}:{self.count}: must be TOKENS[:COUNT], both >= 1"
            )


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What one tenant sends. `said`: its token counts as they were written, for the report."""

    name: str
    shape: Shape
    prompt: TokenCounts
    output: TokenCounts
    prefix: Prefix | None = None
    sessions: SessionSpec | None = None
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def requests(self) -> float:
        """Expected number."""
        calls = 1.0 if self.sessions is None else self.sessions.calls
        return self.shape.mean * self.shape.duration * calls

    def describe(self) -> dict[str, Any]:
        """Give its parameters by name."""
        found = describe(self.shape) | dict(self.said)
        if self.prefix is not None:
            found["prefix"] = f"{self.prefix.tokens}:{self.prefix.count}"
        if self.sessions is not None:
            found |= self.sessions.describe()
        return found


def draw(
    tenants: Sequence[TenantLoad], *, seed: int, longest: int = LONGEST, most: int = MOST_REQUESTS
) -> Schedule:
    """Draw what all tenants send. Raises InputError when that is nothing, or more than `most`.

    Phases are those of the tenant whose pulses rise highest; without pulses all is one calm.
    """
    expected = sum(tenant.requests for tenant in tenants)
    if expected > most:
        raise InputError(
            f"{expected:,.0f} requests: more than {most:,}; lower the rates or the duration"
        )
    parts = [_draw(tenant, seed, longest) for tenant in tenants]
    described = {tenant.name: tenant.describe() for tenant in tenants}
    only = next(iter(described.values())) if len(described) == 1 else {"tenants": described}
    leading = max(range(len(parts)), key=lambda i: _rise(tenants[i]))
    ordered = [parts[leading], *(part for i, part in enumerate(parts) if i != leading)]
    made = merged(ordered, {**only, "seed": seed})
    if not len(made):
        raise InputError("no request falls into the duration: make it longer or the rate higher")
    return made


def _rise(tenant: TenantLoad) -> float:
    """By how many requests/s a tenant's pulses rise; -1 for a shape without any."""
    rises = any(phase.name == "pulse" for phase in tenant.shape.phases())
    if not rises:
        return -1.0
    low = tenant.shape.base if isinstance(tenant.shape, Pulses) else 0.0
    return tenant.shape.top - low


def _draw(tenant: TenantLoad, seed: int, longest: int) -> Schedule:
    rng = np.random.default_rng([seed, zlib.crc32(tenant.name.encode())])
    at = tenant.shape.times(rng)
    if tenant.sessions is None:
        number = len(at)
        lone = np.full(number, NO_ROOT, np.int32)
        prompt, output = tenant.prompt.draw(number, rng), tenant.output.draw(number, rng)
        turns = Turns(at, lone, prompt, output, np.zeros(number, np.int64))
    else:
        turns = unfold(rng, at, tenant.sessions, tenant.prompt, tenant.output, longest)
        inside = turns.at < tenant.shape.duration
        turns = Turns(
            turns.at[inside],
            turns.session[inside],
            turns.prompt[inside],
            turns.output[inside],
            turns.shared[inside],
        )
    return _columns(tenant, turns, rng, tenant.shape.phases())


def _columns(
    tenant: TenantLoad, turns: Turns, rng: Generator, phases: tuple[Phase, ...]
) -> Schedule:
    number = len(turns.at)
    root, shared = turns.session, turns.shared
    if tenant.prefix is not None and tenant.sessions is None:
        root = rng.integers(tenant.prefix.count, size=number).astype(np.int32)
        shared = np.minimum(turns.prompt, tenant.prefix.tokens)
    return Schedule(
        at=turns.at,
        tenant=Labels(np.zeros(number, np.int32), (tenant.name,)),
        prompt_tokens=turns.prompt,
        max_tokens=turns.output,
        root=root,
        shared=shared,
        session=turns.session,
        phases=phases,
        duration=tenant.shape.duration,
        description={},
    )
