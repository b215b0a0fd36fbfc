"""What looks like personal data or a secret in a line, told by kind and never by value.

Rule: a guess by shape. It finds what is plainly there (addresses, keys, sentences); that it finds
nothing is no proof, and `docs/guides/sharing.md` says what a person has to look at.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

_EMAIL: Final = re.compile(rb"[\w.%+-]+@[\w-]+(?:\.[\w-]+)+")
_KEY: Final = re.compile(
    rb"\bsk-[\w-]{16,}|\bBearer\s+[\w.~+/-]{8,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}"
    rb"|\bhf_\w{20,}|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{30,}|\beyJ[\w-]{10,}\.[\w-]{10,}\."
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_IPV4: Final = re.compile(rb"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6: Final = re.compile(rb"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_UUID: Final = re.compile(rb"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_AGENT: Final = re.compile(
    rb"Mozilla/\d|\b(?:python-requests|curl|okhttp|aiohttp|httpx)/\d|OpenAI/"
)
# Eight words in a row, or sixteen letters of a script that writes without spaces.
_WORDS: Final = re.compile(r"(?:[^\W\d_]+[,.;:!?'\"]*\s+){7}[^\W\d_]+")
_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]{16}")


def kinds(line: bytes) -> Iterator[str]:
    """Give the kinds of personal data that the line seems to hold, each once."""
    if _EMAIL.search(line):
        yield "e-mail address"
    if _KEY.search(line):
        yield "API key or token"
    if any(_is_address(found.group()) for found in _IPV4.finditer(line)) or any(
        _is_address(found.group()) for found in _IPV6.finditer(line)
    ):
        yield "IP address"
    if _UUID.search(line):
        yield "id that is not hashed (UUID)"
    if _AGENT.search(line):
        yield "user agent"
    text = line.decode("utf-8", "replace").replace("\\n", " ")
    if _WORDS.search(text) or _UNSPACED.search(text):
        yield "free text"


def _is_address(found: bytes) -> bool:
    """Tell an address from a time of day or a version: `::`, `10:47:12` and 999.1.1.1 are none."""
    text = found.decode()
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.version == 4 or (
        len(text) > 4 and any(c in "0123456789abcdefABCDEF" for c in text)
    )
