"""JSON schemas of what commands print, made from the figures' own types and comments.

Rule: what a field means is said once, beside the field; the schema repeats it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Final

from surgetank.config import about, comments_of

_PLAIN: Final = {
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def object_of(properties: dict[str, Any], meaning: str) -> dict[str, Any]:
    """Give an object of exactly these properties."""
    return {
        "type": "object",
        "description": meaning,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def properties_of(of: type) -> dict[str, Any]:
    """Give the schema of each field of a dataclass. Raises TypeError for types unforeseen."""
    hints, comments = typing.get_type_hints(of), comments_of(of)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(of):
        if field.name == "series":
            found[field.name] = {}
            continue
        meaning = comments.get(field.name, "")
        found[field.name] = _type(hints[field.name]) | ({"description": meaning} if meaning else {})
    return found


def _type(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return {"anyOf": [_type(kind) for kind in inner]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(inner[1])}
    if origin is tuple and inner[1:] == (...,):
        return {"type": "array", "items": _type(inner[0])}
    if origin is tuple:
        parts = [_type(kind) for kind in inner]
        n = len(parts)
        return {"type": "array", "prefixItems": parts, "minItems": n, "maxItems": n}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return object_of(properties_of(hint), about(hint))
    raise TypeError(f"{hint}: has no place in the schema")
