"""What a replica prints, in a file of bounded size.

Rule: the replica writes to the file itself, not through a pipe: it outlives the process that
started it, and a pipe without a reader would kill or block it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_TAIL: Final = 4096  # bytes searched for the last words
_WORDS: Final = 300  # characters of them


class OutputLog:
    """One replica's file, appended to over its lives and cut to its newer half when too large."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._began = 0  # where this life began

    def open(self) -> int:
        """Open it for the replica; the caller closes the descriptor. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Appending, so that after a cut the replica goes on at the new end.
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._began = os.fstat(fd).st_size
        return fd

    def trim(self) -> None:
        """Cut it when it has grown too large; a line written in that moment may be lost."""
        with contextlib.suppress(OSError):
            size = self.path.stat().st_size
            if size <= self._max_bytes:
                return
            with self.path.open("r+b") as file:
                file.seek(size - self._max_bytes // 2)
                newer = file.read().partition(b"\n")[2]
                file.truncate(0)
            with self.path.open("ab") as file:
                file.write(newer)
            self._began = 0

    def last_words(self) -> str:
        """Return the last line of this life; "" when it said nothing."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._began, end - _TAIL))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:_WORDS] if lines else ""
