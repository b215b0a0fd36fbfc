"""`surgetank.simulate`: the command as a function, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from surgetank.errors import InputError
from surgetank.simulation.asked import Asked, scenario, vary
from surgetank.simulation.bulk import hindrance, simulate_fast
from surgetank.simulation.result import Result
from surgetank.simulation.run import simulate as play


def simulate(
    trace: str | Path | None = None,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - named as the command's option
    bulk: bool = False,
    **options: Any,
) -> Result:
    """Play a log, or a `pulse`, through a simulated fleet with one `policy`.

    `options` are the command's, with `_` for `-`: pulse, engine, policy, replicas, ttft, clients,
    seed ... (`surgetank.simulation.asked.Asked`); `set` holds single settings, such as
    `{"flow.max_queued": 50}`. `bulk`: all in machine code, where the policy is passthrough. The
    result has `summary`, `requests` (columns), `samples` and `records()`. Raises InputError.
    """
    known = {field.name for field in fields(Asked)}
    wrong = sorted(options.keys() - known)
    if wrong:
        raise InputError(f"{wrong[0]}: not an option: known are {', '.join(sorted(known))}")
    engine = options.pop("engine", None)
    if engine is not None:
        options["engine"] = (engine,) if isinstance(engine, str) else tuple(engine)
    asked = Asked(trace=None if trace is None else str(trace), **options)
    made = scenario(vary(asked, {key: str(value) for key, value in (set or {}).items()}))
    why = hindrance(made) if bulk else None
    if why is not None:
        raise InputError(f"bulk: {why}")
    return simulate_fast(made) if bulk else play(made)
