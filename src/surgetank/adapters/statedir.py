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
import threading
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
        self._waiting: dict[str, dict[str, Any]] = {}  # to be written, by the thread
        self._writing = False
        self._closed = False
        self._turn = threading.Condition()
        self._writer: threading.Thread | None = None
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
        """Write what was put, and let go of it; the lock also ends with the process."""
        if not self.flush():
            log.warning("%s: the disk is stuck: the last state is not written", self.path)
        with self._turn:
            self._closed = True
            self._turn.notify_all()
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

    def put(self, name: str, value: dict[str, Any]) -> None:
        """Replace a file soon, from a thread: a slow disk holds nobody up, nor does a full one.

        Of values put faster than the disk takes them, the last one is written. `value` is not to be
        changed after.
        """
        with self._turn:
            self._waiting[name] = value
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="state", daemon=True)
                self._writer.start()
            self._turn.notify_all()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was put is written, or could not be; False when it takes longer."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._waiting and not self._writing, timeout)

    def _write_all(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                name, value = self._waiting.popitem()
                self._writing = True
            try:
                self.write(name, value)
            except OSError as error:
                log.warning("%s was not written: %s", self.path / name, error.strerror)
            except Exception:
                log.exception("%s was not written", self.path / name)
            finally:
                with self._turn:
                    self._writing = False
                    self._turn.notify_all()

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
