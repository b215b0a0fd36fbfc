"""The chunked transfer coding (RFC 9112 section 7.1), decoded strictly from any pieces.

Rule: nothing but a chunk line or a trailer section is ever held back, and both are bounded.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from surgetank.wire.head import BAD_REQUEST, HeadBuffer, Limits, ProtocolError, check_trailers

_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,8})")
_SIZE_AND_EXTENSIONS: Final = re.compile(rb"([0-9a-fA-F]{1,8})(?:[ \t]*;[\t -~\x80-\xff]*+)?")
_SIZE_SO_FAR: Final = re.compile(rb"[0-9a-fA-F]{0,8}\r?")
_EXTENSIONS_SO_FAR: Final = re.compile(
    rb"(?:[0-9a-fA-F]{0,8}|[0-9a-fA-F]{1,8}[ \t]*(?:;[\t -~\x80-\xff]*+)?)\r?"
)


class _At(Enum):
    SIZE = "the line with the size"
    DATA = "the data"
    END = "the CRLF after the data"
    TRAILER = "the trailer section"
    DONE = "the end"


class ChunkedDecoder:
    """Decodes one chunked body.

    Extensions are refused on requests; on responses they are dropped within the line's bound.
    Trailers are checked and dropped. Raises ProtocolError, after which it is of no more use.
    `done`: the body, trailers included, is complete, and `excess` holds what came after it.
    `boundary`: what was read so far ends exactly between two chunks.
    """

    __slots__ = (
        "_at",
        "_held",
        "_left",
        "_limits",
        "_request",
        "_status",
        "_trailer",
        "boundary",
        "done",
        "excess",
    )

    def __init__(self, limits: Limits, status: int) -> None:
        """`status` tells the side: 400 for a request, 502 for an upstream's response."""
        self._limits = limits
        self._request = status == BAD_REQUEST
        self._status = status
        self._at = _At.SIZE
        self._left = 0
        self._held = b""
        self._trailer = HeadBuffer(limits.head_bytes, status, skip_blank=False)
        self.boundary = True
        self.done = False
        self.excess = b""

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in `data`."""
        if self.boundary:
            # Most reads hold exactly one whole chunk. int() alone would also take 0x1, +1, 1_0
            # and spaces: alphanumeric bytes without an x leave hexadecimal digits or an error.
            end = data.find(b"\r\n", 0, 10)
            line = data[:end]
            if end > 0 and line.isalnum() and line[1:2] not in {b"x", b"X"}:
                try:
                    size = int(line, 16)
                except ValueError:
                    raise ProtocolError(self._status, "malformed chunk size") from None
                after = end + 2 + size
                if size and len(data) == after + 2 and data.endswith(b"\r\n"):
                    return data[end + 2 : after]
        out = self._feed(data)
        self.boundary = self._at is _At.SIZE and not self._held
        return out

    def _feed(self, data: bytes) -> bytes:
        out: list[bytes] = []
        at = 0
        while at < len(data):
            if self._at is _At.DATA:
                piece = data[at : at + self._left]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._at = _At.END
            elif self._at is _At.SIZE:
                at = self._read_size(data, at)
            elif self._at is _At.END:
                at = self._read_end(data, at)
            elif self._at is _At.TRAILER:
                self._read_trailer(data[at:])
                break
            else:
                self.excess += data[at:]
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def _read_size(self, data: bytes, at: int) -> int:
        """Read a chunk line, or keep a part of it; returns where to read on."""
        held = self._held
        most = self._limits.chunk_line_bytes + 2
        line = held + data[at : at + most - len(held)]
        end = line.find(b"\r\n")
        if end < 0:
            if len(line) >= most:
                raise ProtocolError(self._status, "a chunk line is too long")
            if not (_SIZE_SO_FAR if self._request else _EXTENSIONS_SO_FAR).fullmatch(line):
                raise ProtocolError(self._status, "malformed chunk size")
            self._held = line
            return len(data)
        match = (_SIZE if self._request else _SIZE_AND_EXTENSIONS).fullmatch(line, 0, end)
        if match is None:
            raise ProtocolError(self._status, "malformed chunk size")
        self._left = int(match[1], 16)
        self._at = _At.DATA
        self._held = b""
        if not self._left:
            # With the CRLF of the size line in front, an empty trailer section ends with an
            # empty line as any other does.
            self._at = _At.TRAILER
            self._trailer.take(b"\r\n")
        return at + end + 2 - len(held)

    def _read_end(self, data: bytes, at: int) -> int:
        crlf = self._held + data[at : at + 2 - len(self._held)]
        if not b"\r\n".startswith(crlf):
            raise ProtocolError(self._status, "no CRLF after the chunk's data")
        used = len(crlf) - len(self._held)
        self._held = crlf
        if crlf == b"\r\n":
            self._held = b""
            self._at = _At.SIZE
        return at + used

    def _read_trailer(self, data: bytes) -> None:
        taken = self._trailer.take(data)
        if taken is None:
            return
        block, self.excess = taken
        check_trailers(block.removeprefix(b"\r\n"), self._limits, self._status)
        self._at = _At.DONE
        self.done = True
