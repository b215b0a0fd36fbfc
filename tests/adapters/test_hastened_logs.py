"""A large log is read sooner, to the same: rows, bad rows, lines, reasons, notes."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surgetank.adapters import logbytes, logs
from surgetank.adapters.arrow_cells import ArrowSplitter
from surgetank.errors import InputError
from surgetank.traffic.formats import cells
from surgetank.traffic.formats.alike import AlikeSplitter, Shape
from surgetank.traffic.formats.assembly import Assembly
from surgetank.traffic.formats.nginx import JsonLog
from surgetank.traffic.formats.reading import Account, ReadOptions
from surgetank.traffic.formats.registry import detect
from surgetank.traffic.formats.typed import Layout
from surgetank.traffic.trace import Batch, Labels, Source

T0 = 1_796_006_832
ROWS = 1000
NEVER = 1 << 60
HEADERS = {
    "unix.csv": "timestamp,tenant,prompt_tokens,output_tokens,duration,status",
    "iso.csv": "started_at;team;input_tokens;output_tokens",
    "ended.csv": "end_time,latency_ms,model",
    "relative.csv": "arrived_at,num_prefill_tokens,num_decode_tokens",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
}


def csv_row(name: str, i: int) -> str:
    stamp = T0 + i * 0.37
    iso = str(np.datetime64(int(stamp * 1e6), "us")).replace("T", " ")
    words = {
        "unix.csv": f"{stamp:.3f},t{i % 7},{i % 900},{i % 50},{i % 13}.25,{(200, 429, 499)[i % 3]}",
        "iso.csv": f"{iso};équipe {i % 5};{i};{i % 77}",
        "ended.csv": f"{stamp:.6f},{i % 400}.5,llama-{i % 2}",
        "relative.csv": f"{i * 0.37:.6f},{i % 300},{i % 9}",
        "azure.csv": f"{iso}8,{i % 5000},{i % 31}",
        "burst.csv": f"{i},ChatGPT,{i % 400},{i % 5},{i},Conversation log",
    }
    return words[name]


def json_row(i: int, kind: str) -> str:
    if kind == "nginx":
        took = f"{i % 90 / 7:.3f}"
        row: dict[str, Any] = {
            "msec": f"{T0 + i * 0.37:.3f}",
            "request_method": "POST" if i % 40 else "GET",
            "request_uri": "/v1/completions" if i % 30 else f"/metrics?{i}",
            "status": str((200, 429, 499)[i % 3]),
            "request_time": took,
            "upstream_header_time": "-" if i % 3 else took,
            "upstream_response_time": f"60.0, {took}" if i % 100 == 7 else took,
            "http_x_tenant_id": ("a", "-", "", "客户")[i % 4],
        }
    else:
        row = {
            "ts": T0 + i * 0.25 if kind == "unix" else f"2026-11-30T10:{i // 60:02}:{i % 60:02}.5Z",
            "user": f"客户{i % 5}",
            "prompt_tokens": i % 700,
            "output_tokens": None if i % 90 == 3 else i % 80,
            "status": 200 if kind == "unix" else "completed",
            "note": "x" * (i % 20),
        }
    return json.dumps(row, ensure_ascii=False)


def csv_log(name: str) -> list[str]:
    return [HEADERS[name], *(csv_row(name, i) for i in range(ROWS))]


def json_log(kind: str) -> list[str]:
    return [json_row(i, kind) for i in range(ROWS)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logbytes, "BLOCK", 1 << 12)
    monkeypatch.setattr(logs, "BLOCK", 1 << 12)
    monkeypatch.setattr(logs, "HEAD_BYTES", 1 << 12)


def read(path: Path, after: int, **options: Any) -> tuple[list[Batch], Source | str]:
    """Read a log; after so many bytes it is read the fast way."""
    batches: list[Batch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "WORTH_HASTENING", after)
        try:
            with logs.open_log(path, ReadOptions(**options)) as log:
                batches = list(log)
                return batches, log.source
        except InputError as error:
            return batches, str(error)


def assert_same(path: Path, **options: Any) -> Source | str:
    """Both ways give the same batches and the same account."""
    slow, account = read(path, NEVER, **options)
    fast, same = read(path, 0, **options)
    assert same == account
    assert_equal(fast, slow)
    return account


def assert_equal(fast: list[Batch], slow: list[Batch]) -> None:
    assert len(fast) == len(slow)
    for one, other in zip(fast, slow, strict=True):
        for field in fields(Batch):
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert (a is None) == (b is None), field.name
            if isinstance(b, Labels):
                assert a.names == b.names
                a, b = a.codes, b.codes
            if b is not None:
                assert a.dtype == b.dtype
                assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), field.name


class Counted:
    """How many blocks the fast way took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks = 0
        typed, plain = Assembly.typed, JsonLog._assemble_plain

        def counted(found: Batch | None) -> Batch | None:
            self.blocks += found is not None
            return found

        monkeypatch.setattr(Assembly, "typed", lambda *a: counted(typed(*a)))
        monkeypatch.setattr(JsonLog, "_assemble_plain", lambda *a: counted(plain(*a)))


LOGS = [*HEADERS, "unix.jsonl", "iso.jsonl", "nginx.jsonl"]


def lines_of(name: str) -> list[str]:
    return csv_log(name) if name in HEADERS else json_log(name.removesuffix(".jsonl"))


@pytest.mark.parametrize("name", LOGS)
def test_a_plain_log_is_read_the_fast_way_to_the_same_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    path = tmp_path / name
    path.write_text("\n".join(lines_of(name)) + "\n", "utf-8")
    account = assert_same(path)
    assert isinstance(account, Source)
    assert account.rows >= ROWS * 0.9
    assert account.skipped == 0
    assert counted.blocks >= 0.7 * path.stat().st_size / (1 << 12) - 2


@pytest.mark.parametrize("name", LOGS)
def test_a_packed_log_is_read_the_fast_way_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    path = tmp_path / name
    path.write_bytes(gzip.compress(("\n".join(lines_of(name)) + "\n").encode()))
    assert_same(path)
    assert counted.blocks >= 2


QUIRKS: dict[str, str] = {
    "blank": "",
    "spaces": "   ",
    "word": "no row at all",
    "comment": "# a remark",
    "open quote": '"never closed',
    "quotes": '1796006999,"a,b",3,4,5,200',
    "stray return": "1796006999\r,a,3,4,5,200",
    "zero byte": "1796006999,a\0,3,4,5,200",
    "too few": "1,2",
    "too many": "1,2,3,4,5,6,7,8,9",
    "object": '{"ts": 1796006999, "prompt_tokens": "7", "usage": {"output_tokens": 4}}',
    "twice": '{"ts": 1796006999, "ts": 1796007000, "user": "b"}',
    "two": '{"ts": 1796006999} {"ts": 1796007000}',
    "array": '[{"ts": 1796006999}, {"ts": 1796007001}]',
    "escaped": '{"ts": 1796006999, "user": "a\\u0041\\"", "prompt_tokens": 1}',
    "list": "[1, 2]",
    "cut": '{"ts": 17960',
    "NaN": '{"ts": NaN}',
}


@pytest.mark.parametrize("quirk", QUIRKS)
@pytest.mark.parametrize("name", LOGS)
def test_an_odd_line_costs_its_block_and_nothing_else(
    name: str, quirk: str, tmp_path: Path
) -> None:
    lines = lines_of(name)
    lines[500:500] = [QUIRKS[quirk]]
    lines[800:800] = [QUIRKS[quirk], QUIRKS[quirk]]
    path = tmp_path / name
    path.write_bytes("\n".join(lines).encode())  # and no newline at the end
    assert_same(path)


@pytest.mark.parametrize("name", LOGS)
def test_windows_line_ends_and_bytes_that_are_no_text_change_nothing(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    text = "\r\n".join(lines_of(name)).encode()
    path.write_bytes(b"\xef\xbb\xbf" + text)
    assert_same(path)
    middle = text.index(b"\n", len(text) // 2)
    path.write_bytes(text[: middle - 2] + b"\xff\xfe" + text[middle - 2 :])
    assert_same(path)


CELLS = ["", " ", "-", "-1", "0", "007", "1.0", "1.5", " 3 ", "1_000", "1e3", "inf", "nan", "NaN"]
CELLS += ["null", "NULL", "N/A", "+5", ".5", "5.", "0x10", "1,5", "9" * 25, "1e400", "true", "x"]
CELLS += ["1796006999", "1796006999123", "20261130104712", "2026-11-30", "2026-11-30T10:47:12.1234"]
CELLS += ["2026-11-30 10:47:12+08:00", "30/11/2026 10:47", "epoch", "infinity", "客" * 200, "a\tb"]


def fed(name: str, parts: list[list[str]], *, hastened: bool) -> tuple[list[Batch], Account | str]:
    """Read a log in parts; all but the first the fast way, if so."""
    first = "\n".join(parts[0]).encode() + b"\n"
    reader = detect(first, name).open(ReadOptions())
    batches = []
    try:
        batches.append(reader.feed(first))
        if hastened:
            logs._hasten(reader)
        batches += [reader.feed("\n".join(part).encode() + b"\n") for part in parts[1:]]
        batches.append(reader.finish())
    except InputError as error:
        return batches, str(error)
    return batches, reader.account


def assert_fed_same(name: str, parts: list[list[str]]) -> None:
    slow, account = fed(name, parts, hastened=False)
    fast, same = fed(name, parts, hastened=True)
    assert same == account
    assert_equal(fast, slow)


@pytest.mark.parametrize("name", ["unix.csv", "iso.csv", "burst.csv"])
def test_an_odd_cell_in_any_column_reads_the_same(name: str) -> None:
    separator = ";" if name == "iso.csv" else ","
    lines = csv_log(name)[:100]
    for column, cell in itertools.product(range(HEADERS[name].count(separator) + 1), CELLS):
        row = lines[70].split(separator)
        row[column] = cell
        odd = [*lines[60:70], separator.join(row), *lines[71:80]]
        assert_fed_same(name, [lines[:60], odd, lines[80:]])


VALUES: list[Any] = [*CELLS, None, True, False, 0, -1, 1.5, 1e300, 2**70, 200, "200", [], {}, [1]]
VALUES += ["0.1, 0.2", "-, 0.2", "0.1 : 0.2", "5.0", "\\", '"', "a\nb"]


@pytest.mark.parametrize("kind", ["unix", pytest.param("iso", marks=pytest.mark.heavy), "nginx"])
def test_an_odd_value_under_any_key_reads_the_same(kind: str) -> None:
    lines = json_log(kind)[:60]
    for key, value in itertools.product(json.loads(lines[0]), VALUES):
        row = json.dumps(json.loads(lines[30]) | {key: value}, ensure_ascii=False)
        odd = [*lines[20:30], row, *lines[31:40]]
        assert_fed_same("a.jsonl", [lines[:20], odd, lines[40:]])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(LOGS),
    changes=st.lists(
        st.tuples(
            st.integers(60, ROWS - 1),
            st.floats(0, 1),
            st.integers(0, 3),
            st.text('0123456789.,;:-+eE"{}[]\\ \r\n\0xué', max_size=4),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_whatever_is_damaged_both_ways_agree(
    name: str, changes: list[tuple[int, float, int, str]], tmp_path: Path
) -> None:
    lines = lines_of(name)
    for row, part, removed, text in changes:
        line = lines[row]
        at = int(part * len(line))
        lines[row] = line[:at] + text + line[at + removed :]
    path = tmp_path / name
    path.write_bytes("\n".join(lines).encode())
    assert_same(path)


def test_options_hold_on_the_fast_way(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(csv_log("unix.csv")) + "\n", "utf-8")
    assert_same(path, columns={"ended_at": "timestamp", "tenant": "2"})
    assert_same(path, columns={"arrived": "timestamp", "duration": "duration:ms"})
    assert_same(path, columns={"arrived": "timestamp", "ended_at": "timestamp"})
    assert_same(path, time_unit="ms", start=5.0)
    rows = [json_row(i, "unix").replace("note", "prompt_chars") for i in range(ROWS)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows) + "\n", "utf-8")
    assert_same(path, estimate_tokens=True, columns={"session": "user"})
    path.write_text("\n".join(json_log("nginx")) + "\n", "utf-8")
    assert_same(path, columns={"duration": "request_time:ms", "tenant": "status"})


def test_arrow_takes_no_number_that_python_reads_otherwise() -> None:
    taken = 0
    splitter = ArrowSplitter(Layout(2, ",", [(0, "number"), (1, "name")]))
    for text in map("".join, itertools.product("01.-+e_ nx", repeat=3)):
        found = splitter.split(f"{text},a\n".encode(), 1)
        if found is not None:
            assert cells.counts(found[0])[0] == cells.counts([text])[0]  # type: ignore[arg-type] # numbers
            assert found[0] == np.array([float(text)])
            taken += 1
    assert taken > 50


@settings(max_examples=100)
@given(st.decimals(0, 10**12, allow_nan=False, places=None) | st.floats(0, 1e15))
def test_numbers_of_alike_lines_are_those_of_python(number: Any) -> None:
    text = format(number, "f")
    shape = Shape.of(b'{"a":"1","b":1}')
    assert shape is not None
    splitter = AlikeSplitter(shape, [("a", "number"), ("b", "number")])
    found = splitter.split(f'{{"a":"{text}","b":{text}}}\n'.encode(), 1)
    if found is not None:
        assert found[0] == found[1] == np.array([float(text)])
    else:
        assert len(text) > 15 or text.endswith(".") or text.startswith("00")
