"""Surgetank keeps an LLM fleet standing when traffic comes in bursts.

For scripts and notebooks: `read_log(path)` reads a log into a Trace; `simulate(path, policy=...)`
plays it through a simulated fleet; `load(profile, request_func)` rehearses a burst for real;
`RetryTransport` makes an httpx client try again without making a second burst.
What they need is loaded at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surgetank.adapters.httpx_retry import RetryTransport
    from surgetank.adapters.logs import read_log
    from surgetank.loadtest.load import load
    from surgetank.loadtest.shot import Shot
    from surgetank.simulation.notebook import simulate

__all__ = ["RetryTransport", "Shot", "__version__", "load", "read_log", "simulate"]

__version__ = "0.1.0"

# By name and not by import: what is below imports this package for its version, and must not seem
# to import what is above it.
_HOMES = {
    "RetryTransport": "surgetank.adapters.httpx_retry",
    "Shot": "surgetank.loadtest.shot",
    "load": "surgetank.loadtest.load",
    "read_log": "surgetank.adapters.logs",
    "simulate": "surgetank.simulation.notebook",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'surgetank' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
