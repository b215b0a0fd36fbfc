"""Records on disk: whole lines, bounded memory, and no way for the disk to stop the caller."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surgetank.adapters.records import RecordWriter, read_records, record_line
from surgetank.errors import InputError
from surgetank.policy.record import RequestRecord


def record(number: int) -> RequestRecord:
    return RequestRecord(f"r{number}", tenant="t", arrived=float(number), status=200)


_seconds = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        RequestRecord,
        id=st.text(),
        session=st.text(st.characters(exclude_categories=())),
        stream=st.booleans(),
        arrived=_seconds,
        first_token=st.none() | _seconds,
        max_tokens=st.none() | st.integers(1, 2**31),
        client_retry=st.integers(0, 9),
        predicted_wait=st.none() | _seconds,
        position=st.none() | st.integers(0, 300),
    )
)
@example(RequestRecord("", arrived=0.0))
def test_the_fast_line_is_the_record_s_own_line_as_json(made: RequestRecord) -> None:
    assert json.loads(record_line(made)) == json.loads(made.to_line())


def test_records_written_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = RecordWriter(path)
    for number in range(1000):
        writer.write(record(number).to_line())
    assert writer.close()
    assert (writer.written, writer.dropped, writer.errors, writer.buffered) == (1000, 0, 0, 0)
    reader = read_records(path)
    assert list(reader) == [record(number) for number in range(1000)]
    assert (reader.read, reader.bad) == (1000, 0)


def test_the_file_is_for_its_owner_only_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for number in range(2):
        writer = RecordWriter(path)
        writer.write(record(number).to_line())
        assert writer.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [r.id for r in read_records(path)] == ["r0", "r1"]


def test_a_directory_gets_a_file_of_its_own(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write(record(1).to_line())
    assert writer.close()
    assert writer.path.parent == tmp_path
    assert str(os.getpid()) in writer.path.name
    assert [r.id for r in read_records(writer.path)] == ["r1"]


@pytest.mark.parametrize("whole", [record(0).to_line() + "\n", ""])
@pytest.mark.parametrize("torn", ["{", '{"v"', '{"v":', '{"v":1,"id":"r1","ten'])
def test_a_torn_last_line_is_cut_away_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: str, torn: str
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(whole + torn)
    writer = RecordWriter(path)
    writer.write(record(2).to_line())
    assert writer.close()
    assert path.read_text() == whole + record(2).to_line() + "\n"
    assert "ended inside a line, which was cut away" in caplog.text


def test_what_is_no_torn_record_is_kept_and_continued_on_a_fresh_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("notes of mine, without a newline")
    writer = RecordWriter(path)
    writer.write(record(2).to_line())
    assert writer.close()
    reader = read_records(path)
    assert [r.id for r in reader] == ["r2"]
    assert reader.bad == 1
    assert reader.first_bad.startswith(f"{path} line 1: ")


def test_a_torn_line_of_a_file_that_another_writes_is_left_alone(tmp_path: Path) -> None:
    """It may be half a write of the other one."""
    path = tmp_path / "records.jsonl"
    first = RecordWriter(path)
    path.write_text('{"v":1,"id":"r1","ten')
    second = RecordWriter(path)
    second.write(record(2).to_line())
    assert [first.close(), second.close()] == [True, True]
    assert path.read_text() == '{"v":1,"id":"r1","ten\n' + record(2).to_line() + "\n"


def test_a_line_stays_one_line_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = RecordWriter(path)
    writer.write("a\nb")
    writer.write("lone surrogate \udc80")
    assert writer.close()
    assert path.read_bytes() == b"a b\nlone surrogate ?\n"


def test_a_path_that_cannot_be_opened_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened for records: No such file"):
        RecordWriter(tmp_path / "missing" / "records.jsonl")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(read_records(tmp_path / "missing.jsonl"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_drops_and_counts_and_never_raises() -> None:
    writer = RecordWriter("/dev/full")
    for number in range(100):
        writer.write(record(number).to_line())
    assert not writer.close()
    assert (writer.written, writer.dropped) == (0, 100)
    assert writer.errors >= 1
    assert writer.last_error == "/dev/full: No space left on device"


def test_a_renamed_file_is_left_alone_and_a_deleted_one_made_again(tmp_path: Path) -> None:
    path, old = tmp_path / "records.jsonl", tmp_path / "records.1.jsonl"
    writer = RecordWriter(path)
    writer.write("one")
    path.rename(old)
    writer.write("two")
    writer.reopen()
    _until(path.exists)
    writer.write("three")
    _until(lambda: path.read_text() == "three\n")
    path.unlink()
    writer.reopen()
    _until(path.exists)
    writer.write("four")
    assert writer.close()
    assert (old.read_text(), path.read_text()) == ("one\ntwo\n", "four\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (writer.written, writer.dropped) == (4, 0)


def test_a_path_that_cannot_be_opened_anew_costs_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, moved = tmp_path / "logs", tmp_path / "moved"
    folder.mkdir()
    writer = RecordWriter(folder / "records.jsonl")
    folder.rename(moved)
    writer.reopen()
    _until(lambda: writer.errors == 1)
    writer.write("kept")
    writer.close()
    assert (moved / "records.jsonl").read_text() == "kept\n"
    assert "the file opened before is kept" in caplog.text


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_lost_lines_are_logged_once_per_error(caplog: pytest.LogCaptureFixture) -> None:
    writer = RecordWriter("/dev/full")
    for number in range(1, 4):
        writer.write("x")
        _until(lambda number=number: writer.dropped == number)  # type: ignore[misc]  # bound early
    writer.close()
    assert [r.getMessage() for r in caplog.records] == [
        "/dev/full: No space left on device, so lines are lost"
    ]


def test_a_full_buffer_is_logged_once_and_so_is_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RecordWriter(tmp_path / "records.jsonl", max_buffered=10)
    for _ in range(50):
        writer.write("x")
    assert writer.close()
    lost = writer.dropped
    assert lost >= 30
    first, *_, last = [r.getMessage() for r in caplog.records]
    assert first.endswith("the disk is too slow, so lines are lost")
    assert last.endswith(f"written to again; {lost} lines were lost in all")


def test_lines_that_are_lost_for_long_are_told_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, now = tmp_path / "pipe", [0.0]
    os.mkfifo(pipe)  # nobody reads
    writer = RecordWriter(pipe, max_buffered=0, clock=lambda: now[0])
    for second in range(200):
        now[0] = float(second)
        writer.write("x")
    assert [message.rpartition(": ")[2] for message in caplog.messages] == [
        "the disk is too slow, so lines are lost",
        "61 lines were lost so far",
        "121 lines were lost so far",
        "181 lines were lost so far",
    ]
    assert writer.close()


def test_after_a_failure_writing_goes_on_with_whole_lines(tmp_path: Path) -> None:
    """A file-size limit stands for a disk that fills up inside a line and gets room again."""
    script = """
import resource, signal, sys
from surgetank.adapters.records import RecordWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (250, resource.RLIM_INFINITY))
writer = RecordWriter(sys.argv[1])
for _ in range(4):
    writer.write("x" * 99)
while writer.dropped < 2:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write("y" * 99)
writer.close()
print(writer.written, writer.dropped, writer.errors)
"""
    path = tmp_path / "records.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["3", "2", "1"]
    assert [line.rpartition(": ")[2] for line in done.stderr.splitlines()] == [
        "File too large, so lines are lost",
        "written to again; 2 lines were lost in all",
    ]
    assert path.read_text().split("\n") == ["x" * 99, "x" * 99, "x" * 50, "y" * 99, ""]


def test_a_slow_disk_never_blocks_the_caller_and_fills_only_the_bounded_buffer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody reads: it takes 64 KB, then every write hangs
    writer = RecordWriter(pipe, max_buffered=100)
    longest = 0.0
    for _ in range(2000):
        began = time.monotonic()
        writer.write("x" * 1023)
        longest = max(longest, time.monotonic() - began)
        assert writer.buffered <= 100
    began = time.monotonic()
    assert not writer.close(timeout=0.2)
    assert time.monotonic() - began < 2
    assert longest < 1
    assert writer.dropped >= 1000
    assert f"the disk hangs at the end: {writer.dropped} lines were lost" in caplog.text
    thread = next(t for t in threading.enumerate() if t.name == "records")
    with pipe.open("rb") as reader:  # the disk comes back: the thread ends by itself
        while thread.is_alive():
            reader.read1(1 << 16)
            thread.join(0.001)


def test_lines_after_close_are_counted_as_dropped(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "records.jsonl")
    assert writer.close()
    writer.write("late")
    assert writer.dropped == 1
    assert writer.close()


def test_a_killed_writer_leaves_at_most_one_torn_line(tmp_path: Path) -> None:
    script = """
import sys
from surgetank.adapters.records import RecordWriter
from surgetank.policy.record import RequestRecord
writer = RecordWriter(sys.argv[1])
number = 0
while True:
    number += 1
    writer.write(RequestRecord(f"r{number}", tenant="x" * 200).to_line())
    if writer.written > 2000:
        print("written", flush=True)
"""
    path = tmp_path / "records.jsonl"
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
    *whole, _ = path.read_bytes().split(b"\n")
    assert len(whole) > 2000
    for line in whole:
        RequestRecord.from_line(line)
    writer = RecordWriter(path)
    writer.write(record(1).to_line())
    assert writer.close()
    reader = read_records(path)
    assert len(list(reader)) == len(whole) + 1
    assert reader.bad == 0


def test_bad_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    lines = [
        record(0).to_line().encode(),
        b"",
        b"not json",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id": 7}',
        b'{"id": "' + b"x" * (3 << 20) + b'"}',  # longer than any record
        record(1).to_line().encode(),
    ]
    path.write_bytes(b"\n".join(lines))
    reader = read_records(path)
    assert [r.id for r in reader] == ["r0", "r1"]
    assert (reader.read, reader.bad) == (2, 5)
    assert reader.first_bad.startswith(f"{path} line 3: ")
