"""A rehearsal from schedule to run file: what was done is kept, whatever happened."""

from __future__ import annotations

import asyncio
import io
import json

import numpy as np
import pytest

from surgetank.errors import InputError
from surgetank.loadtest import reportscreen
from surgetank.loadtest.prompts import Asking, WordScale
from surgetank.loadtest.rehearsal import Plan, Rehearsed, bodies_of, rehearse
from surgetank.loadtest.report import report
from surgetank.loadtest.runfile import OUTCOMES, Objective, Run, decode, encode
from surgetank.loadtest.schedule import Schedule
from surgetank.loadtest.shapes import Pulses, Steady
from surgetank.loadtest.target import Found, Target
from surgetank.loadtest.tenants import TenantLoad, draw
from surgetank.policy.retry import RULES
from surgetank.report.terminal import console
from surgetank.traffic.analysis import plain
from surgetank.traffic.tokencounts import Lengths

from .scripted import STREAM, Engine, Exchange

FOUND = Found(Asking("m"), WordScale(), "usage")
BUSY = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}"


def schedule() -> Schedule:
    shape = Pulses(base=10, peak=60, width=0.2, period=0.4, duration=0.8)
    return draw([TenantLoad("t", shape, Lengths("fixed", 40), Lengths("fixed", 3))], seed=1)


def plan(url: str, made: Schedule, **more: object) -> Plan:
    return Plan(
        schedule=made,
        target=Target(url, "m", keys={"t": "its-key"}),
        found=FOUND,
        bodies=bodies_of(made, FOUND, 0),
        objective=Objective(1.0),
        processes=1,
        max_lag=10,
        **more,  # type: ignore[arg-type]  # named fields
    )


async def rehearsed(engine: Engine, *, stopped: bool = False, **more: object) -> Rehearsed:
    stop = asyncio.Event()
    if stopped:
        stop.set()
    async with engine, asyncio.timeout(30):
        return await rehearse(plan(engine.url, schedule(), **more), stop=stop)


def told(run: Run) -> str:
    """Read the run back, and tell it as the command does."""
    again = decode(encode(run))
    found = report(again)
    json.dumps(plain(found.to_json()), allow_nan=False)
    text = io.StringIO()
    reportscreen.show(found, console(text))
    return text.getvalue()


def test_every_request_is_a_sample_as_it_was_asked_for() -> None:
    engine = Engine(STREAM)
    done = asyncio.run(rehearsed(engine))
    run, made = done.run, schedule()
    assert run.samples.scheduled == pytest.approx(made.at, abs=1e-4)
    assert run.samples.prompt_tokens.tolist() == made.prompt_tokens.tolist()
    assert run.fingerprint == made.fingerprint
    assert run.description["retries"] == "none"
    assert run.target["prompt_tokens"] == {"asked": 40 * len(made), "counted": 7 * len(made)}
    assert all(b"authorization: Bearer its-key" in r.head for r in engine.requests)
    assert "100 % within 1" in told(run)


def test_a_run_that_is_stopped_before_its_first_request_is_a_valid_one_of_none() -> None:
    done = asyncio.run(rehearsed(Engine(STREAM), stopped=True))
    assert len(done.run.samples) == 0
    assert done.run.done is not None
    assert "Cut off after" in told(done.run)


def test_what_was_in_flight_when_it_was_stopped_is_counted_and_left_out() -> None:
    async def run() -> Rehearsed:
        stop = asyncio.Event()

        async def hold(exchange: Exchange) -> None:
            stop.set()
            await exchange.gone()

        async with Engine(STREAM, STREAM, STREAM, hold) as engine, asyncio.timeout(30):
            return await rehearse(plan(engine.url, schedule()), stop=stop)

    done = asyncio.run(run())
    assert len(done.run.samples) >= 1
    assert done.cut >= 1
    assert len(done.result.records) == len(done.run.samples) + done.cut
    assert {OUTCOMES[code] for code in done.run.samples.outcome} == {"completed"}
    assert "Cut off after" in told(done.run)


def test_a_target_that_refuses_all_is_reported_as_never_answering() -> None:
    done = asyncio.run(rehearsed(Engine(BUSY), rule=RULES["none"]))
    assert set(done.run.samples.status.tolist()) == {429}
    text = told(done.run)
    assert "never" in text
    assert "0 % within 1" in text


def test_retries_are_the_clients_and_the_request_stays_one() -> None:
    engine = Engine(BUSY.replace(b"content-length", b"retry-after-ms: 1\r\ncontent-length"), STREAM)
    done = asyncio.run(rehearsed(engine, rule=RULES["sdk"]))
    assert len(done.run.samples) == len(schedule())
    assert np.sum(done.run.samples.attempts == 2) == 1


def test_bodies_that_would_not_fit_into_memory_are_refused_with_what_to_do() -> None:
    load = TenantLoad("t", Steady(500, 4000), Lengths("fixed", 2000), Lengths("fixed", 1))
    with pytest.raises(InputError, match=r"7\.\d GiB of prompts: more than 4; shorten the run"):
        bodies_of(draw([load], seed=0), Found(Asking("m"), WordScale(2.0, 0), "usage"), 0)
