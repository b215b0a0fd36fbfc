"""The conformance checks on a gateway with a known fault, on one without, and on our own."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop
from typer.testing import CliRunner

import surgetank
from surgetank.adapters import procfs
from surgetank.cli.conformance import app
from surgetank.errors import InputError
from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Line, post
from surgetank.studies.conformance.filling import fill
from surgetank.studies.conformance.gauges import total
from surgetank.studies.conformance.page import page
from surgetank.studies.conformance.replica import HOST, Replica
from surgetank.studies.conformance.run import chosen, run_checks
from surgetank.studies.conformance.settings import Settings, TenantLimits
from surgetank.studies.conformance.subject import FileSubject, UrlSubject
from surgetank.studies.conformance.table import CHECKS
from surgetank.studies.conformance.targetfile import read_target
from surgetank.studies.conformance.verdict import Check, Report, Result, Status, check
from surgetank.studies.conformance.world import World

TINY = Path(__file__).parent / "tiny_gateway.py"
OWN = Path(surgetank.__file__).parent / "studies" / "conformance" / "targets" / "surgetank.yaml"


def tiny(tmp_path: Path, *flags: str, more: str = "") -> FileSubject:
    """Write a target file for the tiny gateway."""
    words = ", ".join(["$python", str(TINY), "--port", "$port", *flags, "$cap", "$upstreams"])
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"name: tiny\ncommand: [{words}]\nready: 'http://127.0.0.1:$port/health'\n"
        f"settings: {{cap: [--limit, $value]}}\n{more}"
    )
    return FileSubject(read_target(path))


def results(subject: FileSubject | UrlSubject, checks: Sequence[Check]) -> tuple[Result, ...]:
    report: Report = uvloop.run(run_checks(subject, checks))
    return report.results


def numbered(number: int) -> Check:
    return next(check for check in CHECKS if check.number == number)


# Verdicts.


def test_a_gateway_that_leaks_the_slots_of_clients_that_left_fails(tmp_path: Path) -> None:
    (leaky,) = results(tiny(tmp_path, "--fault", "leaky"), [numbered(1)])
    assert leaky.status is Status.FAILED
    assert leaky.seen.startswith("stream 2 of 50 did not begin in 2 s: 429")


def test_a_gateway_that_gives_slots_back_passes_the_same_check(tmp_path: Path) -> None:
    (fine,) = results(tiny(tmp_path), [numbered(1)])
    assert (fine.status, fine.seen) == (Status.PASSED, "")
    assert fine.evidence[0].startswith("the next success: after 0.0")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fault", "number", "seen"),
    [
        ("early", 8, "of 8 streams and 12 more the engine had 16"),
        ("unlimited", 9, "a limit of 2 at once let 6 run at once"),
        ("breaker", 11, "no success in 1."),
        ("silent", 18, "of 400 got no proper end:"),
        ("", 51, "two lengths: it reached the engine"),
        ("", 57, "these reached the engine: POST /sleep, POST /wake_up"),
    ],
)
def test_each_known_fault_fails_the_check_that_is_about_it(
    tmp_path: Path, fault: str, number: int, seen: str
) -> None:
    (found,) = results(tiny(tmp_path, *(["--fault", fault] if fault else [])), [numbered(number)])
    assert found.status is Status.FAILED
    assert seen in found.seen


def test_what_a_target_cannot_express_is_not_testable_with_its_reason(tmp_path: Path) -> None:
    more = "cannot: {tenants: keys need a database here}\n"
    first, second = results(tiny(tmp_path, more=more), [numbered(3), numbered(10)])
    assert (first.status, first.seen) == (Status.NOT_TESTABLE, "keys need a database here")
    assert second.status is Status.NOT_TESTABLE
    assert second.seen == "tiny has no setting for queue that is known here"


def test_a_gateway_that_does_not_start_fails_with_its_last_words(tmp_path: Path) -> None:
    (result,) = results(tiny(tmp_path, "--nonsense"), [numbered(52)])
    assert result.status is Status.FAILED
    assert result.seen.startswith("the gateway did not start: it ended with 2:")
    assert "--nonsense" in result.seen


def test_nothing_of_a_gateway_is_left_however_its_check_ends(tmp_path: Path) -> None:
    pids: list[int] = []

    @check(900, "breaks", source="here", right="nothing", seconds=20.0)
    async def breaks(world: World) -> None:
        pids.append(world.gateway.started("").pid)
        raise RuntimeError("a check of ours that breaks")

    @check(901, "hangs", source="here", right="nothing", seconds=1.0)
    async def hangs(world: World) -> None:
        pids.append(world.gateway.started("").pid)
        await asyncio.Event().wait()

    subject = tiny(tmp_path)
    with pytest.raises(RuntimeError, match="a check of ours that breaks"):
        results(subject, [breaks])
    (late,) = results(subject, [hangs])
    assert (late.status, late.seen) == (Status.FAILED, "was not over within 1 s")

    async def cancelled() -> None:
        task = asyncio.ensure_future(run_checks(subject, [hangs]))
        async with asyncio.timeout(20.0):
            while len(pids) < 3:  # noqa: ASYNC110 - the check is in this very loop
                await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    uvloop.run(cancelled())
    assert len(pids) == 3
    assert [procfs.start_ticks(pid) for pid in pids] == [None] * 3


def test_a_gateway_that_runs_already_is_tested_as_far_as_a_url_goes(tmp_path: Path) -> None:
    del tmp_path

    async def run() -> Report:
        ports = [await _free(), await _free()]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(TINY), "--port", str(ports[0]), f"http://{HOST}:{ports[1]}")
        )
        try:
            subject = UrlSubject(f"http://{HOST}:{ports[0]}", [ports[1]])
            return await run_checks(subject, [numbered(n) for n in (1, 13, 56)])
        finally:
            process.kill()
            await process.wait()

    limits, replicas, bodies = uvloop.run(run()).results
    assert limits.status is Status.NOT_TESTABLE
    assert limits.seen == "needs a target file, which says how to set cap"
    assert replicas.seen == "needs 3 replicas, and this gateway has 1 here"
    assert bodies.status is Status.PASSED


async def _free() -> int:
    replica = Replica("for its port")
    await replica.start()
    await replica.die()
    return replica.port


# Our own gateway.


def test_our_own_gateway_knows_whose_key_it_is_with_the_target_file_that_comes_with_it() -> None:
    (found,) = results(FileSubject(read_target(OWN)), [numbered(59)])
    assert (found.status, found.seen) == (Status.PASSED, "")


@pytest.mark.heavy
def test_our_own_gateway_passes_all_that_can_be_tested() -> None:
    found = results(FileSubject(read_target(OWN)), CHECKS)
    failed = {r.check.number: r.seen for r in found if r.status is Status.FAILED}
    assert not failed, failed
    untestable = {r.check.number for r in found if r.status is Status.NOT_TESTABLE}
    assert untestable <= {6, 25, 31}


# The scripted replica.


def test_a_replica_serves_its_slots_lets_others_wait_and_sheds_the_rest() -> None:
    async def run() -> None:
        replica = Replica("one")
        replica.slots, replica.max_waiting = 2, 1
        replica.behaviour = Behaviour(hang_after=0)
        await replica.start()
        lines = [await _line(replica) for _ in range(4)]
        calls = []
        for i, line in enumerate(lines):
            calls.append(line.ask(post({"user": str(i)}), limit=5.0))
            async with asyncio.timeout(5.0):
                while replica.total <= i:  # noqa: ASYNC110 - it is in this very loop
                    await asyncio.sleep(0.001)
        await calls[3].ending(5.0)
        assert [call.status for call in calls] == [0, 0, 0, 503]
        assert (replica.running, replica.waiting, replica.in_flight) == (2, 1, 3)
        calls[0].leave()
        async with asyncio.timeout(5.0):
            while replica.waiting:  # noqa: ASYNC110 - same
                await asyncio.sleep(0.001)
        assert replica.received[0].end == "left"
        assert replica.received[2].started is not None
        assert (replica.running, replica.max_running, replica.max_in_flight) == (2, 2, 3)
        await replica.die()

    uvloop.run(run())


@pytest.mark.parametrize(
    ("behaviour", "end", "done", "error"),
    [
        (Behaviour(), "whole", True, False),
        (Behaviour(error_after=0), "whole", True, True),
        (Behaviour(error_after=1), "whole", True, True),
        (Behaviour(done=False), "whole", False, False),
        (Behaviour(cut_after=1), "cut", False, False),
        (Behaviour(cut_after=0, reset=True), "cut", False, False),
        (Behaviour(status=503, retry_after="2"), "whole", False, True),
    ],
)
def test_a_stream_is_what_its_behaviour_says(
    behaviour: Behaviour, end: str, *, done: bool, error: bool
) -> None:
    async def run() -> None:
        replica = Replica("one")
        replica.behaviour = behaviour
        await replica.start()
        line = await _line(replica)
        call = await line.ask(post({"stream": True}), limit=5.0).ending()
        assert (call.end, call.done, call.error is not None) == (end, done, error)
        assert call.ok == (end == "whole" and done and not error)
        await replica.die()

    uvloop.run(run())


async def _line(replica: Replica) -> Line:
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(Line, HOST, replica.port)
    return line


# Target files.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: x\ncommand: [a]\n", "ready: is missing"),
        ("name: x\ncommand: a b\nready: u\n", "command: must be a list of words"),
        ("name: x\ncommand: [a]\nready: u\nport: 1\n", "port: is unknown; known are name, about"),
        ("name: x\ncommand: [a]\nready: u\nsettings: {caps: 1}\n", "settings.caps: is unknown"),
        ("name: x\ncommand: [a]\nready: u\ngauges: {queue: q}\n", "gauges: need `metrics`"),
        (
            "name: x\ncommand: [a]\nready: u\nfiles: {../a: b}\n",
            "files.../a: must be a name within",
        ),
        ("name: x\ncommand: [a]\nready: u\nfiles: {/etc/a: b}\n", "files./etc/a: must be a name"),
        ("name: x\ncommand: [a]\nready: u\nfiles: {'': b}\n", "files.: must be a name within"),
        ("name: x\ncommand: [a]\nready: {url: u, timeout: no}\n", "ready.timeout = False: must"),
    ],
)
def test_a_wrong_target_file_is_one_line_that_says_what_is_right(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "target.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(problem)):
        read_target(path)


def test_a_gateway_or_a_port_that_cannot_be_is_one_line_before_any_check() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        url = f"http://{HOST}:{port}"
        with pytest.raises(InputError, match="no gateway is reached there"):
            UrlSubject(url, [9001]).reach()
        with pytest.raises(InputError, match="a port is named twice"):
            UrlSubject(url, [9001, 9001])

        async def start() -> None:
            await Replica("late", port).start()

        with pytest.raises(
            InputError, match=f"a replica cannot listen on {HOST}:{port}: Address already in use"
        ):
            asyncio.run(start())


def test_a_target_is_filled_with_what_a_check_sets(tmp_path: Path) -> None:
    path = tmp_path / "target.yaml"
    path.write_text(
        "name: x\n"
        "command: [gw, --port, $port, $cap, $queue, '$workers', --config, $config]\n"
        "ready: 'http://127.0.0.1:$admin_port/ok'\n"
        "settings:\n"
        "  cap: {cap: [--cap, $in_all], each: [--each, $value]}\n"
        "  queue: [--queue, $value]\n"
        "  queue_timeout: 'wait $value'\n"
        "per_upstream: {workers: [--worker, $upstream, $each]}\n"
        "files: {'c.yaml': \"$queue_timeout\\n$keys\"}\n"
        'per_tenant: {keys: "$name $requests_per_minute\\n"}\n'
        "tenants: {requests_per_minute: 'rpm=$value'}\n"
    )
    settings = Settings(
        cap=4,
        queue_timeout=2.5,
        tenants=(TenantLimits("a", requests_per_minute=10), TenantLimits("b")),
    )
    filled = fill(
        read_target(path), settings, folder=tmp_path, ports=(1, 2), upstreams=[7, 8], model="m"
    )
    workers = [w for p in (7, 8) for w in ("--worker", f"http://127.0.0.1:{p}", "--each", "4")]
    config = str(tmp_path / "c.yaml")
    assert filled.command == ("gw", "--port", "1", "--cap", "8", *workers, "--config", config)
    assert filled.files == {"c.yaml": "wait 2.5\na rpm=10\nb \n"}
    assert filled.ready == "http://127.0.0.1:2/ok"
    assert set(filled.keys) == {"a", "b"}
    assert filled.keys["a"] not in repr(filled)


def test_gauges_are_sums_of_named_samples_and_unknown_when_absent() -> None:
    text = 'q{m="a"} 2\nq{m="b"} 3\nr 4\n'
    assert total(text, ["q"]) == 5
    assert total(text, ['q{m="b"}', "r"]) == 7
    assert total(text, ["nothing"]) is None


# The table, the command and the page.


def test_every_case_up_to_18_has_its_check_and_each_says_what_is_right() -> None:
    assert {check.number for check in CHECKS} >= set(range(1, 19))
    for each in CHECKS:
        assert each.title
        assert each.source
        assert each.right


@pytest.mark.parametrize("only", ["x", "1,", "1-x", "999"])
def test_a_wrong_choice_of_checks_is_an_error(only: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--only {only}: ")):
        chosen(CHECKS, only)


def test_checks_are_chosen_by_numbers_and_ranges() -> None:
    assert [c.number for c in chosen(CHECKS, "3,1,10-12")] == [1, 3, 10, 11, 12]


def test_the_command_ends_with_the_counts_and_exits_1_when_a_check_failed(tmp_path: Path) -> None:
    tiny(tmp_path, "--nonsense")
    target, html = tmp_path / "tiny.yaml", tmp_path / "page.html"
    asked = [str(target), "--only", "3,52", "--html", str(html)]
    done = CliRunner().invoke(app, asked, env={"COLUMNS": "120"})
    assert done.exit_code == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("  -    3  A request refused for concurrency costs no quota")
    assert lines[2].startswith("FAIL  52  Pipelined requests are answered in their order")
    assert lines[-1] == "0 passed, 1 failed, 1 not testable"
    assert "Pipelined requests are answered in their order" in html.read_text()


def test_a_result_is_the_same_as_json_and_on_the_page() -> None:
    result = Result(numbered(1), Status.FAILED, "it leaked", ("one", "two"), 1.5)
    report = Report("gw", "1.2", (result,), 1.5)
    said = json.loads(json.dumps(report.as_json()))
    assert (said["passed"], said["failed"], said["not_testable"]) == (0, 1, 0)
    assert said["checks"][0]["seen"] == "it leaked"
    made = page(report)
    assert made.about == "gw, 1.2: 0 passed, 1 failed"
    assert made.sections[0].title == numbered(1).title
