"""Rows of the second act's records, samples and decisions, written by hand."""

from __future__ import annotations

from typing import Any

from surgetank.loadtest.sender import Lag
from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.policy.request import Outcome
from surgetank.studies.fleet_demo.act import FleetAct, Side
from surgetank.studies.fleet_demo.measure import Promotion
from surgetank.studies.fleet_demo.pulse import MODEL, NOISY, QUIET, Pulse, pulse

AT = 1000.0  # Unix seconds of the schedule's start
SHORT = Pulse(base=2.0, burst=3.0, recovery=2.0, quiet_rate=2.0, noisy_rate=0.5, noisy_peak=8.0)


def record(
    tenant: str,
    due: float,
    ttft: float | None,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    tokens: int = 10,
) -> RequestRecord:
    """Make a client's record of a request due `due` seconds after the start."""
    return RequestRecord(
        f"{tenant}-{due}",
        tenant=tenant,
        outcome=outcome.value,
        scheduled=AT + due,
        first_token=None if ttft is None else AT + due + ttft,
        ended=AT + due + 5.0,
        output_tokens=tokens,
    )


def sample(second: float, serving: int, standby: int = 0, **others: int) -> FleetSample:
    return FleetSample(AT + second, MODEL, serving=serving, standby=standby, **others)  # type: ignore[arg-type]  # counts by name


def served(
    replica: str, dispatched: float, first: float | None, ended: float, outcome: str = "completed"
) -> RequestRecord:
    """Make a gateway's record."""
    return RequestRecord(
        f"{replica}-{dispatched}",
        replica=replica,
        dispatched=AT + dispatched,
        first_token=None if first is None else AT + first,
        ended=AT + ended,
        outcome=outcome,
    )


def tick(second: float, *effects: tuple[str, str]) -> dict[str, Any]:
    """Make a decision of a plan."""
    return {"plan": {}} | happened(second, *effects)


def happened(second: float, *effects: tuple[str, str]) -> dict[str, Any]:
    """Make a decision of an event."""
    return {"t": AT + second, "effects": [{"do": do, "replica": name} for do, name in effects]}


OURS = [
    record(QUIET, 0.5, 0.1),
    record(QUIET, 3.0, 1.9),
    record(NOISY, 3.1, 4.0, tokens=30),
    record(NOISY, 3.2, None, Outcome.QUEUE_TIMEOUT, tokens=0),
]
THEIRS = [
    record(QUIET, 0.5, 0.1),
    record(QUIET, 3.0, 3.0, Outcome.ABANDONED, tokens=4),
    record(NOISY, 3.1, 3.5, tokens=30),
    record(NOISY, 3.2, 3.6, tokens=30),
]
SAMPLES = [sample(-1, 1, 2), sample(1, 1, 2), sample(3, 3, 0, starting=1), sample(6, 1, 2)]


def act(*, plain: int = 4, lag: float = 0.002, swapped: bool = False) -> FleetAct:
    """Make an act of four requests a side, ten seconds long."""
    records = (THEIRS, OURS) if swapped else (OURS, THEIRS)
    late = Lag(0.001, lag, lag)
    fixed = [sample(0, plain)]
    return FleetAct(
        schedule=pulse(SHORT, 1),
        seed=1,
        sides={
            "surgetank": Side(records[0], late, SAMPLES, AT, AT + 10.0),
            "plain": Side(records[1], late, fixed, AT, AT + 10.0),
        },
        plain_replicas=plain,
        pilot=31.0,
        promoted=[Promotion("fleet-both-2", AT + 3.0, AT + 3.25)],
        refilled=AT + 6.0,
        cut=0,
    )
