"""`surgetank load` and `replay`: a run on a simulated replica, its files, and what stops it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from surgetank import cli
from surgetank.loadtest.runfile import read_run
from surgetank.policy.record import RequestRecord
from tests.mockengine.test_process import engine, line_of

SHORT = (
    *("--base", "4", "--peak", "30", "--width", "0.4", "--period", "1.2", "--duration", "2.4"),
    *("--prompt", "60", "--output", "8", "--max-lag", "500"),
)
REHEARSE = ("load", *SHORT)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with engine() as (_, found):
        yield found


@dataclass(frozen=True, slots=True)
class Done:
    stdout: str
    stderr: str


class Command:
    """The command line in this process: only what waits on signals needs one of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str | Path, code: int = 0) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["surgetank", *map(str, words)])
        ended: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            ended = end.code or 0
        captured = self._capsys.readouterr()
        assert ended == code, captured.err
        return Done(captured.out, captured.err)

    def refused(self, *words: str | Path) -> str:
        """The one line of a mistake."""
        done = self(*words, code=2)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        return done.stderr


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_a_run_is_reported_kept_and_drawn(run: Command, address: str, tmp_path: Path) -> None:
    out, records, page = tmp_path / "run.json", tmp_path / "records.jsonl", tmp_path / "page.html"
    done = run(
        *REHEARSE, address, "--json", "--out", out, "--records", records, "--html", page,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["requests"] == report["completed"] > 20
    assert [p["name"] for p in report["phases"]] == ["base", "pulse", "recovery"]
    assert report["sender"]["valid"] is True
    assert f"sending to {address} {report['requests']} requests" in done.stderr

    kept = read_run(out)
    assert len(kept.samples) == report["requests"]
    assert kept.summary["requests"] == report["requests"]
    assert (kept.samples.scheduled >= 0).all()
    assert (kept.samples.scheduled < 2.4).all()
    assert kept.target["model"] == "tiny"
    assert kept.target["prompt_tokens"]["counted"] == pytest.approx(
        kept.target["prompt_tokens"]["asked"], rel=0.1
    )
    assert any("queue" in row and "kv" in row for row in kept.metrics)
    assert all(-1 < row["t"] < 10 for row in kept.metrics)
    assert out.stat().st_mode & 0o777 == 0o600

    rows = [RequestRecord.from_line(line) for line in records.read_text().splitlines()]
    assert len(rows) == report["requests"]
    assert all(row.output_tokens == 8 for row in rows), "ignore_eos: outputs of the full length"
    assert "<!doctype html>" in page.read_text(encoding="utf-8")


@pytest.mark.heavy
def test_the_text_has_the_numbers_of_the_json(run: Command, address: str) -> None:
    done = run(*REHEARSE, address)
    for word in ("TTFT P95", "recovery", "Send lag", "attained"):
        assert word in done.stdout


def test_two_runs_of_one_seed_can_be_compared(run: Command, address: str, tmp_path: Path) -> None:
    files = tmp_path / "a.json", tmp_path / "b.json"
    for file in files:
        run(*REHEARSE, address, "--duration", "1.2", "--out", file)
    found = json.loads(run("compare", *files, "--json").stdout)
    assert found["verdict"] == "not enough", "one cycle is too few"
    other = tmp_path / "c.json"
    run(*REHEARSE, address, "--duration", "1.2", "--seed", "5", "--out", other)
    assert "different schedules: seed = 0 in A and 5 in B" in run.refused(
        "compare", files[0], other
    )


@pytest.mark.heavy
def test_tenants_of_a_mix_send_with_keys_of_their_own(
    run: Command, address: str, tmp_path: Path
) -> None:
    mix, keys = tmp_path / "mix.yaml", tmp_path / "keys"
    mix.write_text(
        "duration: 1\ndefaults: {prompt: 30, output: 4}\ntenants:\n"
        "  quiet: {rate: 8}\n  agents: {rate: 3, turns: 2, think: 0.1, fan_out: 2}\n"
    )
    keys.write_text("# made for this\nquiet = k1\nagents=k2\n")
    done = run("load", address, "--mix", mix, "--keys", keys, "--json", "--max-lag", "500")
    report = json.loads(done.stdout)
    assert {t["name"] for t in report["tenants"]} == {"quiet", "agents"}
    assert report["completed"] == report["requests"]


def test_a_log_is_replayed_with_its_tenants_and_sizes(
    run: Command, address: str, tmp_path: Path
) -> None:
    log, out = tmp_path / "log.csv", tmp_path / "run.json"
    rows = [f"{100 + i * 0.1},{40 + i},{i % 5 + 1},{'ab'[i % 2]}" for i in range(40)]
    log.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens,tenant", *rows]))
    run("replay", log, address, "--speed", "2", "--max-lag", "500", "--out", out)
    kept = read_run(out)
    assert kept.samples.scheduled == pytest.approx([i * 0.05 for i in range(40)], abs=1e-5)
    assert kept.samples.prompt_tokens.tolist() == [40 + i for i in range(40)]
    assert kept.samples.output_tokens.tolist() == [i % 5 + 1 for i in range(40)]
    assert [kept.samples.tenant.names[c] for c in kept.samples.tenant.codes[:2]] == ["a", "b"]


@pytest.mark.heavy
def test_bodies_of_the_user_are_sent_as_they_are(
    run: Command, address: str, tmp_path: Path
) -> None:
    bodies, records = tmp_path / "bodies.jsonl", tmp_path / "records.jsonl"
    bodies.write_text('{"model":"tiny","prompt":"one two","max_tokens":3,"ignore_eos":true}\n')
    run(
        "load", address, "--shape", "steady", "--rate", "20", "--duration", "1",
        "--bodies", bodies, "--records", records, "--max-lag", "500",
    )  # fmt: skip
    rows = [RequestRecord.from_line(line) for line in records.read_text().splitlines()]
    assert {row.route for row in rows} == {"/v1/completions"}
    assert {row.output_tokens for row in rows} == {3}


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "surgetank", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.heavy)]
)
def test_a_run_that_is_stopped_reports_what_was_done(
    number: signal.Signals, address: str, tmp_path: Path
) -> None:
    out, records = tmp_path / "run.json", tmp_path / "records.jsonl"
    words = "--shape steady --rate 20 --duration 300 --prompt 40 --output 400 --json".split(" ")  # noqa: SIM905 - as typed
    files = ("--out", str(out), "--records", str(records))
    with running("load", address, *words, *files, "--max-lag", "500") as process:
        assert process.stderr is not None
        assert "sending to" in line_of(process.stderr)
        wait_until_something_ended(address)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    report = json.loads(stdout)
    kept = read_run(out)
    assert 0 < len(kept.samples) == report["requests"]
    assert kept.done is not None
    assert kept.done < 300
    assert report["abandoned"] == 0, "what was in flight is left out, it did not leave by itself"
    sent = records.read_text().count("\n")
    assert sent > report["requests"]
    assert f"{sent - report['requests']:,} requests were in flight when it was stopped" in stderr


def wait_until_something_ended(address: str) -> None:
    """Return once the engine has generated more tokens for the run than its first looks take."""

    def ended() -> float:
        text = urllib.request.urlopen(f"{address}/metrics", timeout=10).read().decode()  # noqa: S310 - http
        rows = [line for line in text.splitlines() if "vllm:request_success_total{" in line]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    before = ended()
    for _ in range(10_000):  # each look takes a round trip
        if ended() >= before + 12:
            return
    raise AssertionError("nothing ended")


def test_nothing_is_sent_by_a_dry_run_and_an_export(run: Command, tmp_path: Path) -> None:
    plan = json.loads(run("load", *SHORT, "--dry-run", "--json").stdout)
    assert plan["requests"] > 20
    assert plan["description"]["shape"] == "pulse"
    file = tmp_path / "trace.jsonl"
    run("load", *SHORT, "--export", "guidellm", file)
    assert file.read_text().count("\n") == plan["requests"]
    again = json.loads(run("replay", file, "--dry-run", "--json").stdout)
    assert again["requests"] == plan["requests"]
    assert again["prompt_tokens"] == plan["prompt_tokens"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["load"], "give the URL of the endpoint"),
        (["load", "ftp://x"], "expected http://HOST:PORT"),
        (["load", "--width", "90", "--dry-run"], "--width = 90: must be below the period, 90"),
        (["load", "--shape", "ramp", "--time-scale", "3"], "--time-scale: shape ramp has none"),
        (["load", "--shape", "wave"], "--shape wave: must be one of"),
        (["load", "--pulse", "1:2:3", "--dry-run"], "--pulse 1:2:3: must be base:peak"),
        (["load", "--pulse", "1:2:3:9", "--base", "2"], "--base: --pulse says it already"),
        (["load", "--prompt", "many", "--dry-run"], "--prompt many: must be N"),
        (["load", "--rate", "9", "--shape", "steady", "--max-requests", "9"], "more than 9"),
        (["load", "--mix", "no.yaml"], "no.yaml: cannot be read"),
        (["load", "--from-log", "no.log"], "no.log: "),
        (["load", "http://8.8.8.8", *SHORT], "is a public address (8.8.8.8)"),
        (["load", "http://127.0.0.1:9", "--key-env", "NO_SUCH"], "--key-env NO_SUCH: the variable"),
        (["load", "http://127.0.0.1:9", "--processes", "some"], "--processes some: must be"),
        (["load", "http://127.0.0.1:9", "--out", "/no/x.json"], "--out /no/x.json: cannot be"),
        (["replay", "no.log", "http://127.0.0.1:9"], "no.log: "),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(
    run: Command, words: list[str], said: str
) -> None:
    assert said in run.refused(*words)


@pytest.mark.heavy
def test_a_key_is_read_from_the_environment_and_told_nowhere(
    run: Command, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    out = tmp_path / "run.json"
    done = run(*REHEARSE, address, "--key-env", "MY_KEY", "--out", out)
    assert "very-secret" not in done.stdout + done.stderr + out.read_text()
