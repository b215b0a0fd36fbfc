"""`surgetank compare`: exit codes, one clear line for bad input, the same verdict in every form."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from surgetank import cli
from surgetank.loadtest.runfile import Run, write_run
from tests.loadtest import rehearsed

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["surgetank", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def _file(folder: Path, name: str, run: Run) -> Path:
    write_run(folder / name, run)
    return folder / name


def _run(pulse: float, seed: int) -> Run:
    return rehearsed.run(lambda at, _: pulse if 0 <= at < 14 else 0.1, jitter=0.05, seed=seed)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return _file(tmp_path, "before.json", _run(0.8, 1))


def test_worse_exits_1_and_better_0(compare: Command, tmp_path: Path, before: Path) -> None:
    slower = _file(tmp_path, "slower.json", _run(0.9, 2))
    code, out, _ = compare(before, slower)
    assert code == 1
    assert out.startswith("Worse: TTFT P95 in pulses")
    code, out, _ = compare(slower, before)
    assert code == 0
    assert out.startswith("Better: ")


def test_no_difference_exits_0(compare: Command, tmp_path: Path, before: Path) -> None:
    code, out, _ = compare(before, _file(tmp_path, "same.json", _run(0.8, 3)))
    assert code == 0
    assert out.startswith("No difference beyond the threshold")


@pytest.mark.parametrize("threshold", ["30%", "0.3", " 30 %"])
def test_the_threshold_is_the_users(
    compare: Command, tmp_path: Path, before: Path, threshold: str
) -> None:
    slower = _file(tmp_path, "slower.json", _run(0.9, 2))
    assert compare(before, slower, "--threshold", threshold)[0] == 0


def test_too_few_cycles_exit_0_without_a_verdict(
    compare: Command, tmp_path: Path, before: Path
) -> None:
    short = replace(_run(5.0, 2), done=150.0)
    code, out, _ = compare(before, _file(tmp_path, "short.json", short))
    assert code == 0
    assert out.startswith("Not enough: 3 whole cycles")


def test_json_tells_what_the_text_tells(compare: Command, tmp_path: Path, before: Path) -> None:
    slower = _file(tmp_path, "slower.json", _run(0.9, 2))
    _, text, _ = compare(before, slower)
    code, out, _ = compare(before, slower, "--json")
    told = json.loads(out)
    assert code == 1
    assert told["verdict"] == "worse"
    assert told["line"] in " ".join(text.split())
    assert told["names"] == [str(before), str(slower)]
    assert [f["key"] for f in told["figures"] if f["decides"]] == [
        "ttft_p95_pulse",
        "recovery",
        "attainment",
        "unserved",
    ]


def test_a_page_is_written(compare: Command, tmp_path: Path, before: Path) -> None:
    code, out, _ = compare(before, before, "--html", tmp_path / "page.html")
    assert code == 0
    assert "Page with charts" in out
    assert "no difference" in (tmp_path / "page.html").read_text(encoding="utf-8")


def _one_line(ended: tuple[int, str, str]) -> str:
    code, out, err = ended
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_bad_input_is_one_line_and_exit_2(compare: Command, tmp_path: Path, before: Path) -> None:
    assert "none.json: cannot be read" in _one_line(compare(before, tmp_path / "none.json"))
    (tmp_path / "log.json").write_text('{"requests": 1}', encoding="utf-8")
    assert "log.json: not a run file" in _one_line(compare(before, tmp_path / "log.json"))
    assert "--threshold much" in _one_line(compare(before, before, "--threshold", "much"))
    assert "--threshold -1%" in _one_line(compare(before, before, "--threshold=-1%"))
    folder = tmp_path / "no" / "page.html"
    assert "does not exist" in _one_line(compare(before, before, "--html", folder))


def test_other_schedules_exit_2_and_say_how(compare: Command, tmp_path: Path, before: Path) -> None:
    other = _file(tmp_path, "other.json", replace(_run(0.8, 1), description={"peak": 9}))
    assert "different schedules: peak = 9 only in B" in _one_line(compare(before, other))
