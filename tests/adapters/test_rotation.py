"""Files of records that are cut off by size and age, and bounded in all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from surgetank.adapters.records import RecordWriter, read_records
from surgetank.adapters.rotation import Rotation, cut_files, cut_off, keep_within
from surgetank.policy.record import RequestRecord


def line(number: int) -> str:
    return RequestRecord(f"r{number:04}", arrived=1.0, tenant="x" * 60).to_line()


@pytest.fixture(autouse=True)
def without_waiting_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surgetank.adapters.records._BATCH_SECONDS", 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, numbers: range, rotation: Rotation, clock: Clock | None = None) -> None:
    """Write each line in a batch of its own."""
    writer = RecordWriter(path, rotation=rotation, clock=clock or Clock())
    for number in numbers:
        before = writer.written
        writer.write(line(number))
        while writer.written == before:
            pass
    assert writer.close()
    assert (writer.written, writer.dropped) == (len(numbers), 0)


@pytest.mark.parametrize(
    ("rotation", "size", "more", "age", "due"),
    [
        (Rotation(), 10**12, 1, 10**9, False),
        (Rotation(file_bytes=100), 60, 40, 0.0, False),
        (Rotation(file_bytes=100), 60, 41, 0.0, True),
        (Rotation(file_bytes=100), 0, 500, 0.0, False),
        (Rotation(file_age=60.0), 1, 0, 59.9, False),
        (Rotation(file_age=60.0), 1, 0, 60.0, True),
        (Rotation(file_age=60.0), 0, 1, 99.0, False),
    ],
)
def test_a_file_is_cut_off_by_size_and_by_age(
    *, rotation: Rotation, size: int, more: int, age: float, due: bool
) -> None:
    assert rotation.due(size, more, age) is due


def test_no_line_is_lost_or_parted_where_files_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = RecordWriter(path, rotation=Rotation(file_bytes=4096))
    for number in range(500):
        writer.write(line(number))
        if number % 20 == 0:
            while writer.buffered:
                pass
    assert writer.close()
    files = [*cut_files(path), path]
    assert len(files) >= 10
    assert all(file.stat().st_size <= 4096 for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert sorted(tmp_path.glob("records*.jsonl"), key=lambda f: f.name) == sorted(files)
    found = [record.id for file in files for record in read_records(file)]
    assert found == [f"r{number:04}" for number in range(500)]


def test_the_oldest_files_go_when_all_are_too_large(tmp_path: Path) -> None:
    path, other = tmp_path / "records.jsonl", tmp_path / "records-mine.jsonl"
    other.write_text("x" * 9000)
    rotation = Rotation(file_bytes=300, total_bytes=1000)
    write(path, range(20), rotation)
    files = [*cut_files(path), path]
    assert sum(file.stat().st_size for file in files) <= 1000 + 300
    kept = [record.id for file in files for record in read_records(file)]
    assert kept == [f"r{number:04}" for number in range(20 - len(kept), 20)]
    assert 6 <= len(kept) < 20
    assert other.exists()  # what was not cut off here is not ours to remove


def test_age_counts_from_when_the_file_was_begun(tmp_path: Path) -> None:
    path, clock = tmp_path / "records.jsonl", Clock()
    writer = RecordWriter(path, rotation=Rotation(file_age=3600.0), clock=clock)
    for number, later in enumerate((0.0, 3599.0, 1.0, 3599.0, 1.0)):
        clock.now += later
        before = writer.written
        writer.write(line(number))
        while writer.written == before:
            pass
    assert writer.close()
    ids = [[r.id for r in read_records(file)] for file in [*cut_files(path), path]]
    assert ids == [["r0000", "r0001"], ["r0002", "r0003"], ["r0004"]]


def test_names_differ_within_one_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_796_000_000_123_000_000)
    path = tmp_path / "records.jsonl"
    for number in range(3):
        path.write_text(str(number))
        with path.open() as file:
            cut_off(path, file.fileno())
    assert [f.read_text() for f in cut_files(path)] == ["0", "1", "2"]
    assert cut_files(path)[0].name == "records-20261130T005320123Z.jsonl"


def test_a_file_that_another_process_cut_off_is_not_cut_twice(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("old")
    fd = os.open(path, os.O_RDONLY)
    cut_off(path, fd)
    path.write_text("new, of the other process")
    cut_off(path, fd)
    os.close(fd)
    assert path.exists()
    assert len(cut_files(path)) == 1


def test_two_processes_that_write_one_file_lose_nothing_when_each_cuts_it(tmp_path: Path) -> None:
    """As while one gateway hands over to the next."""
    path = tmp_path / "records.jsonl"
    writers = [RecordWriter(path, rotation=Rotation(file_bytes=4096)) for _ in range(2)]
    for number in range(300):
        writers[number % 2].write(line(number))
        if number % 10 == 0:
            while any(writer.buffered for writer in writers):
                pass
    assert [writer.close() for writer in writers] == [True, True]
    files = [*cut_files(path), path]
    found = sorted(record.id for file in files for record in read_records(file))
    assert found == [f"r{number:04}" for number in range(300)]


def test_a_folder_that_takes_no_new_name_costs_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.jsonl"

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("surgetank.adapters.records.cut_off", refuse)
    writer = RecordWriter(path, rotation=Rotation(file_bytes=100))
    for number in range(5):
        before = writer.written
        writer.write(line(number))
        while writer.written == before:
            pass
    writer.close()
    assert [r.id for r in read_records(path)] == [f"r{n:04}" for n in range(5)]
    assert writer.dropped == 0
    assert sum("Permission denied" in message for message in caplog.messages) == 1


def test_one_that_cannot_be_removed_is_left_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records.jsonl"
    stuck = tmp_path / "records-20260101T000000000Z.jsonl"
    stuck.mkdir()
    gone = tmp_path / "records-20260102T000000000Z.jsonl"
    gone.write_text("x" * 100)
    path.write_text("x" * 100)
    assert keep_within(path, 100) == 1
    assert (stuck.exists(), gone.exists(), path.exists()) == (True, False, True)
    assert f"{stuck}: cannot be removed" in caplog.text
