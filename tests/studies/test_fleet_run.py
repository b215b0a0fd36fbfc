"""The second act with real processes: whole runs go by name (-m heavy), mishaps are here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import uvloop

from surgetank.adapters.child import StartError
from surgetank.adapters.records import read_records, read_samples
from surgetank.cli import demo_fleet
from surgetank.loadtest.outcome import kind_of
from surgetank.policy.request import Kind
from surgetank.studies.fleet_demo.act import SIDES, FleetAct, base_completed
from surgetank.studies.fleet_demo.measure import read_decisions
from surgetank.studies.fleet_demo.picture import svg
from surgetank.studies.fleet_demo.pulse import NOISY, QUIET, Pulse, pulse
from surgetank.studies.fleet_demo.run import View, run_fleet
from surgetank.studies.fleet_demo.setup import FleetSetup
from tests.gateway.scaled import alive, descendants

# A cold start shorter than the burst, so that its replicas come in time to be let go again.
SHORT = Pulse(base=3.0, burst=6.0, recovery=5.0, noisy_peak=24.0)
SMALL = FleetSetup(cold_start=2.0, scale_down_delay=2.0, rest_within=8.0)


def conserved(act: FleetAct) -> None:
    """Every request that was due has exactly one end, on both sides."""
    due = Counter(shot.tenant for shot in act.schedule.shots)
    for name in SIDES:
        records = act.sides[name].records
        assert Counter(record.tenant for record in records) == due
        ids = {record.id for record in records}
        assert ids == {shot.id for shot in act.schedule.shots}
        kinds = Counter((record.tenant, kind_of(record.outcome)) for record in records)
        for tenant in due:
            assert sum(kinds[tenant, kind] for kind in Kind) == due[tenant]


@pytest.mark.heavy  # half a minute: chosen by name, -m heavy
def test_a_short_burst_is_followed_with_real_processes_and_nothing_is_cut(tmp_path: Path) -> None:
    schedule = pulse(SHORT, 1)
    views: list[str] = []

    def watch(view: View) -> None:
        views.append(demo_fleet.line(view))

    kept = tmp_path / "kept"
    kept.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    act = uvloop.run(run_fleet(work, SMALL, schedule, watch, seed=1, records=kept))
    conserved(act)
    assert act.cut == 0
    done, of = base_completed(act, "plain")
    assert done == of > 0
    # A standby served, after the decision to promote it and after the onset.
    assert act.first is not None
    assert act.onset_to_standby is not None
    assert act.decision_to_standby is not None
    assert 0 < act.decision_to_standby < 10
    assert 0 < act.onset_to_standby < 15
    ours = act.sides["surgetank"]
    assert ours.replicas()["start"] == SMALL.resting
    assert ours.replicas()["peak"] == SMALL.max_replicas
    assert {kind_of(r.outcome) for r in ours.of(QUIET)} == {Kind.COMPLETED}
    # It has shrunk again, by replicas that ended their streams first.
    decisions = read_decisions((kept / "fleet-surgetank-decisions.jsonl").read_text())
    did = Counter(effect["do"] for line in decisions for effect in line["effects"])
    assert did["drain"] >= 1
    assert did["stop"] >= did["drain"]
    # The gateway's own records tell of the same requests, beside the one that warmed it up.
    own = Counter(r.tenant for r in read_records(kept / "fleet-surgetank-gateway.jsonl"))
    assert own[QUIET] + own[NOISY] == len(schedule.shots) + 1
    assert max(s.serving for s in read_samples(kept / "fleet-surgetank-gateway.jsonl")) > 1
    for path in kept.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(json.dumps(act.as_json(), allow_nan=False))["standbys_promoted"] >= 1
    assert svg(act).startswith("<svg")
    assert any(view.startswith("burst") and "plain 6" in view for view in views)
    assert views[-1].startswith("ended")


def test_a_replica_that_does_not_come_up_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    class Broken(FleetSetup):
        def command(self, port: str) -> list[str]:
            return [*super().command(port), "--speed", "0"]

    before = descendants(os.getpid())  # of other tests: a sweep's fork server stays
    with pytest.raises(StartError, match=r"^surgetank: --speed 0.0: must be > 0$"):
        uvloop.run(run_fleet(tmp_path, Broken(cold_start=1.0), pulse(SHORT, 1), lambda _: None))
    assert [pid for pid in descendants(os.getpid()) - before if alive(pid)] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_second_act_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def run() -> tuple[int, str, set[int]]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "surgetank", "demo", "--act", "2"),
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(90):
            while not (await process.stderr.readline()).startswith(b"Live page"):
                pass
            # Gateway, page, three replicas, and the plain ones: no event tells that they are there.
            while len(below := descendants(process.pid)) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            process.send_signal(number)
            said = (await process.stderr.read()).decode()
            code = await process.wait()
        return code, said, below

    code, said, below = asyncio.run(run())
    assert code == 130
    assert said.endswith("surgetank: interrupted; everything it started has ended\n")
    assert [pid for pid in below if alive(pid)] == []
    assert not list(tmp_path.iterdir())


def test_a_bad_log_is_told_before_anything_is_started(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,tokens\n")
    done = subprocess.run(
        [sys.executable, "-m", "surgetank", "demo", "--trace", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    expected = "line 1: expected TIMESTAMP,ContextTokens,GeneratedTokens"
    assert done.stderr == f"surgetank: {path} {expected}\n"


@pytest.mark.heavy
def test_the_whole_demo_keeps_the_quiet_tenant_at_no_more_replica_seconds(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "surgetank", "demo", "--json", "--records", str(kept)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert set(out) == {"version", "act1", "act2"}
    act = out["act2"]
    assert act["trusted"], "this machine is too busy for an acceptance run"
    ours, plain = act["surgetank"], act["plain"]
    assert ours["replica_seconds"] <= plain["replica_seconds"]
    quiet, other = (side["tenants"][QUIET]["attainment"] for side in (ours, plain))
    assert quiet >= 0.99
    assert other < quiet
    assert ours["tenants"][NOISY]["burst_share"] >= 0.2
    for tenant in (QUIET, NOISY):
        base = plain["tenants"][tenant]["phases"]["base"]
        assert base["completed"] == base["requests"]
    assert act["onset_to_standby_s"] <= 7
    assert act["decision_to_standby_s"] <= 1
    assert act["onset_to_refilled_s"] is not None
    assert act["cut_by_scale_down"] == 0
    assert ours["replicas"] == {"start": 3, "peak": 6, "end": 3}
    assert (kept / "fleet.svg").read_text().startswith("<svg")
