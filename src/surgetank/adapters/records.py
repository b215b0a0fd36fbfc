"""Request records as JSON lines in a file: written behind the data plane's back, read with care.

Rule: writing never blocks and never raises. What the disk cannot take is dropped and counted, and
the file stays a sequence of whole lines: after a crash or a full disk at most one line is torn; it
is cut away at the next start, or what follows begins on a fresh line.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import operator
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from surgetank.adapters.rotation import Rotation, cut_off, keep_within
from surgetank.errors import InputError
from surgetank.policy.record import ALWAYS_WRITTEN, SCHEMA, FleetSample, RequestRecord, parse

log = logging.getLogger("surgetank.records")

_BATCH_SECONDS: Final = 0.1  # lines wait this long for company: one wake-up and write for many
_BATCH_BYTES: Final = 1 << 18
_LINE_BYTES: Final = 1 << 20  # a longer line is no record
_SAY_AGAIN: Final = 60.0  # seconds between two words about lines that are lost
_BEGINS: Final = b'{"v":'  # a torn line is cut away only when it is one of ours
_NO_FSYNC: Final = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})  # pipes and devices


_FIELDS: Final = fields(RequestRecord)
_values: Final = operator.attrgetter(*(field.name for field in _FIELDS))
_NEVER: Final = float("nan")  # the same object as no value: the field is always written
_ROW: Final = msgspec.defstruct(
    "_ROW",
    [
        ("v", int),
        *((f.name, Any, _NEVER if f.name in ALWAYS_WRITTEN else f.default) for f in _FIELDS),
    ],
    omit_defaults=True,
)
_encode: Final = msgspec.json.Encoder().encode


def record_line(record: RequestRecord) -> str:
    """Write `record.to_line()`, equal as JSON, at a fifth of its cost: for the data plane.

    Values equal to their default are left out when they are the same object, as the gateway's are.
    """
    return row_line(row_of(_values(record)))


def row_of(values: Iterable[Any]) -> RequestRecord:
    """Make what has a record's attributes, of its fields' first values, at a quarter of its cost.

    The rest are at their defaults. It is for reading, and for `row_line`.
    """
    return cast("RequestRecord", _ROW(SCHEMA, *values))


def row_line(row: RequestRecord) -> str:
    """Write the line of a record that `row_of` made."""
    try:
        return _encode(row).decode()
    except UnicodeEncodeError:  # a lone surrogate: the writer replaces it
        return RequestRecord(*_values(row)).to_line()


class RecordWriter:
    """Appends lines to a file from a thread of its own; the caller only fills a bounded buffer.

    `written` and `dropped` count lines, `errors` failed system calls; `last_error` is the last one.
    A directory gets a file of its own for each process, so that several gateways can share it.
    The first line lost to each error is logged, then a word once a minute, and the first line
    written after it. `rotation`: when the file is cut off, and what is kept.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_buffered: int = 65536,
        rotation: Rotation = Rotation(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open `path` for appending, made with mode 0600. Raises InputError when it cannot."""
        self.rotation = rotation
        self._clock = clock
        self._say_again = 0.0  # when lost lines are next worth a word
        self._began = clock()  # when the file was opened or made
        self._rotate_after = 0.0  # after one that failed
        self.path = _file_in(Path(path))
        self.written = 0
        self.errors = 0
        self.last_error = ""
        self.max_buffered = max_buffered
        self._refused = 0  # by the caller's thread: two counters, so that neither needs a lock
        self._lost = 0  # by the writer's
        self._lines: deque[str] = deque()
        self._overflowing = False
        self._trouble: int | None = None  # errno of the error that was logged last
        self._closing = False
        self._woken = False
        self._wake = threading.Event()
        self._reopen = threading.Event()
        self._stop = threading.Event()
        self._fd, self._torn, self._size = _open(self.path)
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    @property
    def buffered(self) -> int:
        """Lines that wait for the disk."""
        return len(self._lines)

    @property
    def dropped(self) -> int:
        """Lines that are in no file: the buffer was full, or the disk refused them."""
        return self._refused + self._lost

    def write(self, line: str) -> None:
        """Queue one line (without its newline); drops and counts it when the buffer is full."""
        lines = self._lines
        if len(lines) >= self.max_buffered or self._closing:
            self._refused += 1
            if not self._closing:
                self._overflow()
            return
        lines.append(line)
        if not self._woken:  # an event is asked by two calls, a flag by none
            self._woken = True
            self._wake.set()

    def _overflow(self) -> None:
        if not self._overflowing:
            self._overflowing = True
            self._say_again = self._clock() + _SAY_AGAIN
            log.warning("%s: the disk is too slow, so lines are lost", self.path)
        elif self._clock() >= self._say_again:
            self._say_again = self._clock() + _SAY_AGAIN
            log.warning("%s: still too slow: %d lines were lost so far", self.path, self.dropped)

    def reopen(self) -> None:
        """Soon open the path anew, for a file that was renamed or deleted.

        What is queued by now still goes to the old one. When the path cannot be opened, the old
        file is kept.
        """
        self._reopen.set()
        self._wake.set()

    def close(self, timeout: float = 5.0) -> bool:
        """Write what is buffered, sync and close, within `timeout` seconds; True when all was done.

        When the disk is stuck, the lines left over count as dropped and the thread is abandoned (it
        does not keep the process alive).
        """
        self._closing = True
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._refused += len(self._lines)
            self._lines.clear()
            log.warning(
                "%s: the disk hangs at the end: %d lines were lost", self.path, self.dropped
            )
            return False
        return self.errors == 0

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(_BATCH_SECONDS)
            # Before draining: a line that comes now wakes again. And in this order: one that comes
            # between the two wakes nobody, but is drained right after.
            self._wake.clear()
            self._woken = False
            reopen = self._reopen.is_set()
            self._drain()
            if reopen:
                self._reopen.clear()
                self._open_anew()
        self._drain()
        self._finish_file()

    def _open_anew(self) -> None:
        try:
            fd, torn, size = _open(self.path)
        except InputError as error:
            self.errors += 1
            self.last_error = str(error)
            log.warning("%s; the file opened before is kept", error)
            return
        self._finish_file()
        self._fd, self._torn, self._size = fd, torn, size
        self._began = self._clock()

    def _rotate(self, more: int) -> None:
        """Cut the file off when it is time, before `more` bytes are written."""
        now = self._clock()
        if not self.rotation.due(self._size, more, now - self._began) or now < self._rotate_after:
            return
        try:
            cut_off(self.path, self._fd)
        except OSError as error:
            self._rotate_after = now + _SAY_AGAIN
            self.errors += 1
            self.last_error = f"{self.path}: cannot be cut off: {error.strerror}"
            log.warning("%s; it grows on", self.last_error)
            return
        self._open_anew()
        if self.rotation.total_bytes is not None:
            keep_within(self.path, self.rotation.total_bytes)

    def _finish_file(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                self._failed(error)
        os.close(self._fd)

    def _drain(self) -> None:
        while batch := self._take():
            done = self._append(batch)
            self.written += done
            self._lost += len(batch) - done
            if done == len(batch) and self._trouble is not None:
                self._trouble = None
                self._recovered()
        if self._overflowing:
            self._overflowing = False
            self._recovered()

    def _recovered(self) -> None:
        log.warning("%s: written to again; %d lines were lost in all", self.path, self.dropped)

    def _take(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._lines and size < _BATCH_BYTES:
            # A newline inside would make two lines of one; JSON has none, so this is a guard.
            line = self._lines.popleft().replace("\n", " ").encode("utf-8", "replace") + b"\n"
            batch.append(line)
            size += len(line)
        return batch

    def _append(self, batch: list[bytes]) -> int:
        """Write whole lines; how many of them reached the file."""
        self._rotate(sum(map(len, batch)))
        data = memoryview((b"\n" if self._torn else b"") + b"".join(batch))
        mended = int(self._torn)
        sent = 0
        try:
            while sent < len(data):
                sent += os.write(self._fd, data[sent:])
        except OSError as error:
            self._failed(error)
        ends = bytes(data[mended:sent])
        self._size += sent
        if sent:
            self._torn = data[sent - 1] != ord("\n")
        return ends.count(b"\n")

    def _failed(self, error: OSError) -> None:
        self.errors += 1
        self.last_error = f"{self.path}: {error.strerror}"
        now = self._clock()
        if error.errno != self._trouble:
            self._trouble = error.errno
            log.warning("%s, so lines are lost", self.last_error)
        elif now >= self._say_again:
            log.warning("%s: %d lines were lost so far", self.last_error, self.dropped)
        else:
            return
        self._say_again = now + _SAY_AGAIN


def _file_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return path / f"records-{began}-{os.getpid()}.jsonl"


def _open(path: Path) -> tuple[int, bool, int]:
    """Open for appending; also tell whether the file ends inside a line, and its size.

    A torn line, a killed writer's, is cut away when nobody else has the file open.
    """
    try:
        # Read too: to see the last byte. A named pipe opened so does not wait for its reader.
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened for records: {error.strerror}") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return fd, False, 0
    alone = _lock(fd, fcntl.LOCK_EX)
    size, torn = status.st_size, False
    if size and os.pread(fd, 1, size - 1) != b"\n":
        begin = max(0, size - _LINE_BYTES)
        tail = os.pread(fd, size - begin, begin)
        whole = tail.rfind(b"\n") + 1
        ours = tail[whole : whole + len(_BEGINS)]  # shorter when it is torn right at its beginning
        torn = not (alone and (whole or not begin) and _BEGINS.startswith(ours))
        if not torn:
            size = begin + whole
            os.ftruncate(fd, size)
            log.warning("%s: ended inside a line, which was cut away", path)
    _lock(fd, fcntl.LOCK_SH)  # others that open it see that it is written
    return fd, torn, size


def _lock(fd: int, kind: int) -> bool:
    with contextlib.suppress(OSError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False


_R = TypeVar("_R", RequestRecord, FleetSample)


class RecordReader(Generic[_R]):
    """An iterator over a file's records of one kind; a bad line is skipped and counted.

    `read` and `bad` count lines so far; `first_bad` says of the first one where and what it was.
    """

    def __init__(self, path: str | Path, kind: type[_R]) -> None:
        self.path = Path(path)
        self._kind: type[_R] = kind
        self.read = 0
        self.bad = 0
        self.first_bad = ""

    def __iter__(self) -> Iterator[_R]:
        """Read from the start. Raises InputError when the file cannot be opened."""
        self.read, self.bad, self.first_bad = 0, 0, ""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error
        with file:
            number = 0
            while line := file.readline(_LINE_BYTES):
                number += 1
                whole = len(line) < _LINE_BYTES or line.endswith(b"\n")
                while not whole:  # pass over the rest of it in bounded memory
                    rest = file.readline(_LINE_BYTES)
                    whole = len(rest) < _LINE_BYTES or rest.endswith(b"\n")
                record = self._record(line, number)
                if record is not None:
                    self.read += 1
                    yield record

    def _record(self, line: bytes, number: int) -> _R | None:
        if line.isspace():
            return None
        try:
            found = parse(line)
        except (ValueError, RecursionError) as error:
            self.bad += 1
            self.first_bad = self.first_bad or f"{self.path} line {number}: {error}"
            return None
        return found if isinstance(found, self._kind) else None


def read_records(path: str | Path) -> RecordReader[RequestRecord]:
    """Read the records of a file of JSON lines lazily; `.bad` counts the lines that were none."""
    return RecordReader(path, RequestRecord)


def read_samples(path: str | Path) -> RecordReader[FleetSample]:
    """Read the fleet's samples from the same files."""
    return RecordReader(path, FleetSample)
