"""The live page's settings in a configuration file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageSpec:
    """The live page: a process of its own, started and ended with the gateway."""

    host: str = "127.0.0.1"  # address; the page has no login, so anyone who reaches it may look
    port: int | None = None  # no page unless set; 0 takes a free one and prints it
