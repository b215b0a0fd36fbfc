"""The JSON schema of `simulate --json`."""

from __future__ import annotations

from typing import Any

from surgetank.cli.figure_schema import DIALECT, object_of, properties_of
from surgetank.config import about
from surgetank.simulation.summary import Summary


def schema() -> dict[str, Any]:
    """Give the schema (JSON Schema 2020-12). Keys may be added to the output, none goes away."""
    run = object_of(properties_of(Summary), about(Summary))
    runs = {"type": "array", "items": run, "description": "One for each policy and seed."}
    return {
        "$schema": DIALECT,
        "title": "surgetank simulate --json",
        **object_of({"runs": runs}, "Policies side by side, on the same requests."),
    }
