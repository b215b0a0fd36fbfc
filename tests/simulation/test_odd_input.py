"""What `surgetank simulate` says to input that makes no sense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surgetank.cli import app
from surgetank.cli.simulate import _EXAMPLES
from surgetank.engine import profile, written
from surgetank.errors import InputError
from surgetank.simulation.asked import Asked, scenario, vary
from surgetank.simulation.run import simulate
from surgetank.simulation.summary import summarise
from tests.simulation.test_command import PULSE, refused


@pytest.mark.parametrize(
    "values",
    [
        "replicas=-1", "max_replicas=0", "limit=0", "seed=-1", "slots=0", "timeout=nan",
        "cold_start=inf", "cold_start=-5", "wake=inf", "metric_lag=inf", "patience=-1", "ttft=0",
        "start_failures=7", "max_in_flight=0", "clients=foo", "engine=nope", "policy=foo",
        "prompt=0", "flow.max_queued=-4", "flow.max_in_flight=0", "scale.scale_down_delay=nan",
        "flow.foo=1", "engine.a_ms=inf",
    ],
)  # fmt: skip
def test_a_sweep_says_before_it_begins_what_cannot_be(values: str, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    told = refused(*PULSE, "--policy", "static", "--vary", values, "--out", str(out))
    assert values.partition("=")[0].partition(".")[0].replace("_", "-") in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "value"), [("--cold-start", "inf"), ("--wake", "inf")])
def test_times_are_finite(option: str, value: str) -> None:
    assert f"{option} inf: must be finite" in refused(*PULSE, option, value)


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        ("flow.max_in_flight=0", "must be >= 1"),
        ("flow.queue_timeout=nan", "must be finite"),
        ("scale.scale_down_delay=inf", "must be finite"),
        ("flow.max_inflight=3", "did you mean flow.max_in_flight?"),
        ("flow.foo=3", "flow has admission, max_in_flight"),
        ("engine.kv_blocks=99999999999999999999", "must be <= 1e+09"),
    ],
)
def test_a_setting_is_held_to_its_bounds(setting: str, right: str) -> None:
    assert right in refused(*PULSE, "--set", setting)


def test_a_mistyped_policy_is_guessed() -> None:
    assert "did you mean surgetank?" in refused(*PULSE, "--policy", "surgtank")


SPLIT = """
autoscaler:
  pools:
    - {model: tiny, role: prefill, base: 1, max_replicas: 1, process: {command: "run {port}"}}
    - {model: tiny, role: decode, base: 1, max_replicas: 1, process: {command: "run {port}"}}
"""


@pytest.mark.parametrize("more", [[], ["--vary", "replicas=1", "--out", "out.parquet"]])
def test_a_policy_that_cannot_split_requests_is_told_before_another_runs(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("surgetank.yaml").write_text(SPLIT)
    arguments = [*PULSE, "-c", "surgetank.yaml", "--records", "{policy}"]
    told = refused(
        *(arguments if not more else arguments[:-2]), "--policy", "static,fifo-cap", *more
    )
    assert told == (
        "--policy fifo-cap: the pool tiny/prefill serves one half of a request, and it sends a"
        " whole one to each replica: take surgetank or static"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["surgetank.yaml"]


@pytest.mark.parametrize("option", ["--records", "--journal", "--html"])
def test_a_file_of_single_runs_is_not_silently_left_out_of_a_sweep(option: str) -> None:
    told = refused(*PULSE, "--vary", "replicas=1", "--out", "x.parquet", option, "x")
    assert told.startswith(f"{option}: is of single runs")


@pytest.mark.parametrize("option", ["--records", "--journal", "--html"])
def test_a_folder_is_no_file_to_write(option: str) -> None:
    assert "is a folder" in refused(*PULSE, "--policy", "static", option, ".")


@pytest.mark.parametrize("more", [["--format", "csv"], ["--column", "a=b"], ["--workers", "2"]])
def test_an_option_that_would_change_nothing_is_refused(more: list[str]) -> None:
    assert more[0] in refused(*PULSE, *more)


def test_a_stray_time_stamp_is_named_instead_of_months_simulated(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrived,prompt_tokens,output_tokens\n0,9,9\n1,9,9\n1e7,9,9\n")
    told = refused(str(log), "--engine", "tiny")
    assert "between request 2 and the next: a stray time stamp?" in told


def test_goodput_of_requests_that_come_at_once_is_a_rate_one_can_believe(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrived,prompt_tokens,output_tokens\n5,9,3\n5,9,3\n")
    asked = Asked(trace=str(log), engine=("tiny-fast",), policy="passthrough")
    assert summarise(simulate(scenario(asked))).goodput_rps == 2.0


def test_a_varied_tpot_of_0_is_none_as_the_option_is() -> None:
    asked = Asked(pulse="2:12:2:6:12", engine=("tiny",))
    assert scenario(vary(asked, {"tpot": "0"})).objective.tpot is None


def test_a_sweep_with_failed_cases_does_not_end_as_done(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    more = ["--policy", "static", "--vary", "replicas=1,4", "--max-replicas", "2", "--workers", "1"]
    done = CliRunner().invoke(app, ["simulate", *PULSE, *more, "--out", str(out)])
    assert done.exit_code == 1
    assert "1 of 2 cases" in done.stdout


def test_the_examples_name_profiles_that_exist() -> None:
    for name in re.findall(r"--engine (\S+)", _EXAMPLES):
        profile.find(name)


def test_a_profile_of_impossible_size_is_one_line() -> None:
    text = re.sub(r"kv_blocks = \d+", f"kv_blocks = {10**20}", written.toml(profile.find("tiny")))
    with pytest.raises(InputError, match=r"x\.toml: kv_blocks = 10{20}: must be <= 1e\+09"):
        profile.parse(text, "x.toml")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--policy", "static:99999999"),
        ("--policy", "static", "--replicas", "99999999"),
        ("--policy", "surgetank", "--max-replicas", "99999999"),
    ],
)
def test_more_replicas_than_a_machine_can_hold_are_refused_at_once(
    arguments: tuple[str, ...],
) -> None:
    assert "must be at most 100,000 replicas" in refused(*PULSE, *arguments)
