"""Where the cases of a sweep run: processes of this machine, or a Dask cluster.

Rule: both are concurrent.futures Executors; the sweep knows no more of them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

from surgetank.errors import InputError


@contextmanager
def processes(workers: int | None = None) -> Iterator[tuple[Executor, int]]:
    """Processes, as many as there are CPUs to use unless told; gives them and their number."""
    count = workers or max(1, len(os.sched_getaffinity(0)))
    # Spawned: a fork would copy threads that hold locks (the engine's compiler has some).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_follow_parent) as executor:
        yield executor, count


def _follow_parent() -> None:
    """End with the process that asked, killed or not; and leave an interrupt to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def dask(address: str) -> Iterator[tuple[Executor, int]]:
    """The cluster whose scheduler is at `address`. Raises InputError when it is not there."""
    try:
        from distributed import Client  # noqa: PLC0415 - an extra
    except ImportError:
        raise InputError(
            "--dask: distributed is not installed: pip install 'surgetank[dask]'"
        ) from None
    try:
        client: Any = Client(address, timeout=10)  # type: ignore[no-untyped-call]  # no types
    except OSError as error:
        raise InputError(f"--dask {address}: no scheduler answers: {error}") from None
    with client:
        threads = sum(client.nthreads().values())
        yield cast("Executor", client.get_executor(pure=False)), max(1, threads)
