"""What a scripted replica does with a request for text.

Rule: data, not code; a check says in one line how its engine behaves. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to answer. Counts named `..._after` are pieces of content; 0: before the head."""

    service: float = 0.0  # in a slot, before the first byte
    tokens: int = 3  # pieces of content of a stream
    pace: float = 0.0  # between two pieces; 0: all in one write
    piece: str = "word{} "  # the content of each; {}: its number, for some end what repeats itself
    prompt_tokens: int = 7  # as reported
    output_tokens: int | None = None  # as reported; None: as many as pieces
    cached_tokens: int | None = None  # as reported; None: not reported
    status: int = 200  # others are answered with an error in the OpenAI shape
    retry_after: str = ""  # with such a status
    hang_after: int | None = None  # then nothing more comes, and nothing is closed
    cut_after: int | None = None  # then the connection is closed
    reset: bool = False  # it is cut with an RST
    error_after: int | None = None  # then an error event; 0: the first event of a 200
    bare_error: bool = False  # that error is JSON alone, not an event
    endless_line: int = 0  # bytes of a line without an end, after the first piece
    usage: Literal["asked", "always", "never"] = "asked"  # the usage chunk of a stream
    done: bool = True  # a stream ends with [DONE]
    said: Mapping[str, object] = field(default_factory=dict)  # more members beside the content
    more: Mapping[str, object] = field(default_factory=dict)  # more members at the top
    trickle: bool = False  # byte by byte


BUSY = Behaviour(status=503)
"""How an engine sheds: vLLM and SGLang answer 503 beyond their queue."""
