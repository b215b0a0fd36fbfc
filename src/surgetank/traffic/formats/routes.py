"""Which HTTP exchanges are inference requests, and how each ended, from an access log's words."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from surgetank.traffic.trace import Ended

# The last parts of a path say what it does; any prefix may stand before (/team/v1, /openai, ...).
_INFERENCE: Final = re.compile(
    r"/(?:chat/completions|completions?|embeddings?|responses|messages|infill"
    r"|generate|generate_stream|api/chat|api/embed)\Z"
)
_PROBE: Final = re.compile(
    r"/(?:health\w*|livez?|liveness|readyz?|readiness|startup|ping|metrics|version|status"
    r"|models(?:/[^?]*)?|props|slots|load|api/tags|api/version"
    r"|get_model_info|get_server_info|server_info|nginx_status|stub_status)\Z"
)
_STATIC: Final = re.compile(
    r"\.(?:js|css|map|ico|png|jpe?g|gif|svg|webp|woff2?|ttf|txt|html?|xml)\Z"
)
_METHODS: Final = frozenset(
    ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "CONNECT", "TRACE", "PRI")
)
_LONGEST_PATH: Final = 8192  # of a memoised path, as most servers bound a request line

FIRST_BYTE: Final = (
    "ttft is the time to the first byte of the answer: less than that to the first token where the "
    "engine sends its head early"
)


@lru_cache(maxsize=4096)
def not_inference(method: str | None, target: str | None) -> str | None:
    """Say why a request line is no inference request; None when it is one.

    `target` is a path or an absolute URL, with or without a query. Without a method (a log that
    does not keep it) the path alone decides.
    """
    if not target or (method is not None and method not in _METHODS):
        return "not HTTP"
    path = target[:_LONGEST_PATH].split("?", 1)[0].split("#", 1)[0]
    if "://" in path:
        path = "/" + path.split("://", 1)[1].partition("/")[2]
    path = path.rstrip("/").lower()
    if _INFERENCE.search(path):
        return None if method in {"POST", None} else "not a POST"
    if not path or _PROBE.search(path):
        return "probe"
    if _STATIC.search(path):
        return "static file"
    return "other route"


def split_request(line: str) -> tuple[str, str]:
    """Split "POST /path HTTP/1.1" into method and target; two empty strings if it is no HTTP."""
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/"):
        return "", ""
    return parts[0], parts[1]


def ended(status: int | None) -> Ended:
    """Tell from an HTTP status how a request ended.

    429 and 503 are a limiter's; 499 (nginx) and 460 (ALB) say that the client left.
    """
    if status is None or not 200 <= status < 600 or 300 <= status < 400:
        return Ended.UNKNOWN
    if status < 300:
        return Ended.COMPLETED
    if status in {429, 503}:
        return Ended.REFUSED
    return Ended.ABANDONED if status in {499, 460} else Ended.FAILED
