"""Rows: the reference's vectors, round trips over random tables, damage, values that do not fit."""

import datetime as dt
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datum import values
from penstock.datum.rows import defaults
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed
from penstock.schema.model import (
    ColumnFlag,
    ColumnInfo,
    IndexColumn,
    IndexInfo,
    MysqlType,
    TableInfo,
)
from tests.unit.penstock.datum_tables import UNHURRIED, column, cut_all, damage, rows_of, tables

T = MysqlType
KEY = ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL


def table_of(*columns: ColumnInfo, **options: object) -> TableInfo:
    placed = [replace(c, id=c.id or i + 1, offset=i) for i, c in enumerate(columns)]
    return TableInfo(id=1, name="t", columns=tuple(placed), **options)  # type: ignore[arg-type]


def one_column(c: ColumnInfo) -> RowCodec:
    """Return the codec of a table with an integer key and one more column."""
    return RowCodec(
        table_of(column(T.LONG, id=1, name="id", flag=KEY), replace(c, id=2), pk_is_handle=True)
    )


VARCHAR = one_column(column(T.VARCHAR))


def test_an_insert_has_its_handle_in_front() -> None:
    assert VARCHAR.encode_insert((7, "abc")).hex() == "080e08040206616263"
    assert VARCHAR.decode_insert(bytes.fromhex("080e08040206616263")) == (7, "abc")


def test_an_update_is_the_row_before_and_the_row_after() -> None:
    raw = "0802080e080402066162630802080e080402027a"
    assert VARCHAR.encode_update((7, "abc"), (7, "z")).hex() == raw
    assert VARCHAR.decode_update(bytes.fromhex(raw)) == ((7, "abc"), (7, "z"))


def test_a_delete_is_the_row() -> None:
    raw = VARCHAR.encode_delete((7, None))
    assert raw.hex() == "0802080e080400"
    assert VARCHAR.decode_delete(raw) == (7, None)


def test_an_insert_without_further_columns_ends_with_a_zero_byte() -> None:
    assert VARCHAR.encode_insert((7, None)).hex() == "080e00"
    assert VARCHAR.decode_insert(bytes.fromhex("080e00")) == (7, None)


def test_the_time_in_a_row_is_the_references() -> None:
    codec = one_column(column(T.DATETIME, decimal=0))
    raw = codec.encode_insert((1, "2022-04-27 04:05:07"))
    assert raw.hex() == "0802" + "0804" + "09808080b894c8add619"


def test_a_large_unsigned_key_is_a_negative_handle() -> None:
    unsigned = KEY | ColumnFlag.UNSIGNED
    codec = RowCodec(table_of(column(T.LONGLONG, flag=unsigned), pk_is_handle=True))
    raw = codec.encode_insert((values.UINT64_MAX,))
    assert raw.hex() == "080100"
    assert codec.decode_insert(raw) == (values.UINT64_MAX,)


def common_handle_table() -> TableInfo:
    parts = [("a", 0, -1), ("b", 1, 2), ("c", 2, -1)]
    key = IndexInfo(
        id=1, name="PRIMARY", unique=True, primary=True,
        columns=tuple(IndexColumn(name=n, offset=o, length=k) for n, o, k in parts),
    )  # fmt: skip
    return table_of(
        column(T.DURATION, id=1, name="a", decimal=0, flag=KEY),
        column(T.VARCHAR, id=2, name="b", flag=KEY),
        column(T.DATE, id=3, name="c", flag=KEY),
        column(T.LONG, id=4, name="d"),
        indexes=(key,),
        is_common_handle=True,
    )


def test_a_common_handle_is_the_datums_of_its_columns() -> None:
    codec = RowCodec(common_handle_table())
    row = ("00:00:01", "ärger", "2024-02-29", None)
    raw = codec.encode_insert(row)
    time = "07" + values.encode_int_comparable(10**9).hex()
    prefix = "0206" + "är".encode().hex()
    assert [part.hex() for part in cut_all(raw)[:2]] == [time, prefix]
    # A prefix does not say the whole value, so the row says it again; the others it leaves out.
    assert [part.hex() for part in cut_all(raw)[3:]] == ["0804", "020c" + "ärger".encode().hex()]
    assert codec.decode_insert(raw) == row


def test_a_value_in_the_row_beats_the_one_in_a_common_handle() -> None:
    key = IndexInfo(
        id=1, name="PRIMARY", unique=True, primary=True, columns=(IndexColumn(name="a", offset=0),)
    )
    codec = RowCodec(table_of(column(T.VARCHAR, flag=KEY), indexes=(key,), is_common_handle=True))
    sort_key = values.bytes_datum(b"\x0e3")
    raw = sort_key + values.int_datum(1) + values.bytes_datum(b"A")
    assert codec.decode_insert(raw) == ("A",)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("0208fb40ce2d08020206e4b8ad08040802", "中"),
        ("0204fffd08020208f09f90a208040802", "🐢"),
        ("020c00d80052004508020208c398726508040802", "Øre"),
        ("0204d6d008020206e4b8ad08040802", "中"),
    ],
    ids=["utf8mb4_unicode_ci", "beyond the BMP", "utf8mb4_general_ci", "gbk_bin"],
)
def test_the_text_of_a_tidbs_clustered_key_is_the_rows_and_not_the_collations_weights(
    raw: str, text: str
) -> None:
    key = IndexInfo(
        id=1, name="PRIMARY", unique=True, primary=True, columns=(IndexColumn(name="a", offset=0),)
    )
    columns = column(T.VARCHAR, id=1, name="a", flag=KEY), column(T.LONG, id=2, name="n")
    table = table_of(*columns, indexes=(key,), is_common_handle=True)
    data = bytes.fromhex(raw)
    assert RowCodec(table).decode_insert(data) == (text, 1)
    with pytest.raises(Malformed, match="not UTF-8"):
        RowCodec(table).decode_insert(
            data[: data.index(b"\x08\x02\x02")] + bytes.fromhex("08040802")
        )


def test_a_table_without_a_handle_has_a_row_id() -> None:
    codec = RowCodec(table_of(column(T.LONG)))
    assert codec.encode_insert((5,), rowid=9).hex() == "0812" + "0802080a"
    assert codec.encode_delete((5,), rowid=9).hex() == "0802080a" + "08010812"
    assert codec.decode_delete(codec.encode_delete((5,), rowid=9)) == (5,)


@UNHURRIED
@given(st.data())
def test_rows_of_every_table_come_back(data: st.DataObject) -> None:
    table = data.draw(tables())
    codec = RowCodec(table)
    before, after = data.draw(rows_of(table)), data.draw(rows_of(table))
    assert codec.decode_insert(codec.encode_insert(before)) == before
    assert codec.decode_delete(codec.encode_delete(before)) == before
    assert codec.decode_update(codec.encode_update(before, after)) == (before, after)


@UNHURRIED
@given(st.data())
def test_damaged_rows_are_rows_or_malformed(data: st.DataObject) -> None:
    table = data.draw(tables())
    codec = RowCodec(table)
    row = data.draw(rows_of(table))
    for raw, decode in (
        (codec.encode_insert(row), codec.decode_insert),
        (codec.encode_update(row, row), codec.decode_update),
        (codec.encode_delete(row), codec.decode_delete),
    ):
        with suppress(Malformed):
            decode(damage(data.draw, raw))


@UNHURRIED
@given(st.binary(max_size=60), st.data())
def test_random_bytes_are_a_row_or_malformed(raw: bytes, data: st.DataObject) -> None:
    codec = RowCodec(data.draw(tables()))
    for decode in (codec.decode_insert, codec.decode_update, codec.decode_delete):
        with suppress(Malformed):
            decode(raw)


def test_every_cut_inside_a_value_is_malformed() -> None:
    raw = VARCHAR.encode_update((7, "abc"), (7, "abcd"))
    for end in range(len(raw)):
        with pytest.raises(Malformed):
            VARCHAR.decode_update(raw[:end])


def test_columns_that_the_table_does_not_know_are_skipped() -> None:
    raw = VARCHAR.encode_insert((7, "abc")) + values.int_datum(99) + values.float_datum(1.5)
    assert VARCHAR.decode_insert(raw) == (7, "abc")


def test_a_column_may_not_come_twice() -> None:
    raw = VARCHAR.encode_delete((7, "abc"))
    with pytest.raises(Malformed, match="too often"):
        VARCHAR.decode_delete(raw * 2)
    with pytest.raises(Malformed, match="too often"):
        VARCHAR.decode_update(raw * 3)
    with pytest.raises(Malformed, match="different columns"):
        VARCHAR.decode_update(raw)


def test_columns_that_are_not_public_and_virtual_ones_read_as_none() -> None:
    table = table_of(
        column(T.LONG, id=1, flag=KEY),
        column(T.LONG, id=2, state=3),
        column(T.LONG, id=3, generated_expr="a+1"),
        column(T.LONG, id=4, generated_expr="a+1", generated_stored=True),
        pk_is_handle=True,
    )
    codec = RowCodec(table)
    row = (1, 2, 3, 4)
    assert codec.decode_insert(codec.encode_insert(row)) == (1, None, None, 4)
    assert codec.decode_update(codec.encode_update(row, row))[1] == (1, None, None, 4)
    assert codec.decode_delete(codec.encode_delete(row)) == (1, None, None, 4)


NOT_NULL = ColumnFlag.NOT_NULL


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (column(T.LONG), None),
        (column(T.LONG, origin_default="5"), 5),
        (column(T.LONG, origin_default="1.0", flag=NOT_NULL), 1),
        (column(T.LONG, flag=NOT_NULL), 0),
        (column(T.DOUBLE, flag=NOT_NULL), 0.0),
        (column(T.DOUBLE, origin_default="1e2"), 100.0),
        (column(T.NEWDECIMAL, flen=5, decimal=2, flag=NOT_NULL), Decimal("0.00")),
        (column(T.NEWDECIMAL, flen=5, decimal=2, origin_default="1.5"), Decimal("1.50")),
        (column(T.VARCHAR, flag=NOT_NULL), ""),
        (column(T.STRING, flen=3, charset="binary", flag=NOT_NULL), b"\0\0\0"),
        (column(T.BLOB, charset="binary", flag=NOT_NULL), b""),
        (column(T.ENUM, elems=("x", "y"), flag=NOT_NULL), "x"),
        (column(T.ENUM, elems=("x", "y"), origin_default="y"), "y"),
        (column(T.SET, elems=("x", "y"), flag=NOT_NULL), ""),
        (column(T.SET, elems=("x", "y"), origin_default="x,y"), "x,y"),
        (column(T.BIT, flen=4, origin_default="b'101'"), 5),
        (column(T.BIT, flen=4, origin_default="0x0a"), 10),
        (column(T.BIT, flen=4, flag=NOT_NULL), 0),
        (column(T.DATE, flag=NOT_NULL), "0000-00-00"),
        (column(T.DATETIME, decimal=3, flag=NOT_NULL), "0000-00-00 00:00:00.000"),
        (column(T.DATETIME, decimal=3, origin_default="2024-01-02"), "2024-01-02 00:00:00.000"),
        (column(T.TIMESTAMP, decimal=0, flag=NOT_NULL), "0000-00-00 00:00:00"),
        (column(T.DURATION, decimal=1, flag=NOT_NULL), "00:00:00.0"),
        (column(T.YEAR, flag=NOT_NULL), 0),
        (column(T.JSON, flag=NOT_NULL), "null"),
    ],
)
def test_a_column_missing_in_a_row_reads_as_its_default(
    missing: ColumnInfo, expected: object
) -> None:
    old = RowCodec(table_of(column(T.LONG, id=1, flag=KEY), pk_is_handle=True))
    new = one_column(missing)
    assert new.decode_insert(old.encode_insert((1,))) == (1, expected)
    assert new.decode_delete(old.encode_delete((1,))) == (1, expected)
    assert repr(new.decode_insert(old.encode_insert((1,)))[1]) == repr(expected)


def test_a_null_is_written_out_where_a_missing_value_would_read_as_a_default() -> None:
    codec = one_column(column(T.LONG, origin_default="5"))
    assert codec.encode_insert((1, None)).hex() == "0802080400"
    assert codec.decode_insert(codec.encode_insert((1, None))) == (1, None)


def test_a_default_that_does_not_fit_harms_only_rows_that_need_it() -> None:
    codec = one_column(column(T.LONG, origin_default="abc"))
    assert codec.decode_insert(codec.encode_insert((1, 2))) == (1, 2)
    with pytest.raises(Malformed, match="abc"):
        codec.decode_insert(bytes.fromhex("080200"))
    with pytest.raises(Malformed):
        defaults.parse_default(column(T.DOUBLE), "x")


@pytest.mark.parametrize(
    ("c", "given_value", "expected"),
    [
        (column(T.TINY), True, 1),
        (column(T.FLOAT), 0.1, 0.10000000149011612),
        (column(T.DOUBLE), Decimal("1.5"), 1.5),
        (column(T.NEWDECIMAL, flen=5, decimal=2), 1.005, Decimal("1.01")),
        (column(T.NEWDECIMAL, flen=5, decimal=2), 3, Decimal("3.00")),
        (column(T.NEWDECIMAL, flen=5, decimal=2), "-1.5", Decimal("-1.50")),
        (column(T.BIT, flen=12), b"\x0a\x01", 0xA01),
        (column(T.ENUM, elems=("Red", "green")), "red", "Red"),
        (column(T.ENUM, elems=("Red", "green")), 2, "green"),
        (column(T.ENUM, elems=("Red", "green")), 0, ""),
        (column(T.SET, elems=("a", "b", "c")), ["c", "a"], "a,c"),
        (column(T.SET, elems=("a", "b", "c")), 6, "b,c"),
        (column(T.DATE), dt.date(2024, 1, 2), "2024-01-02"),
        (
            column(T.TIMESTAMP, decimal=0),
            dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "2024-01-02 01:04:05",
        ),
        (column(T.DURATION, decimal=0), dt.timedelta(hours=-100), "-100:00:00"),
        (column(T.JSON), {"b": [1, None], "a": "x"}, '{"a": "x", "b": [1, null]}'),
        (column(T.JSON), '"text"', '"text"'),
        (column(T.JSON), 1.0, "1.0"),
        (column(T.BLOB, charset="binary"), "ä", "ä".encode()),
        (column(T.VARCHAR), "ä".encode(), "ä"),
        (column(T.STRING, flen=5), "ab  ", "ab"),
        (column(T.STRING, flen=5, charset="binary"), b"ab", b"ab\0\0\0"),
    ],
)
def test_other_forms_of_a_value_are_taken_too(
    c: ColumnInfo, given_value: object, expected: object
) -> None:
    codec = one_column(c)
    assert codec.decode_insert(codec.encode_insert((1, given_value))) == (1, expected)


@pytest.mark.parametrize(
    ("c", "value"),
    [
        (column(T.TINY), 128),
        (column(T.TINY), "1"),
        (column(T.TINY), 1.0),
        (column(T.LONGLONG, flag=ColumnFlag.UNSIGNED), -1),
        (column(T.LONGLONG), 1 << 63),
        (column(T.YEAR), 1900),
        (column(T.FLOAT), 1e39),
        (column(T.DOUBLE), float("nan")),
        (column(T.DOUBLE), 10**400),
        (column(T.DOUBLE), "1.5"),
        (column(T.DOUBLE, flag=ColumnFlag.UNSIGNED), -0.5),
        (column(T.NEWDECIMAL, flen=5, decimal=2), "1000"),
        (column(T.NEWDECIMAL, flen=5, decimal=2), "x"),
        (column(T.NEWDECIMAL, flen=5, decimal=2), float("inf")),
        (column(T.NEWDECIMAL, flen=5, decimal=2), b"1"),
        (column(T.BIT, flen=4), 16),
        (column(T.ENUM, elems=("x",)), "y"),
        (column(T.ENUM, elems=("x",)), 2),
        (column(T.SET, elems=("x",)), "x,y"),
        (column(T.SET, elems=("x",)), 2),
        (column(T.SET, elems=("x",)), [[]]),
        (column(T.DATE), "2024-01-02 03:04:05"),
        (column(T.DATE), 20240102),
        (column(T.DATE), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
        (column(T.DATETIME, decimal=0), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
        (column(T.TIMESTAMP, decimal=0), "2038-01-19 03:14:08"),
        (column(T.TIMESTAMP, decimal=0), "1969-12-31 23:59:59"),
        (column(T.DURATION, decimal=0), 5),
        (column(T.JSON), "{"),
        (column(T.JSON), object()),
        (column(T.VARCHAR, flen=2), "äöü"),
        (column(T.VARCHAR), 5),
        (column(T.VARCHAR), b"\xff"),
        (column(T.VARCHAR), "\ud800"),
        (column(T.TINY_BLOB, flen=255, charset="binary"), b"x" * 256),
        (column(T.BLOB, charset="binary"), 5),
        (column(T.LONG, flag=NOT_NULL), None),
    ],
)
def test_a_value_that_does_not_fit_is_malformed_and_named(c: ColumnInfo, value: object) -> None:
    codec = one_column(replace(c, name="the_column"))
    with pytest.raises(Malformed, match="the_column"):
        codec.encode_insert((1, value))


def test_a_row_with_the_wrong_number_of_values_is_malformed() -> None:
    with pytest.raises(Malformed, match="3 values for 2 columns"):
        VARCHAR.encode_insert((1, "a", "b"))


def test_a_type_that_rows_cannot_hold_is_malformed() -> None:
    with pytest.raises(Malformed, match="NULL"):
        one_column(column(T.NULL))


def test_stored_numbers_out_of_the_columns_range_are_malformed() -> None:
    raw = one_column(column(T.LONG)).encode_insert((1, 300))
    with pytest.raises(Malformed, match=r"column 'c'.*300"):
        one_column(column(T.TINY)).decode_insert(raw)
    assert one_column(column(T.ENUM, elems=("x",))).decode_insert(raw) == (1, "")
    with pytest.raises(Malformed):
        one_column(column(T.SET, elems=("x",))).decode_insert(raw)
