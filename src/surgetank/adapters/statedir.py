"""A directory for what has to outlive the process, for one process at a time.

Rule: a file in it is replaced whole or not at all, and is its owner's alone (0600). One that cannot
be read is put aside with one line in the log: it never keeps a server from starting.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any, Final

from surgetank.errors import ConfigError

log = logging.getLogger("surgetank.state")

_LOCK: Final = "lock"
_ID: Final = "id"


class StateDir:
    """The directory, locked. `id`: its own name, the same over restarts, for marking processes."""

    def __init__(self, path: str | Path) -> None:
        """Make it if need be and lock it. Raises ConfigError when another process has it."""
        self.path = Path(path).absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be used for state: {error.strerror}") from error
        try:
            self._lock()
            self.id = self._identity()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it; the lock also ends with the process."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, name: str) -> dict[str, Any]:
        """Return a file's JSON object; empty when there is none, or when it was put aside."""
        try:
            value = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self.set_aside(name, str(error))
            return {}
        if not isinstance(value, dict):
            self.set_aside(name, f"expected a JSON object, found {type(value).__name__}")
            return {}
        return value

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Replace a file. Raises OSError when the disk does not take it.

        Not synced: it outlives a killed process, and a machine that loses its power loses the
        processes that the file is about.
        """
        fd, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)  # 0600
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(value, file, separators=(",", ":"))
            Path(temporary).replace(self.path / name)
        except BaseException:
            Path(temporary).unlink()
            raise

    def set_aside(self, name: str, why: str) -> None:
        """Rename a file that is of no use, and say so."""
        aside = self.path / f"{name}.unreadable"
        try:
            (self.path / name).replace(aside)
        except OSError as error:
            log.warning("%s is not used: %s; nor renamed: %s", self.path / name, why, error)
        else:
            log.warning("%s is not used: %s; kept as %s", self.path / name, why, aside.name)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            raise ConfigError(
                f"{self.path}: is in use by another surgetank (process {holder or 'unknown'}): "
                "stop that one, or give this one a state_dir of its own"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _identity(self) -> str:
        kept = self.read(_ID).get("id")
        if isinstance(kept, str) and kept:
            return kept
        made = secrets.token_hex(16)
        self.write(_ID, {"id": made})
        return made
