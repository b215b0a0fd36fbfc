"""A file that appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from surgetank.errors import InputError


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file, its owner's alone (0600), that takes the place of `path` when all went well.

    A link leads to the file it names; a pipe, a terminal or a device is written to, and never
    replaced: a file in the place of /dev/null would be one for everybody. Raises InputError when it
    cannot be written there; `path` is then as it was.
    """
    named, path = Path(path), _target(path)
    if path.is_dir():
        raise InputError(f"{named}: is a directory: name a file to write")
    # /dev/stdout is a link, to a pipe or to a file that a shell holds open.
    if named.exists() and (not named.is_file() or named.parent == Path("/dev")):
        with _device(named) as file:
            yield file
        return
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name[:60]}.", dir=path.parent)
    except OSError as error:
        raise _unwritable(named, error) from error
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(fd)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _unwritable(named, error) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _device(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("wb") as file:
            yield file
    except OSError as error:
        raise _unwritable(path, error) from error


def _target(path: str | Path) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise InputError(f"{path}: cannot be written: {error}") from error


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written: {error.strerror or error}")
