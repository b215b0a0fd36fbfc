"""The one record of a request that was sent, and the file of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from surgetank.adapters.wholefile import whole_file
from surgetank.loadtest.connection import Exchange
from surgetank.loadtest.shot import Shot
from surgetank.policy.gaps import flattened
from surgetank.policy.record import RequestRecord


def record_of(
    shot: Shot,
    exchange: Exchange,
    *,
    index: int,
    due: float,
    sent: float | None,
    retries: int,
    wall: float,
) -> RequestRecord:
    """Make it; `wall`, one offset for the whole run, turns monotonic times into Unix seconds.

    `sent` is the first attempt's, everything else the last one's.
    """

    def unix(moment: float | None) -> float | None:
        return None if moment is None else moment + wall

    usage = exchange.usage
    return RequestRecord(
        id=shot.id or f"{index:06d}",
        tenant=shot.tenant,
        model=shot.model,
        route=shot.route,
        session=shot.session,
        stream=shot.stream,
        arrived=due + wall,
        scheduled=due + wall,
        sent=unix(sent),
        first_byte=unix(exchange.first_byte),
        first_token=unix(exchange.first_token),
        ended=unix(exchange.ended),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        output_tokens=exchange.tokens,
        max_tokens=shot.max_tokens,
        ttft_objective=shot.ttft_objective,
        outcome="" if exchange.outcome is None else exchange.outcome.value,
        reason=exchange.reason,
        status=exchange.status,
        attempts=1 + retries,
        client_retry=retries,
        token_gaps=flattened(exchange.gaps),
    )


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write JSON lines, readable by their owner alone; an older file is replaced."""
    with whole_file(path) as file:
        file.writelines(f"{record.to_line()}\n".encode() for record in records)
