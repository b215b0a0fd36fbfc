"""`surgetank profiles` and `surgetank calibrate`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surgetank.engine import profile as profiles
from surgetank.policy.record import RequestRecord
from tests.cli.command import surgetank


def test_the_list_names_every_profile_and_json_holds_the_same() -> None:
    listed = json.loads(surgetank("profiles", "--json").stdout)
    assert [row["name"] for row in listed] == profiles.builtin_names()
    text = surgetank("profiles", "--match", "h100-llama-3.1-70b").stdout
    row = next(row for row in listed if row["name"] == "h100-llama-3.1-70b-bf16-tp4")
    line = next(line for line in text.splitlines() if line.startswith(row["name"]))
    assert f"{row['kv_tokens']:,}" in line
    assert f"{row['decode_step_ms']:.1f} ms" in line


def test_what_is_written_out_is_accepted_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(surgetank("profiles", "h100-qwen3-32b-fp8-tp1").stdout, encoding="utf-8")
    assert profiles.find(str(file)) == profiles.find("h100-qwen3-32b-fp8-tp1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profiles", "h100"], "no engine profile `h100`"),
        (["calibrate", "absent.jsonl"], "absent.jsonl"),
        (["calibrate", "empty.jsonl"], "0 of 0 records can be used: must be >= 24"),
        (["calibrate", "empty.jsonl", "--like", "nope"], "no engine profile `nope`"),
        (["calibrate", "empty.jsonl", "-o", "no/where.toml"], "no/where.toml: no is no directory"),
        (["calibrate", "http://127.0.0.1:9"], "http://127.0.0.1:9: no engine answers there"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty.jsonl").touch()
    done = surgetank(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_records_of_one_pace_give_a_profile_of_that_pace(tmp_path: Path) -> None:
    """100 requests, each alone on its engine: 0.1 ms a prompt token and 10 ms a step."""
    lines = []
    for i in range(100):
        prompt, output = 100 + 37 * i % 900, 8 + i % 50
        at = 1e9 + 10.0 * i
        first = at + 0.010 + prompt * 1e-4
        record = RequestRecord(
            id=str(i),
            arrived=at,
            stream=True,
            first_token=first,
            ended=first + 0.010 * (output - 1),
            prompt_tokens=prompt,
            output_tokens=output,
            outcome="completed",
        )
        lines.append(record.to_line() + "\n")
    (tmp_path / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    done = surgetank("calibrate", "records.jsonl", "--json", "-o", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["step"]["a_ms"] == pytest.approx(10, rel=0.05)
    assert told["step"]["b_us"] == pytest.approx(100, rel=0.05)
    assert told["held_out"]["ttft_mean"] < 0.03
    assert told["held_out"]["tpot_mean"] < 0.03
    written = profiles.find(str(tmp_path / "mine.toml"))
    assert written.a_ms == told["step"]["a_ms"]
    assert "held-out" in written.error
