"""Compile once and keep the result: numba with a cache folder of this version's own.

A compiled module is a copy of the plain one whose marked functions (marks.py) are compiled, and
call the compiled ones of the others.

Rule: the folder's name holds a digest of these sources, for numba looks only at the file of the
function that is called and would go on using what it compiled from an older neighbour; and of where
they are, for it compiles anew when the file has another date, and two installations would undo each
other's work.

The folder is `$NUMBA_CACHE_DIR`, else `surgetank` in the user's cache folder (`$XDG_CACHE_HOME`,
`~/.cache`), so a package folder that is read-only does no harm; where none can be written to, each
process compiles.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, TypeVar, cast

import numba
from numba.core import event

from surgetank.engine.skipping import intrinsics, pointers
from surgetank.engine.skipping.marks import HOW, How

F = TypeVar("F", bound=Callable[..., Any])

MESSAGE: Final = "compiling the engine model, once, about 10 s"


@cache
def folder() -> Path | None:
    """Return where compiled code is kept; None where no folder can be written to."""
    digest = hashlib.sha256(os.fsencode(Path(__file__).parent))
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


def entry(function: F) -> F:
    """Compile a function that Python calls, at its first call, unless the folder has it."""
    where = folder()
    if where is None:
        return cast("F", numba.njit(error_model="numpy")(function))
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(where)  # read as the function is decorated, and then only
    try:
        return cast("F", numba.njit(cache=True, error_model="numpy")(function))
    finally:
        config.CACHE_DIR = before


_COMPILERS: Final[dict[How, Callable[[Any], Any]]] = {
    "inner": numba.njit(error_model="numpy", forceinline=True),
    "called": numba.njit(error_model="numpy"),
    "entry": entry,
}
_POINTERS: Final[dict[Any, Any]] = {
    pointers.pointer: intrinsics.pointer,
    pointers.moved: intrinsics.moved,
}


@cache
def compiled(module: ModuleType) -> Any:
    """Copy a module with marked functions, these compiled at their first call."""
    made = ModuleType(module.__name__, module.__doc__)
    names = vars(made)
    for name, value in vars(module).items():
        if isinstance(value, ModuleType) and value.__name__.startswith(f"{__package__}."):
            names[name] = compiled(value)
        elif not isinstance(value, FunctionType):
            names.setdefault(name, value)
        elif value.__module__ != module.__name__ and value in HOW:
            names[name] = getattr(compiled(sys.modules[value.__module__]), value.__name__)
        elif value in HOW:
            copied = FunctionType(value.__code__, names, value.__name__, value.__defaults__)
            names[name] = _COMPILERS[HOW[value]](copied)
        else:
            names[name] = _POINTERS.get(value, value)
    return made


@cache
def direct(function: Any, signature: str) -> Callable[..., Any]:
    """Take a compiled function as Python calls it with arguments of known types, "(int64,)".

    Without looking at their types at each call, which takes as long as a step does.
    """
    return cast("Callable[..., Any]", function.compile(signature))


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
