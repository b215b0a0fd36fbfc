"""The bytes of a log, whatever it is packed in: plain, gzip, Zstandard, a pipe.

Rule: the packing is told from the first bytes, never from the name, and memory is bounded whatever
the file holds: no block is larger than `BLOCK` by more than what one small piece unpacks to.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from surgetank.errors import InputError

# Bytes: large enough that a block's own cost vanishes (0.1 ms of 2 s), small enough for the caches
# (lines of JSON are read 8 % faster than in blocks of 4 MB).
BLOCK: Final = 3 << 18
STDIN: Final = "-"
PARQUET: Final = b"PAR1"

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = frozenset(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60))
_REFUSED: Final = (
    (b"BZh", "is compressed with bzip2: unpack it, or pipe it in (bzcat LOG | surgetank ... -)"),
    (b"\xfd7zXZ", "is compressed with xz: unpack it, or pipe it in (xzcat LOG | surgetank ... -)"),
    (b"PK\x03\x04", "is a zip archive: unpack it and name the log inside"),
    (b"\xff\xfe", "is UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "is UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)"),
    (b"version https://git-lfs", "is a git-LFS pointer, not the data: run 'git lfs pull' first"),
)
_NEAR: Final = 1 << 14  # bytes
_HEAD: Final = 64  # bytes that tell the packing
_PACKED: Final = 1 << 18  # compressed bytes read at once
_GZIP_PIECE: Final = 1 << 14  # of what a damaged stream holds, no more than this is lost
# Four bytes of Zstandard can stand for 128 KB: pieces this small keep a bomb's step at 8 MB, and
# cost ordinary logs nothing that can be measured.
_ZSTD_PIECE: Final = 256


class LogBytes:
    """An open log: iterate over its unpacked blocks. `torn` says why it ended before its end.

    `consumed` and `size` are bytes of the file as it lies on the disk; `size` is 0 for a pipe.
    """

    def __init__(self, path: str | Path) -> None:
        """Open `path`, or standard input for "-". Raises InputError with one line."""
        self.name = str(path)
        self.torn = ""
        self.consumed = 0
        self._numbered = (0, 1)  # byte of a plain file, and the number of the line there
        self._file = _open(path)
        self.size = _size(self._file)
        try:
            self.head = _head(self._file)
            self._refuse()
        except OSError as error:
            self.close()
            raise InputError(f"{self.name}: cannot be read: {error.strerror}") from error
        except InputError:
            self.close()
            raise

    @property
    def parquet(self) -> bool:
        """Whether it is a Parquet file (which is not read as blocks)."""
        return self.head.startswith(PARQUET)

    @property
    def packed(self) -> bool:
        """Whether its blocks are unpacked from something else."""
        return self.head.startswith((_GZIP, _ZSTD)) or self.head[:4] in _ZSTD_SKIPPABLE

    def number_at(self, offset: int) -> int:
        """Give the number of the line at a byte of a plain file; offsets must not decrease."""
        at, number = self._numbered
        with Path(self.name).open("rb") as file:
            file.seek(at)
            while at < offset and (block := file.read(min(BLOCK, offset - at))):
                at += len(block)
                number += block.count(b"\n")
        self._numbered = (offset, number)
        return number

    def __iter__(self) -> Iterator[bytes]:
        try:
            if self.head.startswith(_GZIP):
                yield from self._unpack(_Gzip(), _GZIP_PIECE)
            elif self.packed:
                yield from self._unpack(_Zstd(), _ZSTD_PIECE)
            else:
                yield from self._raw(BLOCK, whole_lines=True)
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read on: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self.name != STDIN:
            self._file.close()

    def _refuse(self) -> None:
        if not self.head:
            raise InputError(f"{self.name}: is empty: there is no request to read")
        for magic, why in _REFUSED:
            if self.head.startswith(magic):
                raise InputError(f"{self.name}: {why}")

    def _raw(self, at_once: int, *, whole_lines: bool = False) -> Iterator[bytes]:
        """Give blocks; `whole_lines` reads on to a near newline, which saves copying the rest."""
        block = self.head + self._file.read(at_once)
        while block:
            if whole_lines and not block.endswith(b"\n"):
                block += self._file.readline(_NEAR)
            self.consumed += len(block)
            yield block
            block = self._file.read(at_once)

    def _unpack(self, unpacker: _Unpacker, at_once: int) -> Iterator[bytes]:
        waiting: list[bytes] = []
        held = 0
        try:
            for packed in self._raw(_PACKED):
                for start in range(0, len(packed), at_once):
                    for block in unpacker.feed(packed[start : start + at_once]):
                        waiting.append(block)
                        held += len(block)
                        if held >= BLOCK:
                            yield b"".join(waiting)
                            waiting, held = [], 0
            if not unpacker.whole:
                self.torn = f"the {unpacker.name} stream ends early"
        except unpacker.error as error:
            self.torn = f"the {unpacker.name} stream is damaged ({error})"
        if waiting:
            yield b"".join(waiting)


class _Unpacker(Protocol):
    name: str
    error: type[Exception]

    @property
    def whole(self) -> bool: ...  # nothing is missing after what was fed so far

    def feed(self, packed: bytes) -> Iterator[bytes]: ...


class _Gzip:
    """One or more gzip members; zero bytes after them are padding."""

    name = "gzip"
    error: type[Exception] = zlib.error

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._begun = False

    @property
    def whole(self) -> bool:
        return not self._begun

    def feed(self, packed: bytes) -> Iterator[bytes]:
        while packed:
            if not self._begun:
                packed = packed.lstrip(b"\0")
                if not packed:
                    return
                self._begun = True
            yield self._member.decompress(packed, BLOCK)
            while self._member.unconsumed_tail:
                yield self._member.decompress(self._member.unconsumed_tail, BLOCK)
            packed = b""
            if self._member.eof:
                packed = self._member.unused_data
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
                self._begun = False


class _Zstd:
    """One or more Zstandard frames."""

    name = "Zstandard"

    def __init__(self) -> None:
        import zstandard  # noqa: PLC0415 - only a compressed log needs it

        self.error: type[Exception] = zstandard.ZstdError
        self._open: Callable[[], zstandard.ZstdDecompressionObj] = (
            zstandard.ZstdDecompressor().decompressobj
        )
        self._frame = self._open()
        self.whole = True

    def feed(self, packed: bytes) -> Iterator[bytes]:
        while packed:
            self.whole = False
            yield self._frame.decompress(packed)
            packed = b""
            if self._frame.eof:
                packed = self._frame.unused_data
                self._frame = self._open()
                self.whole = True


def _open(path: str | Path) -> BinaryIO:
    if str(path) == STDIN:
        if sys.stdin is None:  # the shell's <&-
            raise InputError("-: standard input is closed: pipe a log in, or name one")
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a directory: name a log file in it") from error
    except FileNotFoundError as error:
        raise InputError(f"{path}: does not exist") from error
    except PermissionError as error:
        raise InputError(f"{path}: may not be read by this user (permission denied)") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be opened: {error}") from error


def _size(file: BinaryIO) -> int:
    try:
        status = os.fstat(file.fileno())
    except (OSError, ValueError):  # a stand-in for stdin has no descriptor
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _head(file: BinaryIO) -> bytes:
    head = b""
    while len(head) < _HEAD and (more := file.read(_HEAD - len(head))):
        head += more
    return head
