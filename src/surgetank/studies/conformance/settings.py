"""What a check sets on the gateway it looks at: limits, times and tenants, in no gateway's words.

Rule: None leaves the gateway's own default. How a gateway expresses a setting, or that it cannot,
stands in its target file under the setting's name here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """One tenant with an API key of its own. Limits are requests or tokens; times seconds."""

    name: str
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None  # prompt and output together
    input_tokens_per_minute: float | None = None
    output_tokens_per_minute: float | None = None
    burst: float | None = None  # size of its buckets, in seconds of refill
    max_running: int | None = None  # at once
    max_queued: int | None = None
    tier: Literal["high", "standard", "low"] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What one check needs."""

    cap: int | None = None  # requests at once on each replica
    queue: int | None = None  # requests waiting, at most
    queue_timeout: float | None = None  # seconds one may wait
    request_timeout: float | None = None  # seconds from arrival to the last byte
    max_body: int | None = None  # bytes of a request's body
    drain_timeout: float | None = None  # seconds that running requests have after SIGTERM
    tenants: tuple[TenantLimits, ...] = ()

    def named(self) -> Iterator[tuple[str, float]]:
        """Yield the settings that are set, tenants apart."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "tenants" and value is not None:
                yield each.name, value


def tenant_settings(tenant: TenantLimits) -> Iterator[tuple[str, float | str]]:
    """Yield a tenant's settings that are set, its name apart."""
    for each in fields(tenant):
        value = getattr(tenant, each.name)
        if each.name != "name" and value is not None:
            yield each.name, value


SETTINGS = tuple(f.name for f in fields(Settings) if f.name != "tenants")
TENANT_SETTINGS = tuple(f.name for f in fields(TenantLimits) if f.name != "name")
TIMES = frozenset({"queue_timeout", "request_timeout", "drain_timeout", "burst"})
