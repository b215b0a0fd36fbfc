"""`surgetank simulate` as its user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import surgetank
from surgetank.cli import app
from surgetank.cli.simulation_schema import schema
from surgetank.engine.skipping.compiled import MESSAGE
from surgetank.errors import InputError, SurgetankError
from surgetank.policy.record import FleetSample, RequestRecord, parse
from surgetank.simulation.summary import Summary
from tests.cli.json_schema import misfits

PULSE = ["--pulse", "2:12:2:6:12", "--engine", "tiny", "--prompt", "60", "--output", "10"]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["simulate", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["simulate", *arguments])
    assert isinstance(done.exception, SurgetankError), done.output
    return str(done.exception)


def test_policies_stand_side_by_side_on_the_same_requests() -> None:
    runs = json.loads(run(*PULSE, "--json"))["runs"]
    assert [r["policy"] for r in runs] == ["passthrough", "fifo-cap", "surgetank"]
    assert len({r["requests"] for r in runs}) == 1
    for r in runs:
        assert {"requests", "completed", "refused", "abandoned", "attainment"} <= set(r)
        assert {"goodput_rps", "replica_hours", "preemptions", "wasted_tokens"} <= set(r)
        assert {"launches", "per_tenant", "wall_s"} <= set(r)
        assert set(r["ttft"]) == set(r["tpot"]) == {"p50", "p95", "p99"}
        assert {share["phase"] for share in r["per_phase"]} == {"base", "peak", "recovery"}


def test_the_text_tells_the_numbers_of_the_json() -> None:
    shown = run(*PULSE, "--tenants", "quiet=1/s,noisy")
    one = json.loads(run(*PULSE, "--tenants", "quiet=1/s,noisy", "--json"))["runs"][0]
    lines = {line.split("  ")[0].strip(): line for line in shown.splitlines()}
    assert f" {one['requests']} " in lines["requests"]
    assert f"{one['completed']}" in lines["completed"]
    assert "quiet" in shown
    assert "recovery" in shown


def test_every_figure_of_the_json_is_documented() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "simulate.md"
    text = guide.read_text(encoding="utf-8")
    missing = [f.name for f in fields(Summary) if f"`{f.name}`" not in text]
    assert missing == []


def test_listed_replicas_and_their_slots_are_taken_from_the_configuration(tmp_path: Path) -> None:
    def ttft(slots: str) -> float:
        config = tmp_path / "surgetank.yaml"
        urls = [f"{{url: 'http://127.0.0.1:{port}'{slots}}}" for port in (1, 2, 3)]
        config.write_text(f"replicas: [{', '.join(urls)}]\n")
        told = run(*PULSE, "--policy", "static", "-c", str(config), "--json")
        (one,) = json.loads(told)["runs"]
        assert one["replica_hours"] == pytest.approx(3 * one["end_s"] / 3600)
        return float(one["ttft"]["p99"])

    assert ttft("") != ttft(", slots: 1")


def test_records_and_samples_are_those_of_a_gateway(tmp_path: Path) -> None:
    path = tmp_path / "{policy}.jsonl"
    run(*PULSE, "--records", str(path), "--policy", "surgetank,static:2", "--standby", "1")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["static-2.jsonl", "surgetank.jsonl"]
    rows = [parse(line) for line in (tmp_path / "surgetank.jsonl").read_text().splitlines()]
    kinds = [type(row) for row in rows]
    assert kinds.count(RequestRecord) > 20
    assert kinds.count(FleetSample) > 10
    assert (tmp_path / "surgetank.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_simulations_records_can_be_simulated(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    first = json.loads(run(*PULSE, "--policy", "passthrough", "--records", str(path), "--json"))
    again = json.loads(run(str(path), "--engine", "tiny", "--policy", "passthrough", "--json"))
    before, after = first["runs"][0], again["runs"][0]
    assert before["completed"] == after["completed"] == before["requests"]
    assert before["ttft"] == pytest.approx(after["ttft"])


def test_a_journal_is_written_and_decided_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run(*PULSE, "--policy", "surgetank", "--journal", str(path))
    assert json.loads(run("--replay", str(path), "--json"))["same"] is True
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"Dispatch"' in line)
    lines[at] = lines[at].replace('"Dispatch"', '"Refuse"')
    path.write_text("\n".join(lines))
    done = CliRunner().invoke(app, ["simulate", "--replay", str(path)])
    assert done.exit_code == 1
    assert f"line {at + 1} differs" in done.stdout


def test_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(*PULSE, "--html", str(page), "--tenants", "<script>,b")
    text = page.read_text()
    assert "Replicas: surgetank" in text
    assert "TTFT, P95 by arrival" in text
    assert "<script>,b" not in text
    assert len(text) < 500_000


def test_a_sweep_of_the_command_line(tmp_path: Path) -> None:
    out, file = tmp_path / "r.parquet", tmp_path / "sweep.yaml"
    file.write_text("replicas: [1, 2]\n")
    options = ["--policy", "static", "--sweep", str(file), "--out", str(out), "--workers", "1"]
    told: dict[str, Any] = json.loads(run(*PULSE, *options, "--json"))
    assert told == {"cases": 2, "done": 2, "failed": []}
    assert parquet.read_table(out)["p.replicas"].to_pylist() == ["1", "2"]


def test_settings_of_a_configuration_file_and_of_the_command_count(tmp_path: Path) -> None:
    config = tmp_path / "surgetank.yaml"
    config.write_text(
        "flow: {max_in_flight: 1, max_queued: 3}\n"
        "tiers: [{name: gold, priority: 0}]\n"
        "tenants: [{name: default, tier: gold}]\n"
        "replicas: [{url: 'http://127.0.0.1:1'}]\n"
    )
    few = json.loads(run(*PULSE, "--policy", "static", "-c", str(config), "--json"))["runs"][0]
    more = [*PULSE, "--policy", "static", "-c", str(config), "--set", "flow.max_queued=100"]
    many = json.loads(run(*more, "--json"))["runs"][0]
    assert few["refused"] > many["refused"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give a log, or --pulse"),
        (["--pulse", "1:2:3"], "base:peak:width:period"),
        ([*PULSE, "--policy", "magic"], "must be one of surgetank"),
        ([*PULSE, "--policy", "static:x"], "whole number"),
        ([*PULSE, "--clients", "angry"], "must be one of none, sdk, naive"),
        ([*PULSE, "--prompt", "uniform:5"], "--prompt uniform:5"),
        ([*PULSE, "--tenants", "a,a"], "each name once"),
        ([*PULSE, "--set", "flow.nonsense=1"], "flow.nonsense"),
        ([*PULSE, "--set", "engine.kv_blocks=1"], "engine"),
        ([*PULSE, "--vary", "nonsense=1", "--out", "x.parquet"], "not a parameter"),
        ([*PULSE, "--vary", "replicas=1"], "--out"),
        ([*PULSE, "--out", "x.parquet"], "--vary"),
        ([*PULSE, "--records", "/nowhere/at/all.jsonl", "--policy", "static"], "does not exist"),
        ([*PULSE, "--records", "r.jsonl"], "{policy}"),
        (["/nowhere/log.csv"], "/nowhere/log.csv"),
        (["--replay", "/nowhere/j.jsonl"], "--replay"),
        ([*PULSE, "--engine", "no-such-gpu"], "no-such-gpu"),
        ([*PULSE, "--replicas", "4", "--max-replicas", "2"], "max_replicas = 2"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_right(
    arguments: list[str], told: str
) -> None:
    message = refused(*arguments)
    assert told in message
    assert "\n" not in message


def test_the_json_fits_its_schema() -> None:
    for arguments in ((*PULSE, "--tenants", "quiet=1/s,noisy"), (*PULSE, "--limit", "1")):
        found = json.loads(run(*arguments, "--json"))
        assert list(misfits(found, schema())) == []
    del found["runs"][0]["goodput_rps"]
    assert list(misfits(found, schema())) == ["$.runs[0].goodput_rps: is missing"]


def test_bulk_is_taken_where_only_figures_are_wanted_and_gives_the_same() -> None:
    def figures(*more: str) -> tuple[dict[str, Any], int]:
        (one,) = json.loads(run(*PULSE, "--policy", "passthrough", "--json", *more))["runs"]
        del one["wall_s"]
        return {k: round(v, 9) if isinstance(v, float) else v for k, v in one.items()}, one.pop(
            "events"
        )

    fast, quick = figures()
    assert figures("--bulk") == (fast, quick)
    slow, events = figures("--no-bulk")
    assert quick != events
    assert slow["ttft"] == pytest.approx(fast["ttft"], rel=1e-9)
    assert {k: v for k, v in slow.items() if k in {"requests", "completed", "replica_hours"}} == {
        k: v for k, v in fast.items() if k in {"requests", "completed", "replica_hours"}
    }


def test_bulk_writes_records_too(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    run(*PULSE, "--policy", "passthrough", "--bulk", "--records", str(file))
    rows = [parse(line) for line in file.read_text().splitlines()]
    assert {type(row) for row in rows} == {RequestRecord}


def test_bulk_says_why_it_cannot_be(tmp_path: Path) -> None:
    assert "decides on every request" in refused(*PULSE, "--policy", "surgetank", "--bulk")
    journal = ("--journal", str(tmp_path / "j"))
    assert "journal" in refused(*PULSE, "--policy", "passthrough", "--bulk", *journal)


def test_a_snapshot_starts_faster_than_the_stages() -> None:
    pulse = ("--pulse", "1:40:10:30:60", "--engine", "tiny", "--policy", "surgetank")
    more = ("--max-replicas", "4", "--cold-start", "200", "--json")
    (slow,) = json.loads(run(*pulse, *more))["runs"]
    (fast,) = json.loads(run(*pulse, *more, "--snapshot", "0.5"))["runs"]
    assert fast["launches"] > 0 < slow["launches"]
    assert fast["attainment"] > slow["attainment"]


def test_the_function_gives_the_commands_figures(tmp_path: Path) -> None:
    (told,) = json.loads(run(*PULSE, "--policy", "static:2", "--json"))["runs"]
    result = surgetank.simulate(
        pulse="2:12:2:6:12", engine="tiny", prompt="60", output="10", policy="static:2"
    )
    found = json.loads(json.dumps(result.summary.to_json()))
    assert {**found, "wall_s": 0} == {**told, "wall_s": 0}
    changed = {"flow.max_queued": 1, "flow.max_in_flight": 1}
    few = surgetank.simulate(pulse="2:90:2:6:12", engine="tiny", policy="static", set=changed)
    assert few.summary.refused > 0
    with pytest.raises(InputError, match="replica: not an option"):
        surgetank.simulate(pulse="2:12:2:6:12", replica=1)
    with pytest.raises(InputError, match="decides on every request"):
        surgetank.simulate(pulse="2:12:2:6:12", bulk=True)


def test_a_policy_without_a_journal_says_so(tmp_path: Path) -> None:
    told = refused(*PULSE, "--policy", "fifo-cap", "--journal", str(tmp_path / "j.jsonl"))
    assert told == "--journal: fifo-cap is no gateway of ours: it keeps no journal"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
@pytest.mark.parametrize("more", [(), ("--vary", "replicas=1", "--out", "sweep.parquet")])
def test_the_first_run_says_that_it_compiles_and_the_second_has_it(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "surgetank", "simulate", *PULSE, "--policy", "static", *more]
    own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    said = [
        subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [run.stderr for run in said] == [f"{MESSAGE}\n", ""]
