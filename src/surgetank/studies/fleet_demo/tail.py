"""The fleet's samples as they are written: the file is read on, once a second."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from surgetank.policy.record import FleetSample

_KIND: Final = b'"kind":"fleet"'


class SampleTail:
    """New samples of a file of records; a line that is not whole yet is left for the next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.latest: FleetSample | None = None

    def read(self) -> FleetSample | None:
        """Read what is new; return the latest sample, None before the first."""
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].splitlines():
            if _KIND in line:
                self.latest = FleetSample.from_line(line)
        return self.latest
