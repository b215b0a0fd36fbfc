"""All formats in their order of precedence, and which of them a log is.

Rule: the content decides, the file's name only where the content allows several readings; the most
specific format comes first, so that a general one never takes its logs.
"""

from __future__ import annotations

from typing import Final

from surgetank.traffic.formats import (
    alb,
    cloudfront,
    csvlog,
    dynamo,
    envoy,
    jsonlog,
    langfuse,
    litellm,
    llamacpp,
    mooncake,
    nginx,
    otel,
    recordlog,
    servegen,
    sglang,
    tgi,
    tracecsv,
    vllm,
)
from surgetank.traffic.formats.reading import Format, ReadOptions, UnreadableError

__all__ = ["FORMATS", "HEAD_BYTES", "Format", "ReadOptions", "by_name", "detect"]

HEAD_BYTES: Final = 1 << 16  # enough of a log to tell its format

_FAMILIES: Final = (  # the most specific first; csvlog and jsonlog take what is left
    recordlog,
    dynamo,
    mooncake,
    servegen,
    tracecsv,
    otel,
    langfuse,
    litellm,
    sglang,
    tgi,
    envoy,
    nginx,
    alb,
    cloudfront,
    vllm,
    llamacpp,
    jsonlog,
    csvlog,
)
FORMATS: Final[tuple[Format, ...]] = tuple(f for family in _FAMILIES for f in family.FORMATS)

_LFS: Final = b"version https://git-lfs"


def detect(head: bytes, filename: str = "") -> Format:
    """Tell the format from the first bytes (64 KiB). Raises UnreadableError: what is seen."""
    head = head[:HEAD_BYTES]
    refusal = _not_a_log(head)
    if refusal:
        raise UnreadableError(refusal)
    for candidate in FORMATS:
        if candidate.detect(head, filename):
            return candidate
    raise UnreadableError(
        f"{_seen(head)}, which is none of the known formats; choose one with --format: {_names()}"
    )


def by_name(name: str) -> Format:
    """Give the format of this name. Raises UnreadableError with the names that exist."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise UnreadableError(f"format {name!r}: must be one of {_names()}")


def _names() -> str:
    return ", ".join(f.name for f in FORMATS)


def _not_a_log(head: bytes) -> str:
    if head.startswith(_LFS):
        return "a git-LFS pointer, not the data: fetch it with `git lfs pull`"
    if not head.strip(b"\xef\xbb\xbf \t\r\n"):
        return "no rows: the log is empty"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16 text: save it as UTF-8"
    return ""


def _seen(head: bytes) -> str:
    """What the head looks like, without its text."""
    if b"\0" in head:
        return "binary data"
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if first in {b"{", b"["}:
        return "JSON"
    if first == b"<":
        return "HTML or XML"
    return "text"
