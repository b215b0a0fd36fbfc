"""JSON lines: guessed keys, several objects on a line, other writers' JSON, and what is refused."""

from __future__ import annotations

import json

import pytest

from surgetank.errors import InputError
from surgetank.traffic.formats.reading import LONGEST_LINE, ReadOptions, UnreadableError
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reads import listed, names, read

AT = 1796006832.0  # 2026-11-30 02:47:12 UTC


def test_the_usual_keys_need_no_mapping() -> None:
    row = {
        "timestamp": "2026-11-30T02:47:12Z",
        "tenant": "team-a",
        "model": "qwen",
        "session_id": 17,
        "prompt": "never kept",
        "usage": {"prompt_tokens": 10, "completion_tokens": 20},
        "latency_ms": 1500,
        "ttft": 0.25,
        "status": 200,
    }
    batch, reader = read(json.dumps(row).encode())
    assert batch.arrived.tolist() == [AT]
    assert listed(batch.prompt_tokens) == [10]
    assert listed(batch.output_tokens) == [20]
    assert listed(batch.duration) == [1.5]
    assert listed(batch.ttft) == [0.25]
    assert listed(batch.ended) == [Ended.COMPLETED]
    assert (names(batch.tenant), names(batch.model), names(batch.session)) == (
        ["team-a"],
        ["qwen"],
        ["17"],
    )
    assert "never kept" not in repr((batch, reader.account))


@pytest.mark.parametrize(
    "text",
    [
        '{"t":1,"in":2}\n{"t":2,"in":3}\n{"t":3,"in":4}',
        '{"t":1,"in":2}{"t":2,"in":3} {"t":3,"in":4}',
        '{"t":1,"in":2},{"t":2,"in":3},{"t":3,"in":4}\n',
        '[{"t":1,"in":2},{"t":2,"in":3},{"t":3,"in":4}]',
        '[\n{"t":1,"in":2},\n{"t":2,"in":3},\n{"t":3,"in":4}\n]\n',
        '[{"t":1,"in":2},\n{"t":2,"in":3},\n{"t":3,"in":4}]\n',
        '\x1e{"t":1,"in":2}\n\x1e{"t":2,"in":3}\n\x1e{"t":3,"in":4}\n',
        '{"t":1,"in":2}\r\n\r\n{"t":"2","in":"3"}\r\n{"t":3.0,"in":4.0}\r\n',
        '\ufeff{"t":1,"in":2}\n{"t":2,"in":3}\n{"t":3,"in":4}\n\n',
        "{'t': 1, 'in': 2}\n{'t': 2, 'in': 3, 'stream': True, 'x': None}\n{'t': 3, 'in': 4}\n",
        '{"t":1,"in":2,"x":NaN}\n{"t":2,"in":3,"x":-Infinity}\n{"t":3,"in":4}\n',
    ],
)
def test_objects_are_found_however_they_stand_on_lines(text: str) -> None:
    batch, reader = read(text.encode(), format_name="jsonl")
    assert batch.arrived.tolist() == [1.0, 2.0, 3.0]
    assert listed(batch.prompt_tokens) == [2, 3, 4]
    assert reader.account.skipped == 0


def test_a_bad_line_costs_itself_only_and_says_where() -> None:
    lines = [
        '{"t":1}', "not json", '{"t":2}', '{"x":1}', "[1,2]", '{"t":3', '{"t":{"a":1}}', '{"t":4}',
    ]  # fmt: skip
    batch, reader = read("\n".join(lines).encode())
    assert batch.arrived.tolist() == [1.0, 2.0, 4.0]
    assert [(b.line, b.reason) for b in reader.account.bad] == [
        (2, "no JSON object"),
        (4, "no time of arrival"),
        (5, "Expected `object`, got `int`"),
        (6, "no JSON object"),
        (7, "column 't': its value is no time that can be read"),
    ]


def test_each_row_may_spell_its_keys_in_its_own_way() -> None:
    batch, _ = read(
        b'{"timestamp":1,"prompt_tokens":5}\n{"ts":2,"input_tokens":6,"start_time":null}\n'
        b'{"timestamp":3,"prompt_tokens":null,"input_tokens":7}\n{"timestamp":4}\n'
    )
    assert batch.arrived.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert listed(batch.prompt_tokens) == [5, 6, 7, -1]


def test_keys_are_mapped_by_name_and_dotted_path() -> None:
    options = ReadOptions(
        columns={"arrived": "meta.when:ms", "tenant": "owner", "prompt_tokens": "meta.size"}
    )
    row = b'{"meta":{"when":1796006832000,"size":9},"owner":"x"}\n{"meta":7,"owner":"y"}\n'
    batch, reader = read(row, options)
    assert batch.arrived.tolist() == [AT]
    assert listed(batch.prompt_tokens) == [9]
    assert names(batch.tenant) == ["x"]
    assert reader.account.skipped == 1


def test_rows_without_any_time_are_refused_with_the_keys_there_are() -> None:
    with pytest.raises(UnreadableError, match=r"no key of arrival times among size, when: name it"):
        read(b'{"when":1,"size":2}\n')
    with pytest.raises(InputError, match="column 'x': must be one of"):
        read(b'{"when":1}\n', ReadOptions(columns={"x": "when"}))


def test_deep_nesting_and_lone_surrogates_are_survived() -> None:
    deep = b'{"t":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    batch, reader = read(deep + b'{"t":2,"user":"\\ud800"}\n', format_name="jsonl")
    assert batch.arrived.tolist() == [2.0]
    assert reader.account.skipped == 1
    assert names(batch.tenant) == ["?"]


def test_lines_of_100_kilobytes_are_read_and_those_of_a_megabyte_counted() -> None:
    data = b'{"prompt":"' + b"x" * 150_000 + b'","t":1}\n'
    data += b'{"prompt":"' + b"x" * LONGEST_LINE + b'","t":2}\n{"t":3}\n'
    batch, reader = read(data, format_name="jsonl")
    assert batch.arrived.tolist() == [1.0, 3.0]
    assert [(b.line, b.reason) for b in reader.account.bad] == [(2, "longer than 1048576 bytes")]


def test_text_under_a_name_key_is_not_kept() -> None:
    row = {"t": 1, "user": "Summarise the incident\nof last night", "model": "x" * 200}
    batch, reader = read(json.dumps(row).encode())
    assert names(batch.tenant) == [""]
    assert names(batch.model) == [""]
    assert "incident" not in repr((batch, reader.account))
