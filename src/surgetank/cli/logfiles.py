"""The files a running command appends to: opened, reopened for rotation, closed at its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from pathlib import Path

from surgetank.adapters.records import RecordWriter
from surgetank.adapters.rotation import Rotation
from surgetank.gateway.spec import RecordsSpec

log = logging.getLogger("surgetank")


class LogFiles:
    """Opens files of lines; SIGHUP opens them anew, after they were renamed or deleted.

    Made on the event loop's thread, before anything that a hang-up must not kill; who does more at
    a hang-up takes the signal over, and calls `reopen`.
    """

    def __init__(self, parts: contextlib.AsyncExitStack, *, max_buffered: int) -> None:
        self._parts = parts
        self._max_buffered = max_buffered
        self._writers: list[RecordWriter] = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reopen)

    def open(self, path: str | None, rotation: Rotation | None = None) -> RecordWriter | None:
        """Open a file for as long as the command runs; None without a path. Raises InputError."""
        if path is None:
            return None
        writer = RecordWriter(
            Path(path), max_buffered=self._max_buffered, rotation=rotation or Rotation()
        )
        self._parts.callback(writer.close)
        self._writers.append(writer)
        return writer

    def reopen(self) -> None:
        """Open all files anew."""
        for writer in self._writers:
            writer.reopen()
        names = ", ".join(str(writer.path) for writer in self._writers)
        log.info("SIGHUP: reopening %s", names or "nothing, since no file is written")


def rotation(spec: RecordsSpec) -> Rotation:
    """When a file of records is cut off, and how much is kept."""
    return Rotation(spec.max_file_bytes, spec.rotation_interval, spec.max_total_bytes)
