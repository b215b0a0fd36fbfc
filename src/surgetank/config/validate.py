"""From a configuration file to a Config: keys, types, bounds, then what must fit together.

Rule: the first thing wrong is one ConfigError that names the setting, its line and what would be
right; a file that passes needs no further check by who uses the Specs.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, replace
from pathlib import Path as FilePath
from typing import Any, Final, NoReturn

from pydantic import TypeAdapter, ValidationError

from surgetank.config.bounds import bound_of
from surgetank.config.fields import Field, fields_of, size_of
from surgetank.config.fit import check_fit
from surgetank.config.source import MAX_BYTES, Path, Source, Value, read, shown
from surgetank.config.suggest import suggest
from surgetank.config.tree import Config
from surgetank.errors import ConfigError

Adjust = Callable[[Config], Config]

_TOP: Final = "the file must be a mapping of settings, such as `listen:` with `port: 8000` below it"


def _as_it_is(config: Config) -> Config:
    return config


def load(path: str | FilePath, *, adjust: Adjust = _as_it_is) -> Config:
    """Read a configuration file. Raises ConfigError, for a file that cannot be read as well.

    `adjust` sets what the command line says instead, before it is checked what must fit together.
    """
    try:
        with FilePath(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    return parse(data, str(path), adjust=adjust)


def parse(
    data: bytes,
    name: str = "surgetank.yaml",
    *,
    adjust: Adjust = _as_it_is,
    numbered: bool = True,
) -> Config:
    """Parse the bytes of a configuration file called `name` in errors. Raises ConfigError.

    `numbered`: errors name its lines; False for what is no file.
    """
    source = replace(read(data, name), numbered=numbered)
    values = {} if source.values is None else source.values
    config: Config = adjust(_spec(values, Config, fields_of(Config), (), source))
    check_fit(config, source)
    return config


def _spec(value: Value, spec: type, fields: Sequence[Field], path: Path, source: Source) -> Any:
    """Make a Spec of a mapping, its sections and lists first, in the file's order.

    A section or list with nothing but comments in it is null in YAML; it means the defaults.
    """
    if not isinstance(value, dict):
        source.refuse(path, f"= {shown(value)}: must be a mapping of settings" if path else _TOP)
    known = {field.name: field for field in fields}
    settings: dict[str, Any] = {}
    for key, item in value.items():
        here = (*path, key)
        field = known.get(key)
        if field is None:
            source.refuse(here, f"is not a setting{suggest(key, fields, path)}")
        if item is not None or not (field.section or field.item):
            settings[key] = _setting(item, field, here, source)
    for field in fields:
        if field.default is MISSING and field.name not in settings:
            source.refuse((*path, field.name), "is missing")
    try:
        return spec(**settings)
    except ConfigError as error:
        _refuse_as_the_spec(str(error), fields, path, source)


def _setting(value: Value, field: Field, path: Path, source: Source) -> Any:
    if field.section is not None:
        return _spec(value, field.section, field.inner, path, source)
    if field.item is not None:
        if not isinstance(value, list):
            source.refuse(path, f"= {shown(value)}: must be a list, each entry after a dash")
        return tuple(_setting(item, field.item, (*path, i), source) for i, item in enumerate(value))
    if field.size and isinstance(value, str):
        size = size_of(value)
        if size is None:
            source.refuse(path, f"= {shown(value)}: must be bytes, or a size such as 16MiB")
        value = size
    return _bounded(_typed(value, field, path, source), field, path, source)


# Types.


def _typed(value: Value, field: Field, path: Path, source: Source) -> Any:
    try:
        # JSON mode: strict about types, yet text may name a member of an enum.
        return _adapter(field.kind, field.nullable).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        must_be = f"a {field.type_text}" if field.number else field.type_text
        quote = field.kind is str and not isinstance(value, dict | list)
        hint = ": quote it" if quote else ""
        source.refuse(path, f"= {shown(value)}: must be {must_be}{hint}")


@functools.cache
def _adapter(kind: Any, nullable: bool) -> TypeAdapter[Any]:  # noqa: FBT001 - a cache's key
    return TypeAdapter(kind | None if nullable else kind)


# Bounds.


def _bounded(value: Any, field: Field, path: Path, source: Source) -> Any:
    problem = bound_of(field.name).problem(value) if field.number and value is not None else None
    if problem is not None:
        unit = f" {field.unit}" if field.unit == "seconds" else ""
        source.refuse(path, f"= {value}: {problem}{unit}")
    return value


# What a Spec itself refuses: `setting = value: what would be right`, as the house writes errors.

_STEP: Final = r"[a-z_]\w*(?:\[\d+\])?"
_OWN: Final = re.compile(rf"(?P<setting>{_STEP}(?:\.{_STEP})*)(?P<rest> = .*|: .*)", re.DOTALL)


def _refuse_as_the_spec(
    message: str, fields: Sequence[Field], path: Path, source: Source
) -> NoReturn:
    """Say it with the setting's whole path and line.

    A Spec does not know where it stands, so it puts its own name, or nothing, before the setting.
    """
    match = _OWN.fullmatch(message)
    steps = _steps(match["setting"]) if match is not None else ()
    while steps and not _leads_somewhere(steps, fields):
        steps = steps[1:]
    rest = match["rest"] if match is not None and steps else f": {message}"
    source.refuse((*path, *steps), rest.strip())


def _steps(setting: str) -> Path:
    """`pools[0].model` as `("pools", 0, "model")`."""
    found = re.findall(r"(\w+)|\[(\d+)\]", setting.replace(".", " "))
    return tuple(name if name and not index else int(index) for name, index in found)


def _leads_somewhere(steps: Path, fields: Sequence[Field]) -> bool:
    for step in steps:
        if isinstance(step, int):
            continue
        field = next((field for field in fields if field.name == step), None)
        if field is None:
            return False
        fields = field.inner
    return True
