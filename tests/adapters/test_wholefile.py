"""A file that appears whole or not at all, and what is no file stays what it is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from surgetank.adapters.wholefile import whole_file
from surgetank.errors import InputError
from surgetank.gateway import keys
from surgetank.loadtest.sender import write_records


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    with whole_file(pipe) as file:
        file.write(b"line\n")
    reader.join(10)
    assert got == [b"line\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_records_of_a_load_test_leave_a_pipe_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=pipe.read_bytes)
    reader.start()
    write_records(pipe, [])
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def _half_written(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"new")
        raise RuntimeError


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        _half_written(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_keys_are_not_kept_in_what_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is no file"):
        keys._replace(pipe, "")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
