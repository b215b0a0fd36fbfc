"""Files that outlive the process: whole or put aside; and what was learnt in them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from surgetank.adapters.learned import Learned
from surgetank.adapters.outputlog import OutputLog
from surgetank.adapters.statedir import StateDir
from surgetank.errors import ConfigError


def test_what_was_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.write("a.json", {"x": [1, 2]})
    state.write("a.json", {"x": [3]})
    assert state.read("a.json") == {"x": [3]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "id", "lock"]
    state.close()


def test_a_value_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.write("a.json", {"x": 1})
    with pytest.raises(TypeError):
        state.write("a.json", {"x": {1, 2}})
    assert state.read("a.json") == {"x": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "id", "lock"]
    state.close()


def test_its_id_stays_over_restarts(tmp_path: Path) -> None:
    first = StateDir(tmp_path)
    first.close()
    second = StateDir(tmp_path)
    assert second.id == first.id
    second.close()


def test_a_place_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/state: cannot be used for state: Not a directory"):
        StateDir(tmp_path / "file" / "state")


@pytest.mark.parametrize("text", ["", "{torn", "[1]", "\udcff", "[" * 100_000, "7", '{"v": 99}'])
def test_a_file_of_no_use_is_put_aside_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    state = StateDir(tmp_path)
    (tmp_path / "learned.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    learned = Learned(state)
    assert learned.use("flow", lambda kept: kept) is None
    assert len(caplog.records) == 1
    assert "learned.json is not used: " in caplog.records[0].getMessage()
    assert not (tmp_path / "learned.json").exists()
    assert (tmp_path / "learned.json.unreadable").exists()
    state.close()


def test_what_was_learnt_is_there_in_the_next_life(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    learned = Learned(state)
    assert learned.use("pool m/both", lambda kept: kept) is None
    learned.save({"pool m/both": {"starts": [1.5]}, "flow": {"x": 1}})
    learned.save({"flow": {"x": 2}})
    assert state.flush()
    again = Learned(state)
    assert again.use("pool m/both", lambda kept: kept) == {"starts": [1.5]}
    assert again.use("flow", lambda kept: kept) == {"x": 2}
    state.close()


def test_a_part_that_does_not_fit_is_left_out_and_the_others_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDir(tmp_path)
    Learned(state).save({"flow": {"wrong": 1}, "pool": {"starts": [2.0]}})
    assert state.flush()
    learned = Learned(state)
    assert learned.use("flow", lambda kept: kept and kept["prompts"]) is None
    assert len(caplog.records) == 1
    assert "flow: KeyError: 'prompts'" in caplog.records[0].getMessage()
    assert learned.use("pool", lambda kept: kept["starts"]) == [2.0]
    state.close()


def test_a_stuck_disk_holds_nobody_up_and_gets_the_last_value_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDir(tmp_path)
    begun, back = threading.Event(), threading.Event()
    written: list[int] = []
    write = StateDir.write

    def stuck(self: StateDir, name: str, value: dict[str, int]) -> None:
        begun.set()
        assert back.wait(10)
        written.append(value["x"])
        write(self, name, value)

    monkeypatch.setattr(StateDir, "write", stuck)
    state.put("a.json", {"x": 0})
    assert begun.wait(10)
    for number in range(1, 1000):
        state.put("a.json", {"x": number})
    assert not state.flush(timeout=0.0)
    back.set()
    assert state.flush()
    assert written == [0, 999]
    assert state.read("a.json") == {"x": 999}
    state.close()


def test_a_full_disk_is_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").mkdir()
    state = StateDir(tmp_path / "state")
    learned = Learned(state)
    (tmp_path / "state").rename(tmp_path / "moved")
    learned.save({"flow": {}})
    assert state.flush()
    assert "learned.json was not written: No such file" in caplog.records[0].getMessage()
    state.close()


def test_output_is_cut_to_whole_newer_lines_while_it_is_written(tmp_path: Path) -> None:
    output = OutputLog(tmp_path / "logs" / "a.log", 1000)
    with os.fdopen(output.open(), "wb", buffering=0) as replica:
        for number in range(100):
            replica.write(b"line %04d of a long story\n" % number)
        output.trim()
        replica.write(b"and on\n")
    lines = output.path.read_text().splitlines()
    assert output.path.stat().st_size <= 500 + 7
    assert lines[-2:] == ["line 0099 of a long story", "and on"]
    assert all(len(line) == 25 for line in lines[:-1])
    assert output.last_words() == "and on"


def test_output_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    output = OutputLog(tmp_path / "a.log", 1000)
    with os.fdopen(output.open(), "wb", buffering=0) as replica:
        replica.write(b"x" * 999 + b"\n")
        output.trim()
    assert output.path.stat().st_size == 1000


def test_json_of_the_state_is_plain(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.write("a.json", {"x": "ä"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"x": "ä"}
    state.close()
