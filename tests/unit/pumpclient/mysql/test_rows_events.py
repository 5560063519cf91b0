from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.events.frame import ROWS_TYPES, EventType
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.json_binary import JsonChange, Operation
from pumpclient.mysql.rows.rows_decoder import Decoder
from pumpclient.mysql.rows.rows_event import LAYOUTS, Kind, RowsEvent
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType
from tests.kit.mysql.row_encoding import (
    encode_map,
    encode_rows,
    make_image,
    make_partial_image,
    string_metadata,
)

CHOICE = string_metadata(WireType.ENUM, 1)
COLUMNS = (
    Column(WireType.LONG, is_unsigned=True, name="id"),
    Column(WireType.VARCHAR, 400, collation=45, name="größe"),
    Column(WireType.YEAR, is_unsigned=True, name="y"),
    Column(
        WireType.STRING, CHOICE, collation=8, name="e", labels=("a", "ß")
    ),
    Column(
        WireType.STRING,
        string_metadata(WireType.SET, 1),
        collation=45,
        name="s",
        labels=("x",),
    ),
    Column(WireType.GEOMETRY, 4, collation=63, name="g"),
    Column(WireType.LONGLONG, is_unsigned=False, name="n"),
    Column(WireType.BLOB, 2, collation=63, name="b"),
    Column(WireType.VARCHAR, 20, collation=255, name="v"),
)  # fmt: skip
TABLE = TableMap("shop", "orders", COLUMNS)
ROW: tuple[Any, ...] = (4_000_000_000, "Ærø" * 60, 0, 2, 1, b"\0\0\0\0wkb", -5, b"\xff", None)
OTHER: tuple[Any, ...] = (1, None, 2000, None, None, None, None, b"", "v")
FULL = (1 << len(COLUMNS)) - 1
USUAL = sorted(t for t in ROWS_TYPES if t is not EventType.PARTIAL_UPDATE_ROWS)


def rows_event(type_: EventType, rows: list[tuple[Any, ...]], **changed: Any) -> RowsEvent:
    kind = LAYOUTS[type_].kind
    event = RowsEvent(
        type_,
        len(COLUMNS),
        None if kind is Kind.INSERT else FULL,
        None if kind is Kind.DELETE else FULL,
        b"".join(make_image(COLUMNS, row) for row in rows),
    )
    return replace(event, **changed)


def test_a_table_map_survives_its_bytes_with_all_that_counts_here() -> None:
    skipped = b"".join(bytes([number, 2]) + b"xx" for number in (7, 8, 9, 12, 13))
    raw = encode_map(TABLE, Flavor.MARIADB, more=skipped)
    assert TableMap.decode(raw, Flavor.MARIADB) == TABLE
    for wrong in (bytes([14, 0]), skipped[:4] * 2):
        with pytest.raises(Malformed, match="is unknown or comes twice"):
            TableMap.decode(encode_map(TABLE, Flavor.MARIADB, more=wrong), Flavor.MARIADB)


def test_mysql_counts_no_shapes_as_texts() -> None:
    columns = tuple(
        replace(c, collation=None) if c.type is WireType.GEOMETRY else c for c in COLUMNS
    )
    vector = Column(WireType.VECTOR, 4, collation=63, name="w")
    table = replace(TABLE, columns=(*columns, vector))
    assert TableMap.decode(encode_map(table), Flavor.MYSQL) == table


def test_a_map_that_a_mariadb_server_wrote_is_read() -> None:
    # MariaDB 10.11: (id int primary key, a varchar(2000) compressed, b blob compressed, u uuid,
    # i6 inet6, i4 inet4, g point, y year, e enum('a','ß'), s set('x','y'), bi bit(10),
    # bin binary(5), f float, j json).
    raw = bytes.fromhex(
        "12000000000001000164000174000e038d8cfefefeff0dfefe10fe04fc14411f02fe10fe10fe0404"
        "f701f8010201fe050404fe3f01014002053f002d072e070101042202696401610162017502693602"
        "693401670179016501730262690362696e0166016a0a012d05050201780179060602016102c39f08"
        "0100"
    )
    table = TableMap.decode(raw, Flavor.MARIADB)
    columns = {column.name: column for column in table.columns}
    assert list(columns) == [
        *["id", "a", "b", "u", "i6", "i4", "g", "y", "e", "s", "bi", "bin", "f", "j"]
    ]
    assert {name: columns[name].collation for name in ("a", "b", "g", "bin", "j", "e")} == {
        "a": 45, "b": 63, "g": 63, "bin": 63, "j": 46, "e": 45,
    }  # fmt: skip
    assert (columns["y"].is_unsigned, columns["f"].is_unsigned) == (True, False)
    assert (columns["e"].labels, columns["s"].labels) == (("a", "ß"), ("x", "y"))
    assert columns["bin"].length == 5


@pytest.mark.parametrize("type_", USUAL, ids=lambda t: t.name)
def test_rows_of_every_event_type_are_read(type_: EventType) -> None:
    event = rows_event(type_, [ROW, OTHER, OTHER, ROW])
    assert RowsEvent.decode(type_, encode_rows(event)) == event
    changes = Decoder(TABLE).changes(type_, encode_rows(event))
    expected: dict[Kind, list[tuple[Any, Any]]] = {
        Kind.INSERT: [(None, ROW), (None, OTHER), (None, OTHER), (None, ROW)],
        Kind.DELETE: [(ROW, None), (OTHER, None), (OTHER, None), (ROW, None)],
        Kind.UPDATE: [(ROW, OTHER), (OTHER, ROW)],
    }
    assert changes == expected[event.layout.kind]


def test_extra_data_is_stepped_over() -> None:
    event = rows_event(EventType.UPDATE_ROWS, [ROW, OTHER])
    raw = encode_rows(event, extra=b"\x01\x00\x00\x01\x00")
    assert Decoder(TABLE).changes(event.type, raw) == [(ROW, OTHER)]


@pytest.mark.parametrize("type_", [EventType.WRITE_ROWS, EventType.UPDATE_ROWS_V1])
def test_an_image_without_all_columns_is_refused_with_what_to_set(type_: EventType) -> None:
    kind = LAYOUTS[type_].kind
    image = make_image(COLUMNS, ROW, 0b1)
    event = rows_event(
        type_, [], images=image * 2, after=1, before=None if kind is Kind.INSERT else 1
    )
    with pytest.raises(NeedsOperator, match="binlog_row_image"):
        Decoder(TABLE).changes(type_, encode_rows(event))


def test_an_image_after_without_the_columns_that_stay_is_made_whole() -> None:
    images = make_image(COLUMNS, ROW) + make_image(COLUMNS, OTHER, 0b10)
    event = rows_event(EventType.UPDATE_ROWS_V1, [], images=images, after=0b10)
    changes = Decoder(TABLE).changes(event.type, encode_rows(event))
    assert changes == [(ROW, (ROW[0], None, *ROW[2:]))]


def test_a_partial_update_applies_its_changes_to_the_row_before() -> None:
    columns = (
        Column(WireType.LONG, is_unsigned=False),
        Column(WireType.JSON, 4),
        Column(WireType.JSON, 4),
        Column(WireType.JSON, 4),
    )
    before = (1, {"a": 1, "b": [1, 2]}, None, "keep")
    after = (2, [JsonChange(Operation.REPLACE, "$.b[1]", 3.0)], {"n": 1}, None)
    images = make_image(columns, before) + make_partial_image(columns, after)
    type_ = EventType.PARTIAL_UPDATE_ROWS
    event = RowsEvent(type_, 4, 15, 15, images)
    decoder = Decoder(TableMap("s", "t", columns))
    assert decoder.changes(type_, encode_rows(event)) == [
        (
            (1, '{"a": 1, "b": [1, 2]}', None, '"keep"'),
            (2, '{"a": 1, "b": [1, 3.0]}', '{"n": 1}', None),
        )
    ]
    plain = make_image(columns, before) + make_partial_image(columns, before)
    ((old, new),) = decoder.changes(type_, encode_rows(replace(event, images=plain)))
    assert old == new


@given(st.sampled_from(sorted(ROWS_TYPES)), st.data())
def test_damaged_rows_are_malformed(type_: EventType, data: st.DataObject) -> None:
    raw = bytearray(encode_rows(rows_event(type_, [ROW, OTHER])))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with suppress(NeedsOperator):
        Decoder(TABLE).changes(type_, cut)


@given(st.data())
def test_damaged_table_maps_are_malformed(data: st.DataObject) -> None:
    raw = bytearray(encode_map(TABLE, Flavor.MARIADB))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with suppress(NeedsOperator):
        Decoder(TableMap.decode(cut, Flavor.MARIADB))


ALL_KINDS = (
    Column(WireType.LONGLONG, is_unsigned=False),
    Column(WireType.VARCHAR, 40, collation=45),
    Column(WireType.INT24, is_unsigned=True),
    Column(WireType.NEWDECIMAL, 20 << 8 | 4, is_unsigned=False),
    Column(WireType.DOUBLE, is_unsigned=False),
    Column(WireType.DATETIME2, 3),
    Column(WireType.VARCHAR, 900, collation=45),
    Column(WireType.TINY, is_unsigned=False),
    Column(WireType.BLOB, 3, collation=63),
)
ALL_BITS = (1 << len(ALL_KINDS)) - 1
texts = st.text("aß€😀", max_size=8)
digits = st.integers(1 - 10**20, 10**20 - 1)
values: list[st.SearchStrategy[Any]] = [
    texts,
    st.integers(0, 2**24 - 1),
    digits.map(lambda n: Decimal(n).scaleb(-4)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.datetimes().map(lambda at: f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}".zfill(23)),
    texts,
    st.integers(-128, 127),
    st.binary(max_size=9),
]
drawn_rows = st.tuples(st.integers(-(2**63), 2**63 - 1), *(st.none() | value for value in values))


@given(st.sampled_from(USUAL), st.lists(drawn_rows, max_size=4), st.booleans())
def test_generated_code_reads_what_the_reader_value_by_value_reads(
    type_: int, drawn: list[tuple[Any, ...]], has_extra: bool
) -> None:
    layout = LAYOUTS[type_]
    drawn = drawn * 2 if layout.kind is Kind.UPDATE else drawn
    event = RowsEvent(
        EventType(type_),
        len(ALL_KINDS),
        None if layout.kind is Kind.INSERT else ALL_BITS,
        None if layout.kind is Kind.DELETE else ALL_BITS,
        b"".join(make_image(ALL_KINDS, row) for row in drawn),
    )
    decoder = Decoder(TableMap("s", "t", ALL_KINDS))
    plain = decoder.value_by_value(event)
    raw = encode_rows(event, extra=b"xyz" if has_extra else b"")
    assert decoder.changes(type_, raw) == plain
    flat = [row for change in plain for row in change if row is not None]
    assert flat == drawn
    assert [str(row[3]) for row in flat] == [str(row[3]) for row in drawn]
