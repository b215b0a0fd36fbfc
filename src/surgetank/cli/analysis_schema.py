"""The JSON schema of `analyze --json`, made from the figures' own types and comments.

Rule: what a field means is said once, beside the field; the schema repeats it.
"""

from __future__ import annotations

from typing import Any, Final

from surgetank.cli.figure_schema import DIALECT, object_of, properties_of
from surgetank.config import about
from surgetank.traffic.analysis import Analysis, Dispersion
from surgetank.traffic.trace import Source

_BANDS: Final = {  # fields of Dispersion that stand under idc_band, by their name there
    "requests_band": "requests",
    "prompt_tokens_band": "prompt_tokens",
    "prompt_tokens_reference": "prompt_tokens_reference",
    "windows": "windows",
}


def schema() -> dict[str, Any]:
    """Give the schema (JSON Schema 2020-12). Keys may be added to the output, none goes away."""
    whole = properties_of(Analysis)
    resolution = whole.pop("resolution_s")
    for name in ("series", "source", "idc"):
        whole.pop(name)
    idc = properties_of(Dispersion)
    band = {new: idc.pop(old) for old, new in _BANDS.items()}
    properties = {
        "source": object_of(properties_of(Source) | {"resolution_s": resolution}, about(Source)),
        **whole,
        "idc": object_of(idc, about(Dispersion)),
        "idc_band": object_of(band, "What a Poisson stream's index of dispersion would be."),
    }
    return {
        "$schema": DIALECT,
        "title": "surgetank analyze --json",
        **object_of(properties, about(Analysis)),
    }
