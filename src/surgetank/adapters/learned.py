"""What was learnt and is worth keeping over a restart: estimates of lengths, start times.

Rule: it is only ever a better start. What cannot be used is put aside, and learning begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from surgetank.adapters.statedir import StateDir

log = logging.getLogger("surgetank.state")

_FILE: Final = "learned.json"
_VERSION: Final = 1
_T = TypeVar("_T")


class Learned:
    """learned.json of a state directory: one JSON object for each part that learns."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._parts: dict[str, Any] = {}
        kept = state.read(_FILE)
        if kept and kept.get("v") == _VERSION and isinstance(kept.get("parts"), dict):
            self._parts = kept["parts"]
        elif kept:
            state.set_aside(_FILE, f"expected version {_VERSION} with its parts")

    def use(self, part: str, build: Callable[[Any], _T]) -> _T:
        """Build from what is kept of a part; from None when there is nothing, or it does not fit.

        `build` raises ValueError, KeyError or TypeError for what it cannot use.
        """
        kept = self._parts.get(part)
        if kept is not None:
            try:
                return build(kept)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._state.set_aside(_FILE, f"{part}: {type(error).__name__}: {error}")
                del self._parts[part]
        return build(None)

    def save(self, parts: dict[str, Any]) -> None:
        """Replace these parts, soon; a full disk is one line in the log, and no reason to stop."""
        self._parts |= parts
        self._state.put(_FILE, {"v": _VERSION, "parts": dict(self._parts)})
