"""What a gateway has learnt, and what shadow admission would have done: said, logged and kept.

Rule: it looks, and changes nothing; a line is logged only when it says something new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from surgetank.gateway.driver import Driver
from surgetank.gateway.spec import LearnedSpec
from surgetank.policy.shadow import ShadowCounts

log = logging.getLogger("surgetank.gateway")

_MOST_SAID: Final = 6  # tenants and reasons in one line of the log


def learned_rows(driver: Driver) -> list[dict[str, Any]]:
    """Give what is known of each model, with one line of text, JSON-able."""
    return [asdict(lesson) | {"text": lesson.text()} for lesson in driver.flow.lessons()]


def shadow_row(driver: Driver) -> dict[str, Any] | None:
    """Give the counts of shadow admission, JSON-able; None while admission is on for all."""
    if driver.shadow is None:
        return None
    counts = driver.shadow.counts
    return {
        "offered": counts.offered,
        "admitted": counts.admitted,
        "refused": _rows(counts.refused),
        "reordered": _rows(counts.reordered),
        "text": shadow_text(counts),
    }


def _rows(tally: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    rows = sorted(tally.items(), key=lambda row: (-row[1], row[0]))
    return [{"tenant": tenant, "reason": reason, "count": n} for (tenant, reason), n in rows]


def shadow_text(counts: ShadowCounts) -> str:
    """One line."""
    offered, refused = sum(counts.offered.values()), sum(counts.refused.values())
    rows = _rows(counts.refused)
    words = [f"{row['tenant']} {row['reason']} {row['count']:,}" for row in rows[:_MOST_SAID]]
    if len(rows) > _MOST_SAID:
        words.append("...")
    by = f" ({', '.join(words)})" if words else ""
    later = sum(n for (_, how), n in counts.reordered.items() if how == "later")
    return (
        f"had admission been on: of {offered:,} requests {refused:,} refused{by},"
        f" {later:,} overtaken by a later one"
    )


class Telling:
    """Logs and keeps at its times. `save`: takes what is worth keeping; None: it is not kept."""

    def __init__(
        self,
        driver: Driver,
        spec: LearnedSpec,
        *,
        save: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._save = save
        self._told: set[str] = set()
        self._timers: list[asyncio.TimerHandle] = []

    def start(self) -> None:
        """Begin: the first word and the first writing come after their intervals."""
        self._timers = [self._later(self._spec.log_interval, self.tell, 0)]
        if self._save is not None:
            self._timers.append(self._later(self._spec.save_interval, self.keep, 1))

    def stop(self) -> None:
        """Say no more, and keep what there is."""
        for timer in self._timers:
            timer.cancel()
        self.keep()

    def _later(self, seconds: float, do: Callable[[], object], place: int) -> asyncio.TimerHandle:
        def run() -> None:
            self._timers[place] = self._later(seconds, do, place)
            do()

        return asyncio.get_running_loop().call_later(seconds, run)

    def tell(self) -> list[str]:
        """Log what is new since the last time, and return it."""
        lines = {f"learnt: {row['text']}" for row in learned_rows(self._driver)}
        if self._driver.shadow is not None:
            lines.add(f"shadow: {shadow_text(self._driver.shadow.counts)}")
        new = sorted(lines - self._told)
        self._told = lines
        for line in new:
            log.info("%s", line)
        return new

    def keep(self) -> None:
        """Write what was learnt, where it is kept."""
        if self._save is not None:
            self._save(self._driver.flow.learned())
