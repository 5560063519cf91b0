"""Dates, times and durations: packed numbers, text, rounding, what is refused."""

import datetime as dt
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datum import times
from penstock.errors import Malformed
from tests.unit.penstock.datum_tables import UNHURRIED


def test_a_time_is_packed_as_tidb_packs_it() -> None:
    fields = times.parse_datetime("2022-04-27 04:05:07", 0)
    assert times.pack(fields) == 0x19ACB64147000000
    assert times.datetime_text(times.unpack(0x19ACB64147000000), 0) == "2022-04-27 04:05:07"


def test_the_zero_time_is_zero() -> None:
    assert times.pack(times.parse_datetime("0000-00-00 00:00:00", 0)) == 0
    assert times.datetime_text(times.unpack(0), 3) == "0000-00-00 00:00:00.000"


@UNHURRIED
@given(st.datetimes(), st.integers(0, 6))
def test_every_datetime_comes_back_as_text(moment: dt.datetime, fsp: int) -> None:
    unit = 10 ** (6 - fsp)
    moment = moment.replace(microsecond=moment.microsecond // unit * unit)
    fields = times.datetime_fields(moment, fsp)
    assert times.unpack(times.pack(fields)) == fields
    text = times.datetime_text(fields, fsp)
    assert dt.datetime.fromisoformat(text) == moment
    assert times.parse_datetime(text, fsp) == fields


def test_an_aware_datetime_is_taken_in_utc() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    fields = times.datetime_fields(dt.datetime(2024, 1, 1, 1, 0, tzinfo=zone), 0)
    assert times.datetime_text(fields, 0) == "2023-12-31 23:00:00"


@pytest.mark.parametrize(
    ("text", "fsp", "expected"),
    [
        ("2024-12-31 23:59:59.5", 0, "2025-01-01 00:00:00"),
        ("2024-12-31 23:59:59.49", 0, "2024-12-31 23:59:59"),
        ("2024-01-01 00:00:00.9996", 3, "2024-01-01 00:00:01.000"),
        ("2024-01-01 00:00:00.25", 3, "2024-01-01 00:00:00.250"),
    ],
)
def test_fraction_digits_are_rounded_half_up(text: str, fsp: int, expected: str) -> None:
    assert times.datetime_text(times.parse_datetime(text, fsp), fsp) == expected


@pytest.mark.parametrize(
    "text",
    ["2024-13-01", "2024-02-30", "2023-02-29", "2024-01-32", "24:00:00", "now", "",
     "2024-01-01 24:00:00", "2024-01-01 00:60:00", "0000-00-00 23:59:59.9",
     "2024-01-01 00:00:00+02:00"],
)  # fmt: skip
def test_a_date_that_does_not_exist_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        times.parse_datetime(text, 0)


def test_a_leap_day_exists_in_leap_years() -> None:
    for year in (2024, 2000, 1904):
        assert times.parse_datetime(f"{year}-02-29", 0)[2] == 29
    with pytest.raises(Malformed):
        times.parse_datetime("1900-02-29", 0)


@pytest.mark.parametrize(
    ("text", "fsp"), [("-838:59:59", 0), ("00:00:01", 0), ("100:00:00.250", 3), ("-00:00:00.5", 1)]
)
def test_a_duration_is_printed_as_mysql_prints_it(text: str, fsp: int) -> None:
    assert times.duration_text(times.duration_micros(text, fsp) * 1000, fsp) == text


def test_a_duration_is_also_taken_from_python() -> None:
    assert times.duration_micros(dt.timedelta(days=-1), 0) == -86400 * 10**6
    assert times.duration_micros(dt.time(1, 2, 3, 600_000), 0) == (3723 + 1) * 10**6
    assert times.duration_micros(dt.timedelta(seconds=-1.5), 0) == -2 * 10**6


@pytest.mark.parametrize("text", ["839:00:00", "838:59:59.6", "1:60:00", "1:00:60", "x", "1:00"])
def test_a_duration_out_of_range_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        times.duration_micros(text, 0)


@UNHURRIED
@given(st.integers(0, (1 << 64) - 1))
def test_any_number_is_a_packed_time_or_malformed(packed: int) -> None:
    for read in (times.unpack, times.unpack_core):
        with suppress(Malformed):
            assert len(times.datetime_text(read(packed), 6)) == 26


def test_stored_digits_that_the_column_has_no_room_for_are_malformed() -> None:
    with pytest.raises(Malformed, match="digits"):
        times.fraction_text(1, 5)
    with pytest.raises(Malformed, match="DATE"):
        times.date_text((2024, 1, 1, 0, 0, 1, 0))
