"""Files of lines that are cut off by size and age, the oldest removed beyond a bound in all.

Rule: only files that were cut off are removed, whole, and never the one that is written.
`records.jsonl` is cut off as `records-20261130T184500123Z.jsonl`: `records*.jsonl` is all of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("surgetank.records")

_STAMP: Final = re.compile(r"-\d{8}T\d{9}Z")


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file is cut off, and how much is kept. Bytes and seconds; None: no bound."""

    file_bytes: int | None = None
    file_age: float | None = None
    total_bytes: int | None = None

    def due(self, size: int, more: int, age: float) -> bool:
        """Whether a file of this size is cut off before `more` is written; an empty one is not."""
        if size <= 0:
            return False
        too_large = self.file_bytes is not None and size + more > self.file_bytes
        return too_large or (self.file_age is not None and age >= self.file_age)


def cut_off(path: Path, fd: int) -> None:
    """Rename the file that `fd` has open, if it still has this path. Raises OSError.

    Another process may have cut it off already: then there is nothing to do. Of several that want
    to, one at a time looks and renames, so that none renames, or writes over, another's file.
    """
    ours = os.fstat(fd)
    with _one_at_a_time(path.parent):
        try:
            there = path.stat()
        except FileNotFoundError:
            return
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            return
        at = time.time_ns() // 1_000_000
        while (made := path.with_name(f"{path.stem}-{_stamp(at)}{path.suffix}")).exists():
            at += 1
        path.rename(made)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the folder's own lock; where it has none (some network disks), go on without."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _stamp(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}{rest:03d}Z"


def cut_files(path: Path) -> list[Path]:
    """Return the files that were cut off from `path`, in the order of their names: of time."""
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 - names only, no Path for each
    except OSError:
        return []
    own, kind = path.stem, path.suffix
    found = (
        name
        for name in names
        if name.startswith(own)
        and name.endswith(kind)
        and _STAMP.fullmatch(name[len(own) : len(name) - len(kind)])
    )
    return [path.with_name(name) for name in sorted(found)]


def keep_within(path: Path, total_bytes: int) -> int:
    """Remove the oldest files cut off from `path` until all, `path` included, fit.

    Returns how many were removed; one that cannot be is left, with a word in the log.
    """
    sizes = {file: _size(file) for file in cut_files(path)}
    total = _size(path) + sum(sizes.values())
    removed = 0
    for old, size in sizes.items():
        if total <= total_bytes:
            break
        try:
            old.unlink()
        except OSError as error:
            log.warning("%s: cannot be removed: %s", old, error.strerror)
            continue
        total -= size
        removed += 1
    if removed:
        log.info("%s: the oldest %d files cut off from it were removed", path, removed)
    return removed


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
