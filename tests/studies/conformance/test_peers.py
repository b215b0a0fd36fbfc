"""Target files of other gateways, and the checks on streams, refusals and operation."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml

import surgetank
from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Call, Line, post
from surgetank.studies.conformance.filling import Filled, fill
from surgetank.studies.conformance.memory import is_flat, moved
from surgetank.studies.conformance.replica import HOST, Replica
from surgetank.studies.conformance.run import run_checks
from surgetank.studies.conformance.settings import SETTINGS, Settings, TenantLimits
from surgetank.studies.conformance.subject import FileSubject
from surgetank.studies.conformance.table import CHECKS
from surgetank.studies.conformance.targetfile import TargetFile, read_target
from surgetank.studies.conformance.verdict import Status

TARGETS = Path(surgetank.__file__).parent / "studies" / "conformance" / "targets"
PEERS = Path(__file__).parents[3] / "requirements" / "peers"
TINY = Path(__file__).parent / "tiny_gateway.py"
NUMBERS = {check.number for check in CHECKS}


# Target files.


def everything(target: TargetFile, folder: Path, *, tenants: bool, replicas: int) -> Filled:
    """Fill a target file with all that it has a setting for."""
    subject = FileSubject(target)
    people = (
        TenantLimits("one", 10, 1000, 500, 500, 60, 2, 0, "high"),
        TenantLimits("two", tier="low"),
        TenantLimits("three"),
    )
    values: dict[str, Any] = dict.fromkeys(SETTINGS, 4)
    settings = Settings(**values, tenants=people if tenants else ())
    everything = frozenset({*SETTINGS, "tenants", *(f for f in TenantLimits.__slots__)})
    possible = subject.possible(settings, everything)
    ports = [7001 + i for i in range(replicas)]
    return fill(target, possible, folder=folder, ports=(1, 2), upstreams=ports, model="m")


@pytest.mark.parametrize("name", sorted(path.stem for path in TARGETS.glob("*.yaml")))
@pytest.mark.parametrize("tenants", [True, False])
def test_a_target_that_comes_with_the_package_is_filled_without_a_rest(
    name: str, tmp_path: Path, *, tenants: bool
) -> None:
    target = read_target(TARGETS / f"{name}.yaml")
    assert target.name == name
    for replicas in (1, 3):
        filled = everything(target, tmp_path, tenants=tenants, replicas=replicas)
        texts = [*filled.command, *filled.files.values(), filled.ready, filled.metrics]
        assert not [text for text in texts if "$" in text]
        assert all(any(f"127.0.0.1:{7001 + i}" in text for text in texts) for i in range(replicas))
        for file, text in filled.files.items():
            if file.endswith(".yaml"):
                assert isinstance(yaml.safe_load(text), dict)
            if file.endswith(".py"):
                ast.parse(text)
    program = target.command[0]
    assert program == "$python" or "/" not in program  # looked up, never a path of one machine


@pytest.mark.parametrize("name", sorted(path.stem for path in PEERS.glob("*.txt")))
def test_a_peer_that_make_installs_has_its_target_and_a_fixed_version(name: str) -> None:
    assert (TARGETS / f"{name}.yaml").is_file()
    first = (PEERS / f"{name}.txt").read_text().splitlines()[0]
    assert first.startswith(name)
    assert "==" in first


def test_a_gateways_own_words_for_tiers_and_for_several_replicas_are_used(tmp_path: Path) -> None:
    smg = read_target(TARGETS / "smg.yaml")
    one = everything(smg, tmp_path, tenants=True, replicas=1)
    policies = yaml.safe_load(one.files["priority.yaml"])["tenant_policies"]
    assert policies == {
        "auth:one": {"max_class": "interactive"},
        "auth:two": {"max_class": "bulk"},
    }
    keys = [one.command[i + 1] for i, w in enumerate(one.command) if w == "--tenant-api-key"]
    assert keys == [f"{name}:{one.keys[name]}" for name in ("one", "two", "three")]
    assert "--policy" not in one.command
    assert "--policy" in everything(smg, tmp_path, tenants=False, replicas=2).command


# The table.


def test_every_reported_case_has_its_check() -> None:
    assert set(range(1, 37)) <= NUMBERS
    assert set(range(61, 77)) <= NUMBERS


# What they see in a gateway that only passes bytes on.


def test_a_relay_of_bytes_is_told_what_its_streams_lack(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"name: tiny\ncommand: [$python, {TINY}, --port, $port, $upstreams]\n"
        "ready: 'http://127.0.0.1:$port/health'\n"
    )
    checks = [check for check in CHECKS if check.number in {23, 25, 27, 29, 61, 69, 75}]
    report = uvloop.run(run_checks(FileSubject(read_target(path)), checks))
    found = {result.check.number: result for result in report.results}
    states = {number: result.status for number, result in found.items()}
    assert states == {
        23: Status.PASSED,
        25: Status.NOT_TESTABLE,
        27: Status.FAILED,
        29: Status.PASSED,
        61: Status.FAILED,
        69: Status.FAILED,
        75: Status.NOT_TESTABLE,
    }
    assert "/v1/chat/completions: cache-control is not there" in found[27].seen
    assert "closed after 3 tokens: 200, cut" in found[61].seen
    assert "ended without [DONE]: 200 in" in found[61].seen
    assert found[69].seen.startswith("none on a whole answer, a stream")


# Replicas.


def test_a_replica_writes_bare_errors_more_members_and_byte_by_byte_when_told() -> None:
    async def answer(behaviour: Behaviour, *, stream: bool = True) -> Call:
        replica = Replica("one")
        replica.behaviour = behaviour
        await replica.start()
        line = await _line(replica)
        call = await line.ask(post({"stream": stream}), limit=5.0).ending(6.0)
        line.close()
        await replica.die()
        return call

    async def run() -> None:
        bare = await answer(Behaviour(error_after=1, bare_error=True))
        assert (bare.end, bare.done, bare.error) == ("whole", False, None)
        assert bare.pieces == 2  # the role, and one word: what followed was no event
        slow = await answer(Behaviour(piece="ä😀", trickle=True))
        assert slow.ok
        more = Behaviour(said={"reasoning": "so"}, more={"x": [1]})
        for stream in (True, False):
            call = await answer(more, stream=stream)
            text = "".join(call.events) if stream else call.body.decode().replace(" ", "")
            assert call.ok
            assert '"reasoning":"so"' in text
            assert '"x":[1]' in text

    uvloop.run(run())


async def _line(replica: Replica) -> Line:
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(Line, HOST, replica.port)
    return line


def test_memory_is_flat_up_to_a_twentieth_and_a_little() -> None:
    mib = 1 << 20
    assert is_flat(100 * mib, 108 * mib)
    assert not is_flat(100 * mib, 110 * mib)
    assert moved(100 * mib, 108 * mib) == "memory went from 100.0 to 108.0 MiB"
