"""As much of JSON Schema as our schemas use: says where a value does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
_KNOWN = {
    "$schema", "title", "description", "type", "properties", "required", "additionalProperties",
    "items", "prefixItems", "minItems", "maxItems", "anyOf",
}  # fmt: skip


def misfits(value: Any, schema: dict[str, Any], path: str = "$") -> Iterator[str]:
    """Give each place where the value is not what the schema says."""
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "anyOf" in schema:
        if all(any(misfits(value, option, path)) for option in schema["anyOf"]):
            yield f"{path}: fits none of {schema['anyOf']}"
        return
    kind = schema.get("type")
    if kind is not None:
        is_bool = isinstance(value, bool)
        if not isinstance(value, _TYPES[kind]) or (is_bool and kind != "boolean"):
            yield f"{path}: {value!r} is no {kind}"
            return
    if kind == "object":
        yield from _object(value, schema, path)
    elif kind == "array":
        first = schema.get("prefixItems", [])
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{path}: has {len(value)} items"
        for i, item in enumerate(value):
            yield from misfits(
                item, first[i] if i < len(first) else schema["items"], f"{path}[{i}]"
            )


def _object(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            yield f"{path}.{name}: is missing"
    for name, item in value.items():
        if name in properties:
            yield from misfits(item, properties[name], f"{path}.{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{path}.{name}: is not in the schema"
        elif isinstance(schema.get("additionalProperties"), dict):
            yield from misfits(item, schema["additionalProperties"], f"{path}.{name}")
