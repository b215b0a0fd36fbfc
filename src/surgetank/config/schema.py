"""The JSON schema of the configuration file, for editors and for checks before a roll-out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from surgetank.config.bounds import bound_of
from surgetank.config.fields import Field, about, fields_of
from surgetank.config.tree import Config


def schema() -> dict[str, Any]:
    """Types from the Specs, descriptions from their comments, limits as they are checked.

    What must fit together (unique names, known tiers, shares) is beyond a schema: `config check`.
    """
    tree: dict[str, Any] = TypeAdapter(Config).json_schema()
    definitions = tree.pop("$defs")
    _describe(tree, about(Config), fields_of(Config), definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "surgetank.yaml",
        **tree,
        "$defs": definitions,
    }


def _describe(
    described: dict[str, Any], text: str, fields: Sequence[Field], definitions: dict[str, Any]
) -> None:
    """Describe a Spec and all that it holds."""
    described["additionalProperties"] = False
    described["description"] = text
    described.pop("title", None)
    properties = described["properties"]
    described["properties"] = {f.name: _property(f, properties[f.name]) for f in fields}
    for field in fields:
        spec = field.section or field.entry
        if spec is not None:
            _describe(definitions[spec.__name__], about(spec), field.inner, definitions)


def _property(field: Field, described: dict[str, Any]) -> dict[str, Any]:
    described.pop("title", None)
    if field.section is not None:
        described.pop("default")  # stands at the settings themselves
    kinds = described.pop("anyOf", None) or [described]
    if field.number:
        for kind in kinds:
            if kind.get("type") in {"integer", "number"}:
                kind.update(bound_of(field.name).to_schema())
        if field.size:
            kinds = [*kinds, {"type": "string", "pattern": "^[0-9]{1,12} ?(KiB|MiB|GiB)$"}]
    if len(kinds) > 1:
        default = {"default": described.pop("default")} if "default" in described else {}
        described = {"anyOf": [{k: v for k, v in kind.items() if k != "default"} for kind in kinds]}
        described |= default
    unit = f" ({field.unit})" if field.unit else ""
    return described | ({"description": field.why + unit} if field.why else {})
