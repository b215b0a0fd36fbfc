"""Times of logs: every way they are written gives the same second, and doubt is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.errors import InputError
from surgetank.traffic.formats import dateforms
from surgetank.traffic.formats.reading import ReadOptions, TimeUnit, UnreadableError
from surgetank.traffic.formats.stamps import Cell, Stamps, iso, naive_offset

AT = 1796006832.0  # 2026-11-30 02:47:12 UTC


def one(cell: Cell, options: ReadOptions | None = None) -> float:
    return float(Stamps(options or ReadOptions()).read([cell])[0])


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30 02:47:12",
        "2026-11-30T02:47:12",
        "2026-11-30T02:47:12Z",
        "2026-11-30 02:47:12 UTC",
        "2026-11-30T02:47:12+00:00",
        "2026-11-30T10:47:12+08:00",
        "2026-11-30 10:47:12 +0800",
        "2026-11-30T10:47:12+08",
        "2026-11-29T18:47:12-08:00",
        "2026/11/30 02:47:12",
        "2026-11-30_02:47:12",
        "[2026-11-30 02:47:12]",
        '"2026-11-30 02:47:12"',
        " 2026-11-30 02:47:12 ",
        "20261130T024712Z",
        "20261130024712",
        "30/Nov/2026:10:47:12 +0800",
        "[30/Nov/2026:02:47:12 +0000]",
        "30/nov/2026:02:47:12",
        "Mon, 30 Nov 2026 02:47:12 GMT",
        "Mon, 30 Nov 2026 10:47:12 +0800 (China Standard Time)",
        "30 Nov 2026 02:47:12",
        "30-Nov-2026 02:47:12",
        "Mon Nov 30 02:47:12 2026",
        "Nov 30, 2026 2:47:12 AM",
        "November 30, 2026 at 02:47:12",
        "11/30/2026 02:47:12",
        "11/30/2026, 2:47:12 AM",
        "30/11/2026 02:47:12",
        "30.11.2026 02:47:12",
        "1796006832",
        "1796006832.0",
        "1.796006832e9",
        "1796006832000",
        "1796006832000000",
        "1796006832000000000",
        1796006832,
        1796006832.0,
        1796006832000,
        20261130024712,
    ],
)
def test_one_second_in_every_form_is_the_same_second(text: Cell) -> None:
    assert one(text) == AT
    assert Stamps(ReadOptions()).read([None, text]).tolist()[1:] == [AT]  # and beside a gap


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("2026-11-30 02:47:12.9799600", 0.97996),
        ("2026-11-30T02:47:12.5Z", 0.5),
        ("2026-11-30T02:47:12,123", 0.123),
        ("2026-11-30T10:47:12.123456789+08:00", 0.123456789),
        ("30/Nov/2026:02:47:12.250 +0000", 0.25),
        ("1796006832.412", 0.412),
        ("1796006832412", 0.412),
        ("1796006832412000", 0.412),
    ],
)
def test_fractions_of_any_length_are_kept(text: str, fraction: float) -> None:
    assert one(text) == pytest.approx(AT + fraction, abs=3e-7)  # a double's step at 2026


def test_rows_with_and_without_fractions_and_zones_may_be_mixed() -> None:
    found = Stamps(ReadOptions()).read(
        [
            "2024-05-10 00:00:00.009930+00:00",
            "2024-05-10 00:00:01+00:00",
            "2024-05-10 08:00:02+08:00",
            "2024-05-10T00:00:03Z",
            "2024-05-10 00:00:04.5",
            "10/May/2024:00:00:05 +0000",
        ]
    )
    assert (found - 1715299200.0).tolist() == pytest.approx([0.00993, 1, 2, 3, 4.5, 5], abs=3e-7)


@pytest.mark.parametrize(
    "text",
    [
        "", "-", "null", "NaN", "inf", "abc", "2026-13-01 00:00:00", "2026-02-30 00:00:00",
        "2026-11-31T00:00:00Z", "2026-11-30 24:00:00", "2026-11-30 02:60:00",
        "2026-11-30 02:47:61", "2026-11-30 02:47:12 PST", "31/Nov/2026:00:00:00", "02:47:12",
        "30/Xyz/2026:10:47:12 +0800", "99/99/2026 10:00", "5e10", "1e13", "1e20", "1" * 400,
        "2026-11-30 02:47:12\u00e9", "\uff12026-11-30 02:47:12",
        "2026-11-30 02:47:12.1234567890123456789",
        "11/30/2026 13:47:12 PM",
    ],
)  # fmt: skip
def test_what_is_no_time_is_a_gap_and_no_guess(text: str) -> None:
    assert np.isnan(one(text))
    assert np.isnan(Stamps(ReadOptions()).read(["2026-11-30 02:47:12", text])[1])


def test_a_date_that_reads_both_ways_is_refused_until_a_neighbour_or_an_option_tells() -> None:
    with pytest.raises(UnreadableError, match=r"03/04/2026 10:47: day and month can be read both"):
        one("03/04/2026 10:47")
    third_of_april = datetime(2026, 4, 3, 10, 47, tzinfo=UTC).timestamp()
    fourth_of_march = datetime(2026, 3, 4, 10, 47, tzinfo=UTC).timestamp()
    assert one("03/04/2026 10:47", ReadOptions(day_first=True)) == third_of_april
    assert one("03/04/2026 10:47", ReadOptions(day_first=False)) == fourth_of_march
    beside = Stamps(ReadOptions()).read(["03/04/2026 10:47", "03/25/2026 10:47"])
    assert beside[0] == fourth_of_march
    assert one("05/05/2026 00:00") == datetime(2026, 5, 5, tzinfo=UTC).timestamp()
    assert one("03.04.2026 10:47") == third_of_april


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("UTC", AT),
        ("+08:00", AT - 8 * 3600),
        ("-0330", AT + 3.5 * 3600),
        ("Asia/Shanghai", AT - 8 * 3600),
        ("America/New_York", AT + 5 * 3600),
    ],
)
def test_naive_stamps_are_in_the_zone_of_the_option_and_others_in_their_own(
    zone: str, expected: float
) -> None:
    options = ReadOptions(timezone=dateforms.zone(zone))
    assert one("2026-11-30 02:47:12", options) == expected
    assert one("Nov 30, 2026 02:47:12", options) == expected
    assert one("2026-11-30 02:47:12Z", options) == AT
    assert one("1796006832", options) == AT


def test_summer_time_follows_the_zone() -> None:
    options = ReadOptions(timezone=ZoneInfo("Europe/Paris"))
    found = Stamps(options).read(["2026-01-15 12:00:00", "2026-07-15 12:00:00"])
    assert found[0] == datetime(2026, 1, 15, 11, tzinfo=UTC).timestamp()
    assert found[1] == datetime(2026, 7, 15, 10, tzinfo=UTC).timestamp()


def test_an_unknown_zone_says_what_would_be_right() -> None:
    with pytest.raises(InputError, match=r"timezone = 'Mars/Base': must be UTC, an offset such as"):
        dateforms.zone("Mars/Base")


def test_a_stamp_without_a_year_needs_the_option() -> None:
    assert np.isnan(one("Nov 30 02:47:12"))
    assert one("Nov 30 02:47:12", ReadOptions(year=2026)) == AT
    assert one("11-30 02:47:12", ReadOptions(year=2026)) == AT


def test_the_first_number_tells_the_unit_and_others_must_agree() -> None:
    stamps = Stamps(ReadOptions())
    found = stamps.read(["1796006832000", "1796006833000", "1796006834", "7"])
    assert found.tolist()[:2] == [AT, AT + 1]
    assert np.isnan(found[2:]).all()
    assert stamps.relative is False


@pytest.mark.parametrize(
    ("unit", "second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]
)
def test_a_named_unit_is_taken_at_its_word(unit: TimeUnit, second: int) -> None:
    stamps = Stamps(ReadOptions(time_unit=unit))
    assert stamps.read([0, 3 * second, str(5 * second)]).tolist() == [0.0, 3.0, 5.0]
    assert stamps.relative is True


def test_small_numbers_are_seconds_from_the_logs_origin_exactly_as_written() -> None:
    stamps = Stamps(ReadOptions())
    assert stamps.read(["0", "0.1", "0.30000000000000004", "1e-3"]).tolist() == [
        0.0, 0.1, 0.30000000000000004, 0.001,
    ]  # fmt: skip
    assert stamps.relative is True
    assert np.isnan(stamps.read(["2026-11-30 02:47:12"])[0])  # a date among them has no place


def test_zeros_before_the_first_real_stamp_tell_nothing() -> None:
    stamps = Stamps(ReadOptions())
    assert stamps.read(["0", "0"]).tolist() == [0.0, 0.0]
    assert stamps.relative is None
    assert stamps.read(["1796006832000"]).tolist() == [AT]
    assert stamps.zeros == 2
    assert np.isnan(stamps.read(["0"])[0])


ZONES: st.SearchStrategy[tzinfo] = st.sampled_from(
    [
        UTC,
        timezone(timedelta(hours=8)),
        timezone(-timedelta(hours=3, minutes=30)),
        ZoneInfo("Europe/Paris"),
    ]
)


@given(
    st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001 - naive on purpose
    ZONES,
    st.sampled_from(["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d/%b/%Y:%H:%M:%S"]),
    st.sampled_from(["", "Z", "+0800", "-03:30", " +0000"]),
    st.one_of(st.just(""), st.integers(0, 10**9 - 1).map(lambda n: f".{n:09d}")),
)
def test_a_column_at_once_reads_as_the_standard_library_does(
    when: datetime, zone: tzinfo, form: str, suffix: str, fraction: str
) -> None:
    text = when.strftime(form) + fraction + suffix
    offset = timedelta(seconds=dateforms.offset_seconds(suffix)) if suffix.strip() else None
    naive = int((when.replace(microsecond=0) - datetime(1970, 1, 1)).total_seconds())  # noqa: DTZ001 - naive
    east = int(offset.total_seconds()) if offset is not None else naive_offset(naive, zone)
    expected = naive - east + (int(fraction[1:]) / 1e9 if fraction else 0)
    found, done = iso([text], zone)
    assert done[0]
    assert found[0] == expected
    alone = dateforms.read(
        text, year=None, day_first=None, offset_of=lambda n: naive_offset(n, zone)
    )
    assert alone is not None
    assert alone[0] + alone[1] == expected  # and the slow path agrees to the bit


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=80),
    st.sampled_from(
        [
            "2026-11-30 02:47:12", "2026-11-30T02:47:12.5+08:00", "30/Nov/2026:02:47:12 +0000",
            "Mon, 30 Nov 2026 02:47:12 GMT", "20261130024712", "1796006832", "1796006832000", "0",
            "5", "7.5", "11/30/2026 02:47", "", "nan", 1796006832000000, 20261130024712, 0, [1], {},
        ]
    ),
    st.text("0123456789-/:T .Z+", max_size=30),
)  # fmt: skip


@given(
    st.one_of(
        st.lists(CELLS, max_size=12), st.lists(CELLS.filter(lambda c: type(c) is str), max_size=40)
    ),
    st.integers(0, 40),
)
def test_cutting_a_column_anywhere_changes_no_time(cells: list[Cell], cut: int) -> None:
    """A date that reads both ways may be refused sooner or later; nothing else may differ."""
    whole, parts = Stamps(ReadOptions()), Stamps(ReadOptions())
    try:
        expected = whole.read(cells)
        found = np.concatenate([parts.read(cells[:cut]), parts.read(cells[cut:])])
    except UnreadableError:
        return
    np.testing.assert_array_equal(found, expected)
    assert whole.relative == parts.relative
