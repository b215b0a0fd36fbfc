"""Compile once and keep the result: numba with a cache folder of this version's own.

Rule: the folder's name holds a digest of these sources, for numba looks only at the file of the
function that is called and would go on using what it compiled from an older neighbour.

The folder is `$NUMBA_CACHE_DIR`, else `surgetank` in the user's cache folder (`$XDG_CACHE_HOME`,
`~/.cache`), so a package folder that is read-only does no harm; where none can be written to, each
process compiles.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

MESSAGE: Final = "compiling the engine model, once, about 10 s"


@cache
def folder() -> Path | None:
    """Return where compiled code is kept; None where no folder can be written to."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    root = Path(given) if given else Path(home) / "surgetank"
    path = root / f"engine-{digest.hexdigest()[:16]}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError:
        return None


def inner(function: F) -> F:
    """Compile a function that only other compiled functions call: it becomes part of them."""
    return cast("F", numba.njit(error_model="numpy", forceinline=True)(function))


def called(function: F) -> F:
    """Compile a function that compiled functions call and do not take in: it stays one copy."""
    return cast("F", numba.njit(error_model="numpy")(function))


def entry(function: F) -> F:
    """Compile a function that Python calls, at its first call, unless the folder has it."""
    where = folder()
    if where is None:
        return inner(function)
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(where)  # read as the function is decorated, and then only
    try:
        return cast("F", numba.njit(cache=True, error_model="numpy")(function))
    finally:
        config.CACHE_DIR = before


class _Listener(event.Listener):
    """Tells the hook of the first compilation."""

    def __init__(self, hook: Callable[[str], None]) -> None:
        self._hook: Callable[[str], None] | None = hook

    def on_start(self, event: Any) -> None:
        del event
        if self._hook is not None:
            hook, self._hook = self._hook, None
            hook(MESSAGE)

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def on_compile(hook: Callable[[str], None]) -> Iterator[None]:
    """Within: call `hook` with one line for the user when the model has to be compiled.

    Code from the cache calls nothing. A command prints the line to stderr.
    """
    with event.install_listener("numba:compile", _Listener(hook)):
        yield
