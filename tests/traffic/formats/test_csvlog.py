"""Separated values: the header's spellings, the quirks of real files, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from surgetank.errors import InputError
from surgetank.traffic.formats.reading import LONGEST_LINE, ReadOptions, UnreadableError
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reads import listed, names, read

AT = 1796006832.0  # 2026-11-30 02:47:12 UTC


@pytest.mark.parametrize(
    "stamps",
    [
        ("1796006832", "1796006833"),
        ("1796006832.0", "1796006833.0"),
        ("1796006832000", "1796006833000"),
        ("1796006832000000", "1796006833000000"),
        ("1796006832000000000", "1796006833000000000"),
        ('"1796006832"', '"1796006833"'),
        ("2026-11-30 02:47:12", "2026-11-30 02:47:13"),
        ("2026-11-30T02:47:12Z", "2026-11-30T02:47:13Z"),
        ("2026-11-30T10:47:12.000000+08:00", "2026-11-30T02:47:13Z"),
        ("30/Nov/2026:10:47:12 +0800", "30/Nov/2026:10:47:13 +0800"),
        ('"Mon, 30 Nov 2026 02:47:12 GMT"', '"Mon, 30 Nov 2026 02:47:13 GMT"'),
        ("11/30/2026 02:47:12", "11/30/2026 02:47:13"),
        ("30.11.2026 02:47:12", "30.11.2026 02:47:13"),
    ],
)
@pytest.mark.parametrize("header", ["arrival_time\n", ""])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n"])
def test_a_file_of_arrival_times_alone_needs_no_flag(
    stamps: tuple[str, str], header: str, end: str
) -> None:
    batch, reader = read((header + "\n".join(stamps) + end).encode())
    assert batch.arrived.tolist() == [AT, AT + 1]
    assert reader.account.skipped == 0
    assert reader.arrival_from == "start"


def test_a_lone_column_of_dates_with_commas_is_not_split() -> None:
    batch, _ = read(b"arrival_time\nMon, 30 Nov 2026 02:47:12 GMT\n2026-11-30 02:47:13,250\n")
    assert batch.arrived.tolist() == [AT, AT + 1.25]


@pytest.mark.parametrize(
    "header",
    [
        "arrival_time,prompt_tokens,output_tokens",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "Timestamp,Request tokens,Response tokens",
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        "timestamp,input_length,output_length",
        "t,in,out",
        "startTime,promptTokens,completionTokens",
        "created_at,Input Tokens,Output Tokens",
        "ts_ms,n_prompt_tokens,tokens_out",
    ],
)
def test_the_usual_spellings_need_no_mapping(header: str) -> None:
    unit = 1000 if "ms" in header else 1
    rows = "".join(f"{(1796006832 + i) * unit},{10 + i},{20 + i}\n" for i in range(3))
    batch, reader = read(f"{header}\n{rows}".encode())
    assert batch.arrived.tolist() == [AT, AT + 1, AT + 2]
    assert listed(batch.prompt_tokens) == [10, 11, 12]
    assert listed(batch.output_tokens) == [20, 21, 22]
    assert reader.account.notes == []


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_every_column_of_ours_is_read_with_its_unit(separator: str) -> None:
    header = "start_time,latency_ms,ttft_s,status,team_id,model,session_id,cached_tokens,max_tokens"
    row = "1796006832,1500,0.25,429,team-a,qwen,s-1,64,512"
    gaps = "1796006833,,,,,,,,"
    data = f"{header}\n{row}\n{gaps}".replace(",", separator).encode()
    batch, _ = read(data)
    assert listed(batch.duration)[0] == 1.5
    assert listed(batch.ttft)[0] == 0.25
    assert np.isnan(listed(batch.duration)[1])
    assert listed(batch.ended) == [Ended.REFUSED, Ended.UNKNOWN]
    assert names(batch.tenant) == ["team-a", ""]
    assert names(batch.model) == ["qwen", ""]
    assert names(batch.session) == ["s-1", ""]
    assert listed(batch.cached_tokens) == [64, -1]
    assert listed(batch.max_tokens) == [512, -1]


def test_durations_may_bring_their_own_unit() -> None:
    batch, _ = read(b"arrival_time,latency\n1,31.204s\n2,250ms\n3,1.5m\n4,2\n")
    assert listed(batch.duration) == [31.204, 0.25, 90.0, 2.0]


def test_a_log_of_ends_gives_arrivals_less_the_duration() -> None:
    batch, reader = read(b"end_time,duration\n1796006840,8\n1796006841,0.5\n")
    assert batch.arrived.tolist() == [AT, AT + 8.5]
    assert reader.arrival_from == "end - duration"


def test_a_log_of_ends_alone_says_that_its_arrivals_are_ends() -> None:
    batch, reader = read(b"finished_at\n1796006840\n")
    assert batch.arrived.tolist() == [1796006840.0]
    assert reader.arrival_from == "end"
    assert reader.account.notes == ["only the end of each request is logged: arrivals are ends"]


def test_a_start_and_an_end_give_the_duration() -> None:
    batch, reader = read(b"start_time,end_time\n1796006832,1796006840\n1796006833,\n")
    assert listed(batch.duration)[0] == 8.0
    assert np.isnan(listed(batch.duration)[1])
    assert reader.arrival_from == "start"


def test_a_stamp_beside_a_duration_is_taken_for_the_start_and_that_is_said() -> None:
    data = b"timestamp,duration\n1796006840,8\n"
    batch, reader = read(data)
    assert batch.arrived.tolist() == [1796006840.0]
    assert "'timestamp' is taken for the start of each request" in reader.account.notes[0]
    batch, reader = read(data, ReadOptions(columns={"ended_at": "timestamp"}))
    assert batch.arrived.tolist() == [AT]
    assert reader.arrival_from == "end - duration"


def test_a_date_and_a_time_of_day_in_two_columns_are_one_time() -> None:
    batch, _ = read(b"date,time,tokens_in\n2026-11-30,02:47:12,5\n2026-11-30,02:47:13.5,6\n")
    assert batch.arrived.tolist() == [AT, AT + 1.5]


def test_columns_are_mapped_by_name_position_and_unit() -> None:
    options = ReadOptions(
        columns={"arrived": "when:ms", "prompt_tokens": "3", "duration": "took:ms"}
    )
    batch, _ = read(b"when,took,size\n1796006832000,1500,7\n", options, format_name="csv")
    assert batch.arrived.tolist() == [AT]
    assert listed(batch.duration) == [1.5]
    assert listed(batch.prompt_tokens) == [7]


def test_a_mapping_that_does_not_fit_says_what_there_is() -> None:
    with pytest.raises(InputError, match="column 'arival': must be one of arrived, ended_at"):
        read(b"t\n1\n", ReadOptions(columns={"arival": "t"}))
    with pytest.raises(UnreadableError, match="no column 'when' for arrived: there are t, in"):
        read(b"t,in\n1,2\n", ReadOptions(columns={"arrived": "when"}))


def test_a_log_without_a_time_column_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnreadableError, match="no column of arrival times among when, tokens"):
        read(b"when,tokens\n1,2\n", format_name="csv")
    batch, _ = read(
        b"when,tokens\n1,2\n", ReadOptions(columns={"arrived": "when"}), format_name="csv"
    )
    assert batch.arrived.tolist() == [1.0]


def test_without_a_header_the_columns_are_read_in_order_and_that_is_said() -> None:
    batch, reader = read(b"1796006832,10,20\n1796006833,11,21\n")
    assert batch.arrived.tolist() == [AT, AT + 1]
    assert listed(batch.prompt_tokens) == [10, 11]
    assert listed(batch.output_tokens) == [20, 21]
    assert reader.account.notes == [
        "no header: columns are read as 1 = arrived, 2 = prompt_tokens, 3 = output_tokens"
    ]


def test_without_a_header_a_number_before_the_date_is_not_taken_for_the_time() -> None:
    batch, _ = read(b"17,2026-11-30 02:47:12,10\n18,2026-11-30 02:47:13,11\n")
    assert batch.arrived.tolist() == [AT, AT + 1]
    assert listed(batch.prompt_tokens) == [10, 11]


def test_rows_that_cannot_be_read_are_counted_with_line_and_reason() -> None:
    batch, reader = read(
        b"t,in,out\n1,2,3\n\n2,3\nNaN,1,1\n3,4,5\nx,1,1\n4,many,5\n5,-7,5\n,1,1\n6,1.0,\n"
    )
    assert batch.arrived.tolist() == [1.0, 3.0, 6.0]
    assert listed(batch.prompt_tokens) == [2, 4, 1]
    assert listed(batch.output_tokens) == [3, 5, -1]
    assert reader.account.skipped == 6
    assert [(b.line, b.reason) for b in reader.account.bad] == [
        (4, "2 columns: must be 3"),
        (5, "column 't': NaN is no time that can be read"),
        (7, "column 't': its value is no time that can be read"),
        (8, "column 'in' is not a whole number"),
        (9, "column 'in' is not a whole number"),
    ]


def test_nan_and_empty_cells_are_unknown_and_zero_is_zero() -> None:
    batch, reader = read(b"t,in,out\n1,NaN,0\n2,,null\n3,0,-\n4,7,8.0\n")
    assert listed(batch.prompt_tokens) == [-1, -1, 0, 7]
    assert listed(batch.output_tokens) == [0, -1, -1, 8]
    assert reader.account.skipped == 0
    assert batch.ended is None  # no output tokens are a failure in BurstGPT only


def test_crlf_bom_a_blank_last_line_and_no_final_newline_change_nothing() -> None:
    plain = b"arrival_time,prompt_tokens\n1796006832,1\n1796006833,2\n"
    expected, _ = read(plain)
    for data in (
        plain.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + plain,
        plain + b"\n",
        plain + b"\r\n   \n",
        plain[:-1],
        plain.replace(b"\n", b"\r\n")[:-2],
        plain.replace(b"\n", b"\r\n")[:-1],
        b"\n\n" + plain,
        b"# exported by hand\n" + plain,
        b"#" + plain,
    ):
        batch, reader = read(data)
        assert batch.arrived.tolist() == expected.arrived.tolist(), data
        assert listed(batch.prompt_tokens) == [1, 2]
        assert reader.account.skipped == 0


def test_unsorted_and_duplicate_stamps_are_kept_in_the_logs_order_and_noted() -> None:
    batch, reader = read(b"t\n5\n3\n3\n3\n7\n")
    assert batch.arrived.tolist() == [5.0, 3.0, 3.0, 3.0, 7.0]
    assert reader.account.notes == ["1 rows are earlier than the one before: not sorted"]


def test_a_status_that_is_not_final_is_an_arrival_with_an_unknown_end() -> None:
    batch, reader = read(b"t,status\n1,completed\n2,running\n3,499\n4,503\n5,500\n6,odd\n7,200\n")
    assert listed(batch.ended) == [
        Ended.COMPLETED, Ended.UNKNOWN, Ended.ABANDONED, Ended.REFUSED, Ended.FAILED,
        Ended.UNKNOWN, Ended.COMPLETED,
    ]  # fmt: skip
    assert reader.account.notes[0].startswith("1 rows have a status that is not final")


def test_a_length_in_characters_is_no_token_count_unless_asked() -> None:
    data = b"arrival_time,prompt length\n1,401\n2,\n"
    batch, reader = read(data)
    assert batch.prompt_tokens is None
    assert "'prompt length' is a length in characters" in reader.account.notes[0]
    batch, reader = read(data, ReadOptions(estimate_tokens=True))
    assert listed(batch.prompt_tokens) == [101, -1]
    assert reader.account.notes == ["prompt tokens are estimated: 'prompt length' / 4"]


def test_values_that_pile_up_at_the_largest_are_noted_as_capped() -> None:
    rows = "".join(f"{i},{min(4096, 37 * i % 6000)}\n" for i in range(400))
    _, reader = read(f"t,prompt_tokens\n{rows}".encode())
    assert len(reader.account.notes) == 1
    assert "prompt_tokens seems capped by what wrote the log" in reader.account.notes[0]
    assert "rows hold exactly 4096" in reader.account.notes[0]


@pytest.mark.parametrize("tokens", ["512", "{i}", "{h}"])
def test_equal_or_spread_values_are_not_called_capped(tokens: str) -> None:
    rows = "".join(f"{i},{tokens.format(i=i, h=300 + i % 50)}\n" for i in range(1, 400))
    _, reader = read(f"t,prompt_tokens\n{rows}".encode())
    assert reader.account.notes == []


def test_a_silence_out_of_proportion_is_noted_as_missing_or_idle() -> None:
    before = "".join(f"{1796006832 + i}\n" for i in range(100))
    after = "".join(f"{1796006832 + 7299 + i}\n" for i in range(100))
    _, reader = read(f"arrival_time\n{before}{after}".encode())
    (note,) = reader.account.notes
    assert note.startswith("no rows for 7200 s from 2026-11-30 02:48:51 UTC: missing data or")


def test_a_quoted_cell_may_hold_separators_quotes_and_line_breaks() -> None:
    data = (
        b'arrival_time,prompt,tenant,prompt_tokens\n'
        b'1796006832,"a, ""b""\r\nsecond line\nthird",team-a,3\n'
        b'1796006833,plain,"team, b",4\n'
    )  # fmt: skip
    batch, reader = read(data)
    assert batch.arrived.tolist() == [AT, AT + 1]
    assert names(batch.tenant) == ["team-a", "team, b"]
    assert listed(batch.prompt_tokens) == [3, 4]
    assert "second" not in repr((batch, reader.account))


def test_a_stray_quote_costs_its_own_line_only() -> None:
    data = b't,tenant\n1,a\n2,"b\n3,c\n4,d\n'
    batch, reader = read(data)
    assert batch.arrived.tolist() == [1.0, 3.0, 4.0]
    assert [(b.line, b.reason) for b in reader.account.bad] == [(3, "a quote is not closed")]


def test_lines_of_100_kilobytes_are_read_and_those_of_a_megabyte_counted() -> None:
    text = b"x" * 150_000
    data = b't,prompt,in\n1,"' + text + b'",5\n2,' + text + b",6\n"
    data += b"3," + b"x" * LONGEST_LINE + b",7\n4,short,8\n"
    batch, reader = read(data)
    assert batch.arrived.tolist() == [1.0, 2.0, 4.0]
    assert listed(batch.prompt_tokens) == [5, 6, 8]
    assert [(b.line, b.reason) for b in reader.account.bad] == [(4, "longer than 1048576 bytes")]


def test_relative_times_can_be_given_their_zero() -> None:
    batch, reader = read(b"t\n0\n1.5\n")
    assert batch.arrived.tolist() == [0.0, 1.5]
    assert reader.arrival_from == "relative start"
    batch, _ = read(b"t\n0\n1.5\n", ReadOptions(start=AT))
    assert batch.arrived.tolist() == [AT, AT + 1.5]
    batch, _ = read(b"arrival_time\n1796006832\n", ReadOptions(start=5.0))
    assert batch.arrived.tolist() == [AT]


def test_text_that_is_no_number_is_never_shown() -> None:
    _, reader = read(b"t,in\n1,2\nmy secret plan,3\n2,my secret plan\n", format_name="csv")
    assert reader.account.skipped == 2
    assert "secret" not in repr(reader.account)


@pytest.mark.parametrize(
    ("header", "values", "note"),
    [
        ("latency", "0.5 1.5", "'latency' states no unit and is taken for seconds; if it is not"),
        ("latency", "2118 31204", "(2 of 2 exceed 600 s: are they milliseconds?)"),
        ("ttft", "0.5 0.7", "say so: ttft=ttft:ms"),
        ("latency_ms", "2118 31204", ""),
        ("duration_seconds", "0.5 0.7", ""),
    ],
)
def test_a_time_whose_unit_nobody_states_is_noted(header: str, values: str, note: str) -> None:
    rows = [f"{AT + i},{v}" for i, v in enumerate(values.split())]
    _, reader = read(("\n".join([f"arrival_time,{header}", *rows]) + "\n").encode())
    said = [n for n in reader.account.notes if "states no unit" in n]
    assert len(said) == bool(note)
    assert all(note in n for n in said)
