"""Real child processes: their READY line, their last words, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from surgetank.adapters.child import Child, StartError

SERVES = "import signal; print('noise'); print('READY http://x:1 more', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVES
DIES = "import sys; sys.exit('line one\\nthe port is taken')"
SILENT = "import signal; signal.pause()"
TALKS = "print('READY a', flush=True)\nwhile True: print('x' * 1000)"


def child(program: str, *, start_timeout: float = 10.0, stop_timeout: float = 10.0) -> Child:
    return Child(
        "it",
        [sys.executable, "-c", program],
        start_timeout=start_timeout,
        stop_timeout=stop_timeout,
    )


def gone(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("program", [SERVES, STUBBORN, TALKS])
def test_what_was_started_is_gone_after_stop(program: str) -> None:
    async def run() -> int | None:
        one = child(program, stop_timeout=0.2)
        await one.start()
        pid = one.pid
        assert not gone(pid)
        await one.stop()
        await one.stop()
        assert one.pid is None
        return pid

    assert gone(asyncio.run(run()))


def test_the_words_after_ready_are_returned() -> None:
    async def run() -> list[str]:
        one = child(SERVES)
        try:
            return await one.start()
        finally:
            await one.stop()

    assert asyncio.run(run()) == ["http://x:1", "more"]


def test_a_program_that_dies_is_quoted_in_one_line_and_kept_whole() -> None:
    one = child(DIES)
    with pytest.raises(StartError, match=r"^the port is taken$"):
        asyncio.run(one.start())
    assert one.errors == "line one\nthe port is taken"


def test_a_program_that_says_why_it_failed_is_taken_at_its_word() -> None:
    said = "import sys; print('FAILED no such model', flush=True); sys.exit('and more on stderr')"
    with pytest.raises(StartError, match=r"^no such model$"):
        asyncio.run(child(said).start())


def test_a_program_that_never_says_ready_is_ended_and_named() -> None:
    async def run() -> None:
        await child(SILENT, start_timeout=0.2).start()

    with pytest.raises(StartError, match=r"^it said nothing in 0\.2 s$"):
        asyncio.run(run())


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    async def run() -> int | None:
        one = child(SILENT)
        starting = asyncio.create_task(one.start())
        while one.pid is None:  # noqa: ASYNC110  (there is no event for a spawn)
            await asyncio.sleep(0)
        pid = one.pid
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return pid

    assert gone(asyncio.run(run()))
