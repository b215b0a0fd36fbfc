"""`surgetank forecast`, as its user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from surgetank.cli import app
from surgetank.traffic import arrivals


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens,tenant"]
    streams = {
        "量化": arrivals.pulse(rng, 1.0, 6.0, 20.0, 60.0, 900.0),
        "web": arrivals.poisson(rng, 3.0, 900.0),
    }
    both = sorted((t, name) for name, times in streams.items() for t in times.tolist())
    rows += [f"{t:.3f},100,20,{name}" for t, name in both]
    path = tmp_path_factory.mktemp("forecast") / "log.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_text_json_and_page_tell_the_same(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["forecast", str(log), "--horizon", "20", "--step", "2"]
    told = CliRunner().invoke(app, [*arguments, "--json", "--html", str(page)])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["source"]["rows"] == len(log.read_text(encoding="utf-8").splitlines()) - 1
    mix = next(f for f in found["all"]["forecasters"] if f["name"] == "surgetank")
    assert 0.85 <= mix["coverage"] <= 1.0
    assert {t["name"] for t in found["tenants"]} == {"量化", "web"}
    rhythm = next(f for f in found["all"]["forecasters"] if f["name"].startswith("season: "))
    assert float(rhythm["name"].split()[1]) == pytest.approx(60.0, rel=0.01)
    last = next(f for f in found["all"]["forecasters"] if f["name"] == "last value")
    assert rhythm["pinball"] < last["pinball"]  # the pulse was found in the first half
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 0
    assert f"{mix['coverage']:.1%}".replace("%", " %") in text.stdout
    assert "量化" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--of", "words"], "--of words: must be one of requests, prompt-tokens, output-tokens"),
        (["--step", "70"], "--step 70: must be at most the horizon of 60 s"),
        (["--horizon", "500"], "give a shorter --horizon or --step"),
        (["--horizon", "1e9"], "s long: too short for a horizon of 1e+09 s; give a longer log"),
        (["--horizon", "inf"], "too short for a horizon of inf s"),
        (["--models", "oracle"], "--models oracle: must be of statsforecast, prophet"),
    ],
)
def test_what_cannot_be_is_one_clear_line(log: Path, arguments: list[str], why: str) -> None:
    told = CliRunner().invoke(app, ["forecast", str(log), *arguments])
    assert told.exit_code != 0
    assert why in str(told.exception)


def test_a_log_too_long_for_its_horizon_is_told_what_to_give(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{t:.3f},100,20" for day in (0, 40) for t in np.arange(50.0) + 86_400.0 * day]
    path.write_text("arrived,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    told = CliRunner().invoke(app, ["forecast", str(path)])
    assert told.exit_code != 0
    assert str(told.exception).startswith("the log is 40 days long, which is over 20,000 horizons")
    assert "longer --horizon" in str(told.exception)
