"""Reports on disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from surgetank.errors import InputError
from surgetank.report.files import write_whole


def test_a_report_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_whole(file, "old")
    file.chmod(0o640)
    write_whole(file, "夜間\n")
    assert file.read_bytes() == "夜間\n".encode()
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_leaves_the_old_report(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_whole(file, "old")

    with pytest.raises(TypeError):
        write_whole(file, b"no text")  # type: ignore[arg-type] # what a defect would hand over
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("old")
    link = tmp_path / "link.html"
    link.symlink_to("real.html")
    write_whole(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real.html").read_text() == "new"


def test_a_name_that_utf8_does_not_have_is_no_reason_to_fail(tmp_path: Path) -> None:
    write_whole(tmp_path / "r", "\ud800")
    assert (tmp_path / "r").read_text() == "?"


def test_a_pipe_gets_the_text(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join(10)
    assert got == ["text"]
    assert pipe.is_fifo()


def test_a_missing_folder_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder .*nowhere does not exist: make it first"):
        write_whole(tmp_path / "nowhere" / "r.html", "")
    with pytest.raises(InputError, match="is a folder: name a file"):
        write_whole(tmp_path, "")
    with pytest.raises(InputError, match="cannot be written"):
        write_whole(tmp_path / ("x" * 300), "")
