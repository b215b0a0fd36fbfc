"""The tree of Specs that a configuration file fills."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from surgetank.autoscaler.spec import AutoscaleSpec
from surgetank.dashboard.spec import PageSpec
from surgetank.gateway.spec import (
    AdminSpec,
    AuthSpec,
    GatewaySpec,
    JournalSpec,
    LearnedSpec,
    ListenSpec,
    RecordsSpec,
    ReplicaSpec,
    SessionSpec,
    UpstreamSpec,
)
from surgetank.policy.flow import FlowSpec
from surgetank.policy.ladder import LadderSpec
from surgetank.policy.tenant import Tenant, Tier

# Defaults are written once, in the Specs.
_GATEWAY: Final = GatewaySpec()
_FLOW: Final = FlowSpec()
_LADDER: Final = LadderSpec()
_AUTOSCALER: Final = AutoscaleSpec()
_PAGE: Final = PageSpec()


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a configuration file can set; the command line hands each part to its user."""

    listen: ListenSpec = _GATEWAY.listen
    admin: AdminSpec = _GATEWAY.admin
    replicas: tuple[ReplicaSpec, ...] = _GATEWAY.replicas  # the engines behind this gateway
    flow: FlowSpec = _FLOW
    ladder: LadderSpec = _LADDER
    tiers: tuple[Tier, ...] = ()  # classes of service; `standard` exists without being listed
    tenants: tuple[Tenant, ...] = ()  # who sends requests; others have the defaults of a tenant
    autoscaler: AutoscaleSpec = _AUTOSCALER
    page: PageSpec = _PAGE
    auth: AuthSpec = _GATEWAY.auth
    sessions: SessionSpec = _GATEWAY.sessions
    records: RecordsSpec = _GATEWAY.records
    journal: JournalSpec = _GATEWAY.journal
    learned: LearnedSpec = _GATEWAY.learned
    upstream: UpstreamSpec = _GATEWAY.upstream
    drain_timeout: float = _GATEWAY.drain_timeout  # after SIGTERM: running requests may end

    @property
    def gateway(self) -> GatewaySpec:
        return GatewaySpec(**{f.name: getattr(self, f.name) for f in fields(GatewaySpec)})
