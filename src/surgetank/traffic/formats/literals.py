"""Python's own way of writing dicts, lists, strings and numbers, as some servers log them.

Rule: a strict reader of literals; nothing is ever evaluated, and depth and size are bounded.
"""

from __future__ import annotations

import re
from typing import Any, Final

DEEPEST: Final = 64
_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?(?![\w.])")
_STRING: Final = re.compile(r"[bu]?(?:'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\")", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_NAMED: Final = {"n": "\n", "t": "\t", "r": "\r", "\n": "", "0": "\0"}
_WORDS: Final[dict[str, Any]] = {
    "None": None,
    "True": True,
    "False": False,
    "null": None,
    "true": True,
    "false": False,
    "nan": float("nan"),
    "NaN": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}
_WORD: Final = re.compile(r"-?[A-Za-z]+\b")


def parse(text: str) -> Any:
    """Read one literal that is the whole of `text`. Raises ValueError."""
    value, at = scan(text, 0)
    if _SPACE.match(text, at).end() != len(text):  # type: ignore[union-attr] # it matches everywhere
        raise ValueError("more than one literal")
    return value


def scan(text: str, at: int) -> tuple[Any, int]:
    """Read the literal that begins at `at`, and where it ends. Raises ValueError."""
    return _value(text, at, 0)


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = _skip(text, at)
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    mark = text[at : at + 1]
    if mark == "{":
        return _braces(text, at + 1, depth)
    if mark in {"[", "("} and mark:
        items, end = _items(text, at + 1, "]" if mark == "[" else ")", depth)
        return items, end
    if found := _STRING.match(text, at):
        body = found[1] if found[1] is not None else found[2]
        return (_ESCAPE.sub(_unescaped, body) if "\\" in body else body), found.end()
    if found := _NUMBER.match(text, at):
        number = found[0]
        return (int(number) if number.lstrip("+-").isdigit() else float(number)), found.end()
    if (found := _WORD.match(text, at)) and found[0] in _WORDS:
        return _WORDS[found[0]], found.end()
    raise ValueError("no literal")


def _braces(text: str, at: int, depth: int) -> tuple[Any, int]:
    made: dict[Any, Any] = {}
    at = _skip(text, at)
    while not text.startswith("}", at):
        key, at = _value(text, at, depth + 1)
        if isinstance(key, (dict, list)):
            raise ValueError("a key must be a name or a number")
        at = _skip(text, at)
        if not text.startswith(":", at):
            raise ValueError("no colon after a key")
        made[key], at = _value(text, at + 1, depth + 1)
        at = _comma(text, at, "}")
    return made, at + 1


def _items(text: str, at: int, close: str, depth: int) -> tuple[list[Any], int]:
    made = []
    at = _skip(text, at)
    while not text.startswith(close, at):
        value, at = _value(text, at, depth + 1)
        made.append(value)
        at = _comma(text, at, close)
    return made, at + 1


def _comma(text: str, at: int, close: str) -> int:
    at = _skip(text, at)
    if text.startswith(",", at):
        return _skip(text, at + 1)
    if not text.startswith(close, at):
        raise ValueError(f"no {close} at the end")
    return at


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr] # it matches everywhere


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else "�"
    return _NAMED.get(code, code)
