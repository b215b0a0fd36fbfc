"""What the Specs say of their own fields: type, unit, default, why.

Rule: the comment beside a field is its documentation. The reference, the JSON schema and the
example file read it from the source, so they cannot disagree with it, and a field without one
fails a test.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final, Literal

_UNITS: Final = (  # the first pattern found in a number's name
    (r"_bytes", "bytes"),
    (r"per_minute", "per minute"),
    (r"(prompt|output)_tokens_per_replica", "tokens per second"),
    (r"^token_gap_tolerance$", ""),
    (r"tokens|block_size|max_context", "tokens"),
    (r"slope_limit", "seconds per second"),
    (r"timeout|interval|grace|_seconds|objective|slack|_wait", "seconds"),
    (
        r"_(window|gate|confirm|horizon|delay|period|memory|after)$|^(start|wake)_time$|^(length|memory|learning)$",
        "seconds",
    ),
    (r"^((min|max)_replicas|replicas|base|(max_)?standbys|max_step)$", "replicas"),
    (r"max_sessions", "sessions"),
    (r"max_queued|max_running|max_concurrent|max_in_flight|slots", "requests"),
    (r"connections", "connections"),
    (r"max_buffered", "records"),
    (r"ageing", "cost per second"),
)
_SIZES: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
REQUIRED: Final = "required"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting. `kind`: its type without None; `unit`: "" where there is none."""

    name: str
    kind: Any
    nullable: bool
    default: Any  # dataclasses.MISSING when the setting is required
    why: str
    # Settings of the Spec it holds that are not set there, and what sets them instead.
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> bool:
        return self.kind in {int, float}

    @property
    def size(self) -> bool:
        """A number of bytes, which may be written as 16MiB."""
        return self.kind is int and "_bytes" in self.name

    @property
    def section(self) -> type | None:
        """The Spec this field holds."""
        kind = self.kind
        return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None

    @property
    def entry(self) -> type | None:
        """The Spec this field holds a list of."""
        return None if self.item is None else self.item.section

    @property
    def item(self) -> Field | None:
        """What this field holds a list of, as if it were a setting; None when it holds no list."""
        if typing.get_origin(self.kind) is not tuple:
            return None
        kind = typing.get_args(self.kind)[0]
        return Field(self.name, kind, False, dataclasses.MISSING, self.why, self.instead)

    @property
    def inner(self) -> tuple[Field, ...]:
        """The settings of the Spec it holds, or holds a list of."""
        spec = self.section or self.entry
        found = () if spec is None else fields_of(spec)
        return tuple(field for field in found if field.name not in self.instead)

    @property
    def unit(self) -> str:
        if not self.number:
            return ""
        return next((unit for pattern, unit in _UNITS if re.search(pattern, self.name)), "")

    @property
    def type_text(self) -> str:
        """The type as a user writes it."""
        if self.choices:
            text = ", ".join(self.choices[:-1]) + f" or {self.choices[-1]}"
        elif self.item is not None:
            text = f"list of {self.item.type_text}"
        else:
            text = _TYPES[self.kind]
        return f"{text}, or null" if self.nullable else text

    @property
    def choices(self) -> tuple[str, ...]:
        if typing.get_origin(self.kind) is Literal:
            return tuple(map(str, typing.get_args(self.kind)))
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(str(member.value) for member in self.kind)
        return ()

    @property
    def default_text(self) -> str:
        """The default in YAML; "required" when there is none."""
        if self.default is dataclasses.MISSING:
            return REQUIRED
        return size_text(self.default) if self.size and self.default else yaml_text(self.default)


_TYPES: Final = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
}


def yaml_text(value: object) -> str:
    """Write a default as YAML does."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if value == "":
        return '""'
    if isinstance(value, tuple):
        return f"[{', '.join(map(yaml_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def size_text(value: int) -> str:
    """Bytes in the largest unit that holds them exactly."""
    return next((f"{value // n}{u}" for u, n in _SIZES.items() if value % n == 0), str(value))


def size_of(text: str) -> int | None:
    """Bytes of a text such as 16MiB or 512KiB; None when it is none."""
    match = re.fullmatch(r"([0-9]{1,12}) ?(KiB|MiB|GiB)", text)
    return None if match is None else int(match[1]) * _SIZES[match[2]]


@cache
def fields_of(spec: type) -> tuple[Field, ...]:
    """Return the fields of a Spec, in its order."""
    hints = typing.get_type_hints(spec)
    comments = comments_of(spec)
    return tuple(
        Field(
            f.name,
            *_without_none(hints[f.name]),
            f.default,
            comments.get(f.name, ""),
            f.metadata.get("instead", {}),
        )
        for f in dataclasses.fields(spec)
    )


def about(spec: type) -> str:
    """Return the first paragraph of a Spec's docstring, on one line."""
    return " ".join((inspect.getdoc(spec) or "").split("\n\n")[0].split())


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if len(kinds) == 1:
            return kinds[0], True
    return hint, False


def comments_of(spec: type) -> dict[str, str]:
    """Collect the comments above and beside each field of a class, or member of an enum."""
    source = textwrap.dedent(inspect.getsource(spec))
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - the source of a class is a class
    comments = dict(_comment_lines(source))
    alone = {n for n in comments if source.splitlines()[n - 1].lstrip().startswith("#")}
    found = {}
    for node in body.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name):
            first, last = target.lineno, node.end_lineno or target.lineno
            while first - 1 in alone:
                first -= 1
            texts = (comments.get(n, "") for n in range(first, last + 1))
            found[target.id] = " ".join(filter(None, texts))
    return found


def _comment_lines(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#").strip()
            yield token.start[0], re.split(r"\s*#?\s*noqa\b", text)[0].strip()
