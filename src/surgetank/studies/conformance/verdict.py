"""How a check ends, and what is told of it.

Rule: passed, failed or not testable; nothing in between. A failure says what was seen, the check
itself says what is right.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from surgetank.studies.conformance.settings import Settings

if TYPE_CHECKING:
    from surgetank.studies.conformance.world import World


_ANY: Final = Settings()  # the gateway's own defaults


class Status(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TESTABLE = "not testable"


class Failed(Exception):  # noqa: N818 - it is a check's answer, not an error of ours
    """The gateway did something else than what is right; the message says what was seen."""


class NotTestable(Exception):  # noqa: N818 - same
    """This gateway cannot be put to this check; the message says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `given` None: it starts its gateway itself, with `World.start`.

    `without`: settings of `given` that a gateway may lack and still be looked at.
    `seconds`: the time after which it is broken off as failed.
    """

    number: int
    title: str
    source: str  # where it was reported: project#issue
    right: str  # what a gateway must do
    run: Callable[[World], Awaitable[None]] = field(repr=False)
    given: Settings | None = _ANY
    without: frozenset[str] = frozenset()
    replicas: int = 1
    seconds: float = 60.0


def check(
    number: int,
    title: str,
    *,
    source: str,
    right: str,
    given: Settings | None = _ANY,
    without: tuple[str, ...] = (),
    replicas: int = 1,
    seconds: float = 60.0,
) -> Callable[[Callable[[World], Awaitable[None]]], Check]:
    """Make a Check of the function below."""

    def made(run: Callable[[World], Awaitable[None]]) -> Check:
        return Check(
            number, title, source, right, run, given, frozenset(without), replicas, seconds
        )

    return made


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one check. `seen`: why it failed, or is not testable; empty when it passed."""

    check: Check
    status: Status
    seen: str
    evidence: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        check = self.check
        return {
            "number": check.number,
            "title": check.title,
            "source": check.source,
            "right": check.right,
            "status": self.status.value,
            "seen": self.seen,
            "evidence": list(self.evidence),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run."""

    target: str
    version: str  # as the gateway itself says; empty when it does not
    results: tuple[Result, ...]
    seconds: float

    def count(self, status: Status) -> int:
        return sum(result.status is status for result in self.results)

    @property
    def line(self) -> str:
        """`34 passed, 2 failed, 3 not testable`; the last part only where there are any."""
        words = [f"{self.count(Status.PASSED)} passed", f"{self.count(Status.FAILED)} failed"]
        if untestable := self.count(Status.NOT_TESTABLE):
            words.append(f"{untestable} not testable")
        return ", ".join(words)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "target": self.target,
            "target_version": self.version,
            "passed": self.count(Status.PASSED),
            "failed": self.count(Status.FAILED),
            "not_testable": self.count(Status.NOT_TESTABLE),
            "seconds": round(self.seconds, 3),
            "checks": [result.as_json() for result in self.results],
        }
