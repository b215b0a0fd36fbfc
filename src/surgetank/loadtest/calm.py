"""A process that is quiet while it sends: no long collections, and room for its sockets."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from surgetank.adapters.descriptors import make_room

_DESCRIPTORS: Final = 65_536
_YOUNG: Final = 50_000  # objects between collections of the youngest: a request makes some tens


@contextmanager
def calm() -> Iterator[None]:
    """Keep the garbage collector from walking over the whole schedule in the middle of a run.

    A full collection over 100,000 shots takes 30 ms and more, in which nothing is sent.
    """
    make_room(_DESCRIPTORS)
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
