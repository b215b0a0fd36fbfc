"""Reports on disk: the whole file or none of it.

Rule: what stood there before stays until the new file is complete.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from surgetank.errors import InputError


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step (UTF-8, mode by the umask). Raises InputError in one line."""
    folder = path.parent
    try:
        if not folder.is_dir():
            raise InputError(f"{path}: the folder {folder} does not exist: make it first")
        if path.is_dir():
            raise InputError(f"{path}: is a folder: name a file")
        if path.exists() and not path.is_file():  # a pipe or a terminal has nothing to keep whole
            path.write_text(text, encoding="utf-8", errors="replace")
            return
        _replace(path.resolve(), text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:60]}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask
            os.fchmod(file.fileno(), mode)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
