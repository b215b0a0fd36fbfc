"""Blocks into lines: the same whatever the cuts and the packing, and no long line in memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from surgetank.adapters.logbytes import LogBytes
from surgetank.adapters.loglines import STAND_IN, Lines
from surgetank.errors import InputError

LONGEST = 8

_texts = st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=12).map(
    b"\n".join
)


def blocks(text: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(places):
        yield text[start:end]


def expected(text: bytes) -> tuple[bytes, list[int]]:
    """Say it line by line: what is given, and which lines are left out."""
    given_, left_out = b"", []
    for number, line in enumerate(_lines(text), 1):
        bare = line.removesuffix(b"\n")
        if len(bare) > LONGEST:
            left_out.append(number)
            given_ += STAND_IN
        else:
            given_ += line
    return given_, left_out


def _lines(text: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in text.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


@given(_texts, st.lists(st.integers(0, 400), max_size=30))
def test_the_cuts_of_the_blocks_make_no_difference(text: bytes, cuts: list[int]) -> None:
    lines = Lines(blocks(text, cuts), longest=LONGEST)
    pieces = list(lines)
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"\n" not in lines.rest
    assert (b"".join(pieces) + lines.rest, lines.too_long) == expected(text)
    assert lines.count == b"".join(pieces).count(b"\n")
    asked = Lines(
        blocks(text, cuts), longest=LONGEST, number_at=lambda at: text[:at].count(b"\n") + 1
    )
    assert list(asked) == pieces
    assert asked.too_long == lines.too_long


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    st.sampled_from(["plain", "gzip", "zstd"]),
    st.binary(max_size=3).filter(lambda b: not b.strip(b"\0")),
)
def test_any_packing_in_any_number_of_members_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], packing: str, padding: bytes
) -> None:
    pack = {
        "plain": lambda b: b,
        "gzip": gzip.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }[packing]
    parts = [b"first line\n", *parts]
    path = tmp_path_factory.mktemp("log") / "named.csv"
    path.write_bytes(b"".join(map(pack, parts)) + (padding if packing == "gzip" else b""))
    data = LogBytes(path)
    assert b"".join(data) == b"".join(parts)
    assert data.torn == ""
    assert data.consumed == data.size
    data.close()


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [1, 7, 100])
def test_a_torn_stream_gives_what_was_read_and_says_so(
    tmp_path: Path, packing: str, cut: int
) -> None:
    text = b"".join(b"%d,%d\n" % (n, n * n) for n in range(40_000))
    packed = gzip.compress(text) if packing == "gzip" else zstandard.compress(text)
    path = tmp_path / "log"
    path.write_bytes(packed[:-cut])
    data = LogBytes(path)
    read = b"".join(data)
    assert text.startswith(read)
    assert len(read) > len(text) * 0.5
    assert data.torn.endswith("stream ends early")
    data.close()


def test_a_damaged_stream_says_what_is_wrong(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"".join(b"%d\n" % n for n in range(60_000))))
    packed[-60_000:-30_000] = b"\xff" * 30_000
    path = tmp_path / "log"
    path.write_bytes(packed)
    data = LogBytes(path)
    assert b"".join(data).startswith(b"0\n1\n")
    assert data.torn.startswith("the gzip stream is damaged")
    data.close()


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"PK\x03\x04", "zip archive"),
        (b"\xff\xfea\0", "UTF-16"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, head: bytes, said: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(head)
    with pytest.raises(InputError, match=said) as caught:
        LogBytes(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_or_nothing_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        LogBytes(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        LogBytes(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot be opened"):
        LogBytes("a\0b")
