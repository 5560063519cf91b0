"""The short ways through decoding say what the plain ones say."""

from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from pumpclient.mysql.events.frame import (
    FILE_MAGIC,
    HEADER_SIZE,
    Checksum,
    EventType,
    make_event,
    read_header,
)
from pumpclient.mysql.rows.rows_decoder import Decoder
from pumpclient.mysql.rows.rows_event import LAYOUTS, Kind, RowsEvent
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType
from tests.kit.mysql.binlogs import BinlogFile
from tests.kit.mysql.encoding import format_description
from tests.kit.mysql.row_encoding import encode_rows, make_image

COLUMNS = (
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
FULL = (1 << len(COLUMNS)) - 1
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
rows = st.tuples(st.integers(-(2**63), 2**63 - 1), *(st.none() | value for value in values))
PLAIN = sorted(t for t, layout in LAYOUTS.items() if not layout.is_partial)


@given(st.sampled_from(PLAIN), st.lists(rows, max_size=4), st.booleans())
def test_generated_code_reads_what_the_reader_value_by_value_reads(
    type_: int, drawn: list[tuple[Any, ...]], has_extra: bool
) -> None:
    layout = LAYOUTS[type_]
    drawn = drawn * 2 if layout.kind is Kind.UPDATE else drawn
    event = RowsEvent(
        EventType(type_),
        len(COLUMNS),
        None if layout.kind is Kind.INSERT else FULL,
        None if layout.kind is Kind.DELETE else FULL,
        b"".join(make_image(COLUMNS, row) for row in drawn),
    )
    decoder = Decoder(TableMap("s", "t", COLUMNS))
    plain = decoder.value_by_value(event)
    raw = encode_rows(event, extra=b"xyz" if has_extra else b"")
    assert decoder.changes(type_, raw) == plain
    flat = [row for change in plain for row in change if row is not None]
    assert flat == drawn
    assert [str(row[3]) for row in flat] == [str(row[3]) for row in drawn]


TYPES = [EventType.XID, EventType.STOP, EventType.ANNOTATE_ROWS, EventType.FORMAT_DESCRIPTION]


@given(
    st.lists(st.tuples(st.sampled_from(TYPES[:3]), st.binary(max_size=90)), max_size=8),
    st.sets(st.sampled_from(TYPES)),
    st.sampled_from(Checksum),
    st.booleans(),
    st.integers(1, 400),
    st.integers(0, 60),
)
def test_a_pass_over_some_types_is_the_whole_pass_without_the_others(
    events: list[tuple[EventType, bytes]],
    types: set[EventType],
    checksum: Checksum,
    verifies: bool,
    block: int,
    cut: int,
) -> None:
    description = format_description("10.11.0-MariaDB", checksum)
    parts = [make_event(EventType.FORMAT_DESCRIPTION, description)]
    parts += [make_event(type_, body, checksum=checksum) for type_, body in events]
    data = FILE_MAGIC + b"".join(parts)
    data = data[: len(data) - min(cut, len(parts[-1]))]
    whole = BinlogFile(BytesIO(data), verifies=verifies, block_bytes=block)
    some = BinlogFile(BytesIO(data), verifies=verifies, types=types, block_bytes=block)
    expected = list(whole)
    assert list(some) == [each for each in expected if each[1].type in types]
    assert (some.position, some.torn_bytes) == (whole.position, whole.torn_bytes)
    assert whole.position + whole.torn_bytes == len(data)
    places = [(at, read_header(data, at), data[at : at + h.size]) for at, h, _ in expected]
    assert places == expected


def test_events_that_are_passed_over_are_checked_all_the_same() -> None:
    description = format_description("10.11.0-MariaDB", Checksum.CRC32)
    head = FILE_MAGIC + make_event(EventType.FORMAT_DESCRIPTION, description)
    damaged = bytearray(make_event(EventType.XID, bytes(8)))
    damaged[HEADER_SIZE] ^= 1
    file = BinlogFile(BytesIO(head + damaged), verifies=True, types=[EventType.STOP])
    with pytest.raises(Malformed, match=f"XID .* at {len(head)}"):
        list(file)
    assert file.position == len(head)
    with pytest.raises(Malformed, match=f"at {len(head)}"):
        list(BinlogFile(BytesIO(head + bytes(19)), types=[EventType.STOP]))
