"""Profiles of the property tests, and how tests are spread over processes.

The default suite draws the same examples every time, so that it says the same of the same code.
`HYPOTHESIS_PROFILE=explore` draws fresh ones, twenty times as many.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest
from hypothesis import settings

# A busy machine is no failure: no deadline for an example.
settings.register_profile("steady", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Sockets, processes and bounds in real seconds: one after the other, beside what only computes.
_REAL_TIME: Final = frozenset(
    ("autoscaler", "bench", "cli", "dashboard", "gateway", "loadtest", "mockengine", "studies")
)


def _unit(test: str) -> str:
    """Name what a test is run together with: its module, or all that runs in real time."""
    module = test.partition("::")[0]
    return "real time" if _REAL_TIME & set(module.split("/")) else module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread units over the processes (xdist's own groups do not reach it in pytest 9.2)."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - in `make test` only

    unit = {"_split_scope": staticmethod(_unit)}
    return type("Units", (LoadScopeScheduling,), unit)(config, log)
