"""What was meant by a key that is no setting."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import takewhile

from surgetank.config.fields import Field, fields_of
from surgetank.config.source import Path, dotted
from surgetank.config.tree import Config


def suggest(key: str, known: Sequence[Field], path: Path) -> str:
    """Complete the sentence on `key`, which is none of the settings `known` at `path`."""
    # The right name in the wrong section is likelier than a mistyped one.
    places = sorted(_places(key, fields_of(Config), ()), key=lambda place: _distance(place, path))
    if places:
        return f"; did you mean {_from(path, places[0])}?"
    near = difflib.get_close_matches(key, [field.name for field in known], n=1)
    if near:
        return f"; did you mean {near[0]}?"
    where = f"{dotted(path)} has" if path else "there are"
    return f"; {where} {', '.join(field.name for field in known)}"


def _places(key: str, fields: Sequence[Field], above: tuple[Field, ...]) -> Iterator[Path]:
    """Find the settings called `key`, and those that stand for it; "N" for a list's index."""
    for field in fields:
        here = (*above, field)
        if field.name == key:
            yield _path(here)
        if key in field.instead:
            yield (*_path(above), *(("N",) if above and above[-1].item else ()), field.instead[key])
        yield from _places(key, field.inner, here)


def _path(fields: tuple[Field, ...]) -> Path:
    steps: list[str | int] = []
    for i, field in enumerate(fields):
        steps += [field.name, "N"] if field.item and i < len(fields) - 1 else [field.name]
    return tuple(steps)


def _distance(place: Path, path: Path) -> tuple[int, int, int]:
    """The nearer the more of the path is shared, the fewer lists are in between, the shorter."""
    shared = _shared(place, path)
    return -shared, place[shared:].count("N"), len(place)


def _shared(place: Path, path: Path) -> int:
    same = (a == b or (a == "N" and isinstance(b, int)) for a, b in zip(place, path, strict=False))
    return sum(1 for _ in takewhile(bool, same))


def _from(path: Path, place: Path) -> str:
    """Write a place as seen from a path: the entries of lists that are around both are known."""
    if len(place) == 1:
        return f"{place[0]} at the top level"
    shared = _shared(place, path)
    text = dotted((*path[:shared], *place[shared:]))
    return text.replace(".N", "[N]")
