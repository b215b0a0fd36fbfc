"""`surgetank.load`: from a script, from a notebook, and under Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

import surgetank
from surgetank.errors import InputError
from surgetank.loadtest.load import shots_of
from surgetank.loadtest.shot import Shot, Tally


async def _word(shot: Shot) -> AsyncIterator[str]:
    await asyncio.sleep(0)
    yield shot.tenant or "word"


def test_times_alone_are_a_profile() -> None:
    result = surgetank.load([0.02, 0.0, 0.01], _word)
    assert [r.outcome for r in result.records] == ["completed"] * 3
    due = [r.scheduled or 0.0 for r in result.records]
    assert [round(at - due[0], 6) for at in due] == [0, 0.01, 0.02]
    assert not result.stopped


def test_a_schedule_is_whatever_has_shots() -> None:
    schedule = SimpleNamespace(shots=(Shot(0.2, tenant="b"), Shot(0.1, tenant="a")))
    assert [shot.tenant for shot in shots_of(schedule)] == ["a", "b"]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "soon", None, True])
def test_what_is_no_shot_is_refused_by_its_place(bad: Any) -> None:
    with pytest.raises(InputError, match=r"profile\[1\] = "):
        shots_of([0.0, bad])


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="'often': expected one of none, sdk, naive, polite"):
        surgetank.load([0.0], "http://127.0.0.1:9", retries="often")


def test_in_a_notebook_whose_loop_is_taken_it_runs_beside_it() -> None:
    async def cell() -> int:
        return len(surgetank.load([0.0, 0.01], _word).records)

    assert asyncio.run(cell()) == 2


def test_progress_is_told_at_the_end_too() -> None:
    told: list[Tally] = []
    surgetank.load([0.0, 0.0], _word, on_progress=told.append)
    assert (told[-1].sent, told[-1].completed) == (2, 2)


def test_offering_load_loads_nothing_heavy() -> None:
    code = "import surgetank, sys; print('uvloop' in sys.modules, 'load' in dir(surgetank))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'unload'"):
        _ = surgetank.unload


_SCRIPT = """
import asyncio, json, sys
import surgetank
from surgetank import Shot
from surgetank.errors import InputError

class Silent(asyncio.Protocol):
    def connection_made(self, transport):
        print("asked", flush=True)

def report(result):
    print(json.dumps([result.stopped, result.planned, [r.outcome for r in result.records]]))

async def ask(shot):
    print("asked", flush=True)
    await asyncio.sleep(1000)

shots = [Shot(0.0, b"{}"), Shot(0.0, b"{}"), Shot(1000.0, b"{}")]
if sys.argv[1] == "function":
    report(surgetank.load(shots, ask))
else:
    import threading, uvloop
    ready, port = threading.Event(), []
    async def serve():
        server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await asyncio.sleep(1000)
    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    ready.wait()
    report(surgetank.load(shots, f"http://127.0.0.1:{port[0]}", processes=int(sys.argv[1])))
"""


@pytest.mark.parametrize("how", ["function", "1", "2"])
def test_ctrl_c_leaves_what_was_done(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, how], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == b"asked\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of it
        rest, _ = process.communicate(timeout=20)
    assert json.loads(rest) == [True, 3, ["abandoned", "abandoned"]]
    assert process.returncode == 0
