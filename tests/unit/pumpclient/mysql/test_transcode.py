"""Row images become the bytes that a writer would have encoded, whatever the table is like."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.rows.rows_decoder import Decoder
from pumpclient.mysql.rows.rows_event import RowsEvent
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType
from pumpclient.mysql.translate.transcode import Transcoder
from tests.kit.mysql.row_encoding import encode_rows, make_image, string_metadata
from tests.unit.penstock.ddl_session import DdlSession
from tests.unit.pumpclient.mysql.test_rows_values import (
    decimals,
    floats32,
    fraction,
    integers,
    signed_times,
)

UTF8, BINARY, LATIN1 = 45, 63, 8


def real_dates() -> st.SearchStrategy[str]:
    return st.one_of(
        st.dates().filter(lambda d: d.year > 0).map(str),
        st.just("0000-00-00"),
        st.just("2020-00-00"),
    )


def moments(fsp: int, first: int = 1) -> st.SearchStrategy[str]:
    whole = st.datetimes().filter(lambda d: first < d.year < 2038 or first == 1)
    return st.builds(
        "{}{}".format, whole.map(lambda d: d.strftime("%Y-%m-%d %H:%M:%S").zfill(19)), fraction(fsp)
    )


def texts(size: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=size).map(lambda t: t.rstrip(" "))


JSON = st.sampled_from(['{"a": 1, "bb": [1, 2.5, null]}', "[]", '"text"', "3", "true"])

TYPES: list[tuple[str, Column, st.SearchStrategy[object]]] = [
    ("TINYINT", Column(WireType.TINY, is_unsigned=False), integers(1, False)),
    ("SMALLINT UNSIGNED", Column(WireType.SHORT, is_unsigned=True), integers(2, True)),
    ("MEDIUMINT", Column(WireType.INT24, is_unsigned=False), integers(3, False)),
    ("INT UNSIGNED", Column(WireType.LONG, is_unsigned=True), integers(4, True)),
    ("BIGINT", Column(WireType.LONGLONG, is_unsigned=False), integers(8, False)),
    ("BIGINT UNSIGNED", Column(WireType.LONGLONG, is_unsigned=True), integers(8, True)),
    ("BIGINT", Column(WireType.SHORT, is_unsigned=False), integers(2, False)),
    ("FLOAT", Column(WireType.FLOAT, 4, is_unsigned=False), floats32()),
    ("DOUBLE", Column(WireType.DOUBLE, 8, is_unsigned=False),
     st.floats(allow_nan=False, allow_infinity=False)),
    ("DECIMAL(20,6)", Column(WireType.NEWDECIMAL, 20 << 8 | 6, is_unsigned=False), decimals(20, 6)),
    ("DECIMAL(30,8)", Column(WireType.NEWDECIMAL, 20 << 8 | 6, is_unsigned=False), decimals(20, 6)),
    ("DECIMAL(9,2) UNSIGNED", Column(WireType.NEWDECIMAL, 9 << 8 | 2, is_unsigned=True),
     decimals(9, 2).map(abs)),
    ("DATE", Column(WireType.DATE), real_dates()),
    ("DATETIME", Column(WireType.DATETIME2, 0), moments(0)),
    ("DATETIME(3)", Column(WireType.DATETIME2, 3), moments(3)),
    ("DATETIME(6)", Column(WireType.DATETIME2, 6), moments(6)),
    ("DATETIME(6)", Column(WireType.DATETIME2, 2), moments(2)),
    ("TIMESTAMP NULL", Column(WireType.TIMESTAMP2, 0), moments(0, 1970)),
    ("TIMESTAMP(5) NULL", Column(WireType.TIMESTAMP2, 5), moments(5, 1970)),
    ("TIME", Column(WireType.TIME2, 0), signed_times(0)),
    ("TIME(4)", Column(WireType.TIME2, 4), signed_times(4)),
    ("YEAR", Column(WireType.YEAR), st.one_of(st.just(0), st.integers(1901, 2155))),
    ("BIT(11)", Column(WireType.BIT, 3 << 8 | 1), st.integers(0, 2047)),
    ("ENUM('a','b','c')", Column(WireType.STRING, WireType.ENUM << 8 | 1), st.integers(0, 3)),
    ("SET('a','b','c')", Column(WireType.STRING, WireType.SET << 8 | 1), st.integers(0, 7)),
    ("VARCHAR(300)", Column(WireType.VARCHAR, 1200, collation=UTF8), texts(300)),
    ("VARCHAR(20)", Column(WireType.VARCHAR, 20, collation=LATIN1),
     st.text(st.characters(codec="latin-1", min_codepoint=32, max_codepoint=126), max_size=20)),
    ("CHAR(10)", Column(WireType.STRING, string_metadata(WireType.STRING, 40), collation=UTF8),
     texts(10)),
    ("BINARY(5)", Column(WireType.STRING, string_metadata(WireType.STRING, 5), collation=BINARY),
     st.binary(min_size=5, max_size=5)),
    ("VARBINARY(50)", Column(WireType.VARCHAR, 50, collation=BINARY), st.binary(max_size=50)),
    ("LONGTEXT", Column(WireType.BLOB, 4, collation=UTF8), texts(600)),
    ("LONGBLOB", Column(WireType.BLOB, 4, collation=BINARY), st.binary(max_size=600)),
    ("VARCHAR(99)", Column(WireType.VARCHAR_COMPRESSED, 400, collation=UTF8), texts(99)),
    ("JSON", Column(WireType.BLOB, 4, collation=UTF8), JSON),
    ("GEOMETRY", Column(WireType.GEOMETRY, 4), st.binary(max_size=600)),
    ("POINT", Column(WireType.GEOMETRY, 4, collation=BINARY), st.binary(max_size=25)),
]  # fmt: skip
KEYS = [
    ("BIGINT", Column(WireType.LONGLONG, is_unsigned=False), integers(8, False), "PRIMARY KEY (k)"),
    ("BIGINT UNSIGNED", Column(WireType.LONGLONG, is_unsigned=True), integers(8, True),
     "PRIMARY KEY (k)"),
    ("INT", Column(WireType.LONG, is_unsigned=False), integers(4, False), ""),
    ("VARCHAR(20)", Column(WireType.VARCHAR, 80, collation=UTF8), texts(20), "PRIMARY KEY (k)"),
    ("VARCHAR(20)", Column(WireType.VARCHAR, 80, collation=UTF8), texts(20), "PRIMARY KEY (k(3))"),
    ("TIME", Column(WireType.TIME2, 0), signed_times(0), "PRIMARY KEY (k)"),
]  # fmt: skip
WRITE, UPDATE, DELETE = (
    EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_V1,
)


def made(columns: list[str]) -> TableInfo:
    session = DdlSession()
    session.run("CREATE DATABASE db")
    session.run(f"CREATE TABLE db.t ({', '.join(columns)})")
    return session.catalog.tables("db")[0][1]


def event(type_: EventType, width: int, images: bytes) -> bytes:
    full = (1 << width) - 1
    before = None if type_ is WRITE else full
    after = None if type_ is DELETE else full
    return encode_rows(RowsEvent(type_, width, before, after, images))


@settings(max_examples=25)  # Each makes a table and generates code for it.
@given(st.data())
def test_images_become_what_a_writer_encodes(data: st.DataObject) -> None:
    key_sql, key, key_values, primary = data.draw(st.sampled_from(KEYS))
    chosen = data.draw(st.lists(st.sampled_from(TYPES), max_size=6))
    sql = [f"k {key_sql} NOT NULL", *(f"c{i} {each[0]}" for i, each in enumerate(chosen))]
    table = made([*sql, *filter(None, [primary])])
    columns = (key, *(each[1] for each in chosen))
    table_map = TableMap("db", "t", columns)
    transcoder = Transcoder(table_map, table, rowid=lambda: 77)
    codec = RowCodec(table)
    row = st.tuples(key_values, *(st.one_of(st.none(), each[2]) for each in chosen))
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    images = [make_image(columns, each) for each in rows]
    kind, found = transcoder.changes(WRITE, event(WRITE, len(columns), b"".join(images)))
    assert kind is MutationType.INSERT
    assert found == [codec.encode_insert(each, rowid=77) for each in rows]
    kind, found = transcoder.changes(DELETE, event(DELETE, len(columns), b"".join(images)))
    assert (kind, found) == (MutationType.DELETE, [codec.encode_delete(each) for each in rows])
    pair = images[0] + images[-1]
    kind, found = transcoder.changes(UPDATE, event(UPDATE, len(columns), pair))
    assert (kind, found) == (MutationType.UPDATE, [codec.encode_update(rows[0], rows[-1])])


INT = Column(WireType.LONG, is_unsigned=False)


@pytest.mark.parametrize("text", ["2020-02-31", "2019-02-29", "2021-00-31", "9999-11-31"])
@pytest.mark.parametrize("key", ["a", "a, b", "c(2), b"])
def test_a_date_that_no_calendar_has_stays_what_the_server_holds(text: str, key: str) -> None:
    table = made(["a INT", "b DATE", "c VARCHAR(9)", f"PRIMARY KEY ({key})"])
    columns = INT, Column(WireType.DATE), Column(WireType.VARCHAR, 36, collation=UTF8)
    transcoder = Transcoder(TableMap("db", "t", columns), table)
    image = make_image(columns, (1, text, "key"))
    found = transcoder.changes(WRITE, event(WRITE, 3, image))[1]
    assert RowCodec(table).decode_insert(found[0]) == (1, text, "key")


def test_columns_meet_by_name_when_the_server_sends_names() -> None:
    table = made(["a INT PRIMARY KEY", "b INT", "c VARCHAR(9)"])
    text = Column(WireType.VARCHAR, 36, name="C", collation=UTF8)
    columns = (text, Column(WireType.LONG, is_unsigned=False, name="b"),
               Column(WireType.LONG, is_unsigned=False, name="a"))  # fmt: skip
    transcoder = Transcoder(TableMap("db", "t", columns), table)
    image = make_image(columns, ("x", 2, 1))
    found = transcoder.changes(WRITE, event(WRITE, 3, image))[1]
    assert RowCodec(table).decode_insert(found[0]) == (1, 2, "x")


def test_what_a_server_does_not_say_is_taken_from_the_table() -> None:
    table = made(["a BIGINT UNSIGNED PRIMARY KEY", "b VARCHAR(9) CHARACTER SET latin1"])
    columns = Column(WireType.LONGLONG), Column(WireType.VARCHAR, 9)
    transcoder = Transcoder(TableMap("db", "t", columns), table)
    found = transcoder.changes(WRITE, event(WRITE, 2, b"\0" + b"\xff" * 8 + b"\x01\xe9"))[1]
    assert RowCodec(table).decode_insert(found[0]) == ((1 << 64) - 1, "é")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((INT,), "1 columns, the table has 2 .'a', 'b'."),
        ((INT, INT, INT), "3 columns, the table has 2"),
        ((INT, INT), "'b' is LONG in the rows and VARCHAR"),
        ((Column(WireType.LONG, is_unsigned=True), Column(WireType.VARCHAR, 36)), "'a' is unsig"),
        ((Column(WireType.LONG, name="a"), Column(WireType.VARCHAR, 9, name="z")), "no column 'z'"),
        ((Column(WireType.LONG, name="a"),), "lack 'b'"),
    ],
)  # fmt: skip
def test_a_table_that_is_another_stops_the_source_by_name(
    columns: tuple[Column, ...], message: str
) -> None:
    table = made(["a INT PRIMARY KEY", "b VARCHAR(9)"])
    with pytest.raises(NeedsOperator, match=f"rows of db.t: .*{message}"):
        Transcoder(TableMap("db", "t", columns), table)


def test_merged_tables_may_lack_columns_that_take_null() -> None:
    table = made(["a INT PRIMARY KEY", "b VARCHAR(9)"])
    columns = (Column(WireType.LONG, name="a", is_unsigned=False),)
    transcoder = Transcoder(TableMap("db", "t", columns), table, may_lack=True)
    codec = RowCodec(table)
    image = b"\0" + (5).to_bytes(4, "little")
    assert codec.decode_insert(transcoder.changes(WRITE, event(WRITE, 1, image))[1][0]) == (5, None)
    deleted = transcoder.changes(DELETE, event(DELETE, 1, image))[1][0]
    assert codec.decode_delete(deleted) == (5, None)
    strict = made(["a INT PRIMARY KEY", "b VARCHAR(9) NOT NULL"])
    with pytest.raises(NeedsOperator, match="lack 'b'"):
        Transcoder(TableMap("db", "t", columns), strict, may_lack=True)


@pytest.mark.parametrize("key", ["INT PRIMARY KEY", "INT", "INT UNSIGNED PRIMARY KEY"])
def test_columns_that_merged_tables_lack_have_their_default(key: str) -> None:
    more = ["b INT NOT NULL DEFAULT 7", "c VARCHAR(9) DEFAULT 'x'", "d DECIMAL(5,2) DEFAULT 1.5"]
    table = made([f"a {key}", *more, "e DATETIME DEFAULT CURRENT_TIMESTAMP", "f TEXT NOT NULL"])
    column = Column(WireType.LONG, name="a", is_unsigned="UNSIGNED" in key)
    last = Column(WireType.BLOB, 2, name="f", collation=UTF8)
    transcoder = Transcoder(TableMap("db", "t", (column, last)), table, may_lack=True)
    codec = RowCodec(table)
    image = make_image([column, last], (5, "z"))
    row = 5, 7, "x", Decimal("1.50"), None, "z"
    inserted = transcoder.changes(WRITE, event(WRITE, 2, image))[1][0]
    assert tuple(codec.decode_insert(inserted)) == row
    deleted = transcoder.changes(DELETE, event(DELETE, 2, image))[1][0]
    assert tuple(codec.decode_delete(deleted)) == row


def test_images_that_lack_columns_are_refused() -> None:
    table = made(["a INT PRIMARY KEY", "b INT"])
    transcoder = Transcoder(TableMap("db", "t", (INT, INT)), table)
    body = encode_rows(RowsEvent(WRITE, 2, None, 1, b"\0" + bytes(4)))
    with pytest.raises(NeedsOperator, match=r"db\.t"):
        transcoder.changes(WRITE, body)


@pytest.mark.parametrize("generated", ["STORED", "VIRTUAL"])
def test_images_may_lack_what_every_server_computes_itself(generated: str) -> None:
    table = made(["a INT PRIMARY KEY", f"g INT AS (a + 1) {generated} NOT NULL", "b INT"])
    transcoder = Transcoder(TableMap("db", "t", (INT, INT, INT)), table)
    image = make_image([INT] * 3, (1, None, 5), present=0b101)
    deleted = transcoder.changes(DELETE, encode_rows(RowsEvent(DELETE, 3, 0b101, None, image)))[1]
    assert RowCodec(table).decode_delete(deleted[0]) == (1, None, 5)
    with pytest.raises(NeedsOperator, match="columns \\[0, 2\\]"):
        transcoder.changes(DELETE, encode_rows(RowsEvent(DELETE, 3, 0b010, None, b"\0" + bytes(4))))


def test_a_value_that_the_column_does_not_take_names_table_and_column() -> None:
    table = made(["a INT PRIMARY KEY", "b TINYINT"])
    transcoder = Transcoder(TableMap("db", "t", (INT, INT)), table)
    image = make_image([INT] * 2, (1, 300))
    with pytest.raises(NeedsOperator, match=r"rows of db\.t: column 'b'.*300"):
        transcoder.changes(WRITE, event(WRITE, 2, image))


_UCS2, _UTF8MB3 = 35, 33


@pytest.mark.parametrize(
    ("collation", "raw", "charset"),
    [(_UCS2, b"\xd8\x3d", "ucs2"), (_UTF8MB3, b"\xed\xa0\xbd", "utf8")],
)
def test_a_text_that_its_charset_does_not_have_names_column_charset_and_bytes(
    collation: int, raw: bytes, charset: str
) -> None:
    table = made(["a INT PRIMARY KEY", "b VARCHAR(9)"])
    columns = (INT, Column(WireType.VARCHAR, 27, collation=collation))
    image = b"\0" + (1).to_bytes(4, "little") + bytes([len(raw)]) + raw
    body = event(WRITE, 2, image)
    found = rf"rows of db\.t: column 'b' \(VARCHAR in {charset}\w*\).*0x{raw.hex()} is not valid"
    with pytest.raises(Malformed, match=found):
        Transcoder(TableMap("db", "t", columns), table).changes(WRITE, body)
    with pytest.raises(Malformed, match=f"column number 2 .*{charset}.*0x{raw.hex()}"):
        Decoder(TableMap("db", "t", columns)).changes(WRITE, body)


def test_a_decimal_out_of_range_names_its_format_and_a_cut_image_no_column() -> None:
    columns = (INT, Column(WireType.NEWDECIMAL, 2 << 8 | 1, is_unsigned=False))
    decoder = Decoder(TableMap("db", "t", columns))
    image = b"\0" + bytes(4) + b"\xe3\x03"
    with pytest.raises(Malformed, match=r"column number 2 \(DECIMAL\(2,1\)\) cannot be read"):
        decoder.changes(WRITE, event(WRITE, 2, image))
    with pytest.raises(Malformed, match=r"rows of db\.t: cannot be read"):
        decoder.changes(WRITE, event(WRITE, 2, image[:-1]))


@settings(max_examples=25)
@given(st.binary(max_size=60))
def test_damaged_images_are_malformed_and_nothing_else(images: bytes) -> None:
    table = made(["a INT PRIMARY KEY", "b VARCHAR(9)", "c DATETIME(3)", "d DECIMAL(9,2)"])
    columns = (INT, Column(WireType.VARCHAR, 36, collation=UTF8), Column(WireType.DATETIME2, 3),
               Column(WireType.NEWDECIMAL, 9 << 8 | 2, is_unsigned=False))  # fmt: skip
    transcoder = Transcoder(TableMap("db", "t", columns), table)
    for type_ in (WRITE, UPDATE, DELETE):
        try:
            transcoder.changes(type_, event(type_, 4, images))
        except (Malformed, NeedsOperator):
            continue


def test_json_of_mysql_becomes_json_of_tidb() -> None:
    table = made(["a INT PRIMARY KEY", "j JSON"])
    columns = (INT, Column(WireType.JSON, 4))
    value = {"zz": [1, 2.5, None], "a": {"b": "ü"}, "": True}
    image = make_image(columns, (1, value))
    body = event(WRITE, 2, image)
    row = Transcoder(TableMap("db", "t", columns), table).changes(WRITE, body)[1][0]
    assert json.loads(str(RowCodec(table).decode_insert(row)[1])) == value


CURRENT, NEW_CURRENT, PAST = (
    "2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999", "2026-01-02 03:04:05.000006",
)  # fmt: skip


@pytest.mark.parametrize("end", [CURRENT, NEW_CURRENT])
def test_of_a_versioned_table_current_rows_alone_become_changes(end: str) -> None:
    times = [Column(WireType.TIMESTAMP2, 6, name=name) for name in ("row_start", "row_end")]
    columns = (replace(INT, name="id"), replace(INT, name="v"), *times)
    table = replace(made(["id INT PRIMARY KEY", "v INT"]), period=("row_start", "row_end"))
    counts: list[int] = []
    transcoder = Transcoder(TableMap("db", "t", columns), table, on_history=counts.append)
    assert transcoder.is_versioned

    def steps(type_: EventType, *rows: tuple[int, int | None, str]) -> list[Any]:
        images = [make_image(columns, (k, v, PAST, until)) for k, v, until in rows]
        return transcoder.steps(type_, event(type_, 4, b"".join(images)))

    codec = RowCodec(table)
    assert steps(WRITE, (1, 1, end), (1, 2, PAST), (2, None, end)) == [
        (MutationType.INSERT, [codec.encode_insert((1, 1)), codec.encode_insert((2, None))])
    ]
    assert steps(WRITE, (1, 2, PAST)) == []
    assert steps(DELETE, (1, 1, PAST), (2, 2, end)) == [
        (MutationType.DELETE, [codec.encode_delete((2, 2))])
    ]
    pairs = [
        (1, 1, end), (1, 1, PAST),  # Goes.
        (2, 2, end), (2, 3, end),
        (3, 3, end), (3, 3, end),  # Nothing but the start of its time changes.
        (5, 1, PAST), (5, 1, PAST),
        (4, 2, end), (5, 2, end),
        (2, 3, end), (2, 3, PAST),
    ]  # fmt: skip
    assert steps(UPDATE, *pairs) == [
        (MutationType.DELETE, [codec.encode_delete((1, 1))]),
        (MutationType.UPDATE,
         [codec.encode_update((2, 2), (2, 3)), codec.encode_update((4, 2), (5, 2))]),
        (MutationType.DELETE, [codec.encode_delete((2, 3))]),
    ]  # fmt: skip
    assert counts == [1, 1, 1, 1]
    with pytest.raises(NeedsOperator, match="history becomes current"):
        steps(UPDATE, (1, 1, PAST), (1, 1, end))


def test_without_names_the_last_two_columns_of_a_versioned_table_are_its_period() -> None:
    times = [Column(WireType.TIMESTAMP2, 6)] * 2
    table_map = TableMap("db", "t", (INT, INT, *times))
    table = replace(made(["id INT PRIMARY KEY", "v INT"]), period=("row_start", "row_end"))
    assert Transcoder(table_map, table).is_versioned
    plain = TableMap("db", "t", (INT, INT))
    assert not Transcoder(plain, table).is_versioned
    with pytest.raises(NeedsOperator, match="binlog_row_metadata"):
        Transcoder(table_map, replace(table, period=("s", "e")))
    with pytest.raises(NeedsOperator, match="no TIMESTAMP"):
        Transcoder(TableMap("db", "t", (INT,) * 4), table)
    with pytest.raises(NeedsOperator, match="4 columns"):
        Transcoder(table_map, replace(table, period=()))
