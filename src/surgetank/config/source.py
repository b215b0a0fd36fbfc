"""A YAML file as plain values, each with the line it stands on.

Rule: whatever the bytes are, the answer is a tree or one ConfigError with a line. Only mappings,
lists, text, numbers, true, false and null exist: no tags, no merge keys, no second document, and
`yes`, `on` or `12:30` are text (YAML 1.2's core schema), so a tenant may be called `no`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

import yaml

from surgetank.errors import ConfigError

MAX_BYTES: Final = 1 << 20
_MAX_DEPTH: Final = 16  # the Specs' own paths have seven steps at most
_MAX_NODES: Final = 50_000  # aliases expanded: ten lines of them can stand for a billion nodes

Path = tuple[str | int, ...]
Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

_INT: Final = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# libyaml's parser where PyYAML was built with it (ten times as fast), else the Python one.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Source:
    """`lines[path]` is the line (from 1) of a value; the line of a key where it has one.

    `numbered`: it is a file with lines to point at, not what a command was given.
    """

    name: str
    values: Value
    lines: dict[Path, int]
    numbered: bool = True

    def line(self, path: Path) -> int:
        """Return the line of a setting, or of the nearest thing around it in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def refuse(self, path: Path, problem: str) -> NoReturn:
        """Raise the one-line error of the house: setting, problem, file and line."""
        where = dotted(path)
        line = f" line {self.line(path)}" if self.numbered else ""
        space = " " if where and not problem.startswith(":") else ""
        raise ConfigError(f"{where}{space}{problem} ({self.name}{line})")


def dotted(path: Path) -> str:
    """`("tenants", 0, "name")` as `tenants[0].name`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if step.isprintable() and len(step) <= 60 else shown(step)
            text += f".{name}" if text else name
    return text


def shown(value: object) -> str:
    """Write a value as an error quotes it: short, on one line, in YAML's words."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read(data: bytes, name: str) -> Source:
    """Parse the bytes of a file called `name` in errors. Raises ConfigError."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: is larger than 1 MiB, so it is no configuration file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name} line {line}: is not UTF-8 text") from None
    try:
        return _Builder(name).build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        line = 1 if mark is None else mark.line + 1
        raise ConfigError(f"{name} line {line}: is not YAML: {_one_line(problem)}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets some ValueErrors out, such as for an escape beyond Unicode.
        raise ConfigError(f"{name}: is not YAML: {_one_line(str(error))}") from None


@dataclass(slots=True)
class _Node:
    """A node of the file before aliases are expanded."""

    line: int
    value: Value = None  # of a scalar
    items: list[_Node] | None = None
    pairs: dict[str, tuple[_Node, _Node]] | None = None


@dataclass(slots=True)
class _Builder:
    """Events to nodes without recursion, then nodes to values with their lines."""

    name: str
    anchors: dict[str, _Node] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    nodes: int = 0

    def build(self, text: str) -> Source:
        root = self._parse(text)
        values = None if root is None else self._expand(root, ())
        return Source(self.name, values, self.lines)

    def _parse(self, text: str) -> _Node | None:
        roots: list[_Node] = []
        open_nodes: list[_Node] = []
        keys: list[_Node | None] = []  # of each open node: the key that waits for its value
        for event in yaml.parse(text, Loader=_LOADER):
            line = 1 if event.start_mark is None else event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent) and roots:
                self._fail(line, "a second document: keep one")
            if isinstance(event, yaml.CollectionEndEvent):
                open_nodes.pop()
                keys.pop()
                continue
            if not isinstance(event, yaml.NodeEvent):
                continue
            node = self._node(event, line)
            if not open_nodes:
                roots.append(node)
            elif (items := open_nodes[-1].items) is not None:
                items.append(node)
            elif (key := keys[-1]) is None:
                keys[-1] = node
            else:
                self._pair(open_nodes[-1], key, node)
                keys[-1] = None
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append(node)
                keys.append(None)
                if len(open_nodes) > _MAX_DEPTH:
                    self._fail(line, f"is nested more than {_MAX_DEPTH} deep")
        return roots[0] if roots else None

    def _node(self, event: yaml.NodeEvent, line: int) -> _Node:
        self._count(line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                self._fail(line, f"*{event.anchor} refers to no anchor above it")
            return self.anchors[event.anchor]
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)  # noqa: S101 - the rest
        node = _Node(line)
        if event.tag is not None and event.tag != "!":
            self._fail(line, f"tag {shown(event.tag)}: no tags are supported; leave it out")
        if isinstance(event, yaml.SequenceStartEvent):
            node.items = []
        elif isinstance(event, yaml.MappingStartEvent):
            node.pairs = {}
        elif isinstance(event, yaml.ScalarEvent):
            node.value = self._scalar(event, line)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Value:
        text = event.value
        if event.style or event.tag == "!":
            return _text(text)
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                self._fail(line, f"{shown(text)}: the number is too large")
            return number
        return _text(text)

    def _pair(self, mapping: _Node, key: _Node, value: _Node) -> None:
        assert mapping.pairs is not None  # noqa: S101 - only mappings have keys
        if key.items is not None or key.pairs is not None or not isinstance(key.value, str):
            self._fail(key.line, "a key must be text: quote it")
        if key.value == "<<":
            self._fail(key.line, "merge keys (<<) are not supported: write the settings out")
        if key.value in mapping.pairs:
            first = mapping.pairs[key.value][0].line
            self._fail(key.line, f"{shown(key.value)} stands here twice, first on line {first}")
        mapping.pairs[key.value] = (key, value)

    def _expand(self, node: _Node, path: Path) -> Value:
        self._count(node.line)
        if len(path) > _MAX_DEPTH:
            self._fail(node.line, f"is nested more than {_MAX_DEPTH} deep")
        self.lines.setdefault(path, node.line)
        if node.items is not None:
            return [self._expand(item, (*path, i)) for i, item in enumerate(node.items)]
        if node.pairs is None:
            return node.value
        values: dict[str, Value] = {}
        for step, (key, value) in node.pairs.items():
            self.lines[*path, step] = key.line
            values[step] = self._expand(value, (*path, step))
        return values

    def _count(self, line: int) -> None:
        self.nodes += 1
        if self.nodes > 2 * _MAX_NODES:  # each is counted when parsed and when expanded
            self._fail(line, f"more than {_MAX_NODES} values, aliases counted each time")

    def _fail(self, line: int, problem: str) -> NoReturn:
        raise ConfigError(f"{self.name} line {line}: {problem}")


def _text(text: str) -> str:
    """Text without lone surrogates, which no output can hold."""
    return text.encode("utf-8", "replace").decode()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
