"""Files that a command is to write: a mistake is told before the long work, not after it.

Rule: what a command reads is never what it writes. A log's name typed once too often costs a line
of explanation, and not the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surgetank.errors import InputError


def refuse_output(option: str, file: Path, inputs: Sequence[str | Path] = ()) -> None:
    """Raise InputError for a file that cannot be made, or that is one of the inputs.

    Links of either kind to an input are that input. A pipe or a device may be written to always.
    """
    try:
        if not file.parent.is_dir():
            raise InputError(
                f"{option} {file}: the folder {file.parent} does not exist: make it first"
            )
        if file.is_dir():
            raise InputError(f"{option} {file}: is a folder: name a file")
        for other in inputs:
            if _same(file, Path("/dev/stdin" if str(other) == "-" else other)):
                raise InputError(f"{option} {file}: is what is read: name another file")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{option} {file}: cannot be written: {why}") from error


def _same(file: Path, other: Path) -> bool:
    if not file.exists() or not other.exists():
        return file.absolute() == other.absolute()  # neither is there yet, such as a new key
    return file.is_file() and file.samefile(other)
