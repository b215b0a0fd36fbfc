"""Files of `surgetank simulate`: what a run writes, and the journal that it decides anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from surgetank.cli.outputs import refuse_output
from surgetank.errors import InputError


def check_path(
    option: str, path: Path | None, read: Sequence[str | Path], *, policies: int, seeds: int
) -> None:
    if path is None:
        return
    for word, number in (("{policy}", policies), ("{seed}", seeds)):
        if number > 1 and word not in path.name:
            raise InputError(f"{option} {path}: several runs: put {word} into its name")
    refuse_output(option, path, read)


def filled(path: Path, policy: str, seed: int) -> Path:
    name = path.name.replace("{policy}", policy.replace(":", "-")).replace("{seed}", str(seed))
    return path.with_name(name)


@contextmanager
def journal_lines(path: Path | None, policy: str, seed: int) -> Iterator[Any]:
    """A sink for lines, or None. Raises InputError when the file cannot be written."""
    if path is None:
        yield None
        return
    name = filled(path, policy, seed)
    try:
        with name.open("w", encoding="utf-8") as file:
            yield lambda line: file.write(line + "\n")
    except OSError as error:
        raise InputError(f"{name}: cannot be written: {error.strerror}") from None


def decide_anew(path: Path, *, as_json: bool) -> None:
    """Decide a journal anew; exit 1 when a decision differs."""
    from surgetank.policy.journal import replay  # noqa: PLC0415 - only here

    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                count += 1
                yield line

    try:
        found = replay(lines())
    except OSError as error:
        raise InputError(f"--replay {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--replay {path}: {error}") from None
    if as_json:
        where = None if found is None else {"line": found.line, "was": found.expected}
        print(json.dumps({"lines": count, "same": found is None, "differs": where}))
    elif found is None:
        print(f"{count:,} lines, every decision the same")
    else:
        print(f"line {found.line} differs\n  was: {found.expected}\n  now: {found.got}")
    if found is not None:
        raise typer.Exit(1)
