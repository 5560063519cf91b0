"""Maps a column of a TABLE_MAP to its `Reading`; all column types are known here."""

from __future__ import annotations

from collections.abc import Callable

from penstock.codes import Code
from penstock.ddl.charsets import Charset
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.rows.column_values import (
    bit,
    choice,
    date,
    datetime2,
    decimal_reading,
    declared,
    float_reading,
    geometry,
    integer,
    length_size,
    old_datetime,
    old_time,
    old_timestamp,
    text,
    time2,
    timestamp2,
    vector,
    year,
)
from pumpclient.mysql.rows.json_binary import json_text
from pumpclient.mysql.rows.rows_event import PREFIX_CODES, Reading, fixed, prefixed
from pumpclient.mysql.rows.table_map import Column, WireType, charset_of

_INTEGERS = {
    WireType.TINY: 1,
    WireType.SHORT: 2,
    WireType.INT24: 3,
    WireType.LONG: 4,
    WireType.LONGLONG: 8,
}
_FULL = "set the server's binlog_row_metadata to FULL, or complete the map from the table's schema"


def reading_of(column: Column) -> Reading:
    """Return how values of `column` are read.

    Raises `NeedsOperator` when the server did not send enough (a sign, a charset), and `Malformed`
    for types that no server since MySQL 5.0 writes.
    """
    real = column.real_type
    if real in _INTEGERS:
        if column.is_unsigned is None:
            raise NeedsOperator(
                f"the binlog does not have the sign of {real.name}", _FULL, Code.BINLOG_INCOMPLETE
            )
        return integer(_INTEGERS[real], is_unsigned=column.is_unsigned)
    make = _MAKERS.get(real)
    if make is None:
        raise Malformed(
            f"values of type {real.name} are not known",
            "rebuild the table with the server's own version: ALTER TABLE … FORCE",
            Code.ROWS_EVENT,
        )
    return make(column)


def _charset(column: Column) -> Charset:
    if column.collation is None:
        raise NeedsOperator(
            f"the binlog does not have the charset of {column.name}", _FULL, Code.BINLOG_INCOMPLETE
        )
    return charset_of(column.collation)


def _string(column: Column) -> Reading:
    if column.declared is not None:
        return declared(column.declared)
    charset = _charset(column)
    pad_to = column.length if charset.is_binary else 0
    return text(length_size(column.length), charset, pad_to=pad_to)


def _varchar(column: Column) -> Reading:
    is_compressed = column.type is WireType.VARCHAR_COMPRESSED
    prefix = length_size(column.metadata)
    return text(prefix, _charset(column), is_compressed=is_compressed)


def _prefix(column: Column) -> int:
    if column.metadata not in PREFIX_CODES:
        raise Malformed(
            f"a {column.type.name} with lengths of {column.metadata} bytes",
            "the TABLE_MAP is damaged",
            Code.ROWS_EVENT,
        )
    return column.metadata


def _blob(column: Column) -> Reading:
    is_compressed = column.type is WireType.BLOB_COMPRESSED
    return text(_prefix(column), _charset(column), is_compressed=is_compressed)


def _bit(column: Column) -> Reading:
    # The metadata is a pair: bits past the last whole byte, whole bytes.
    bits = (column.metadata & 0xFF) * 8 + (column.metadata >> 8)
    if not 0 < bits <= 64:
        raise Malformed(f"a BIT({bits})", "the TABLE_MAP is damaged", Code.ROWS_EVENT)
    return bit(bits)


def _json(column: Column) -> Reading:
    return prefixed(_prefix(column), "json_text({0})", json_text=json_text)


_MAKERS: dict[WireType, Callable[[Column], Reading]] = {
    WireType.FLOAT: lambda _: float_reading(),
    WireType.DOUBLE: lambda _: fixed("d"),
    WireType.NEWDECIMAL: lambda c: decimal_reading(c.metadata >> 8, c.metadata & 0xFF),
    WireType.YEAR: lambda _: year(),
    WireType.BIT: _bit,
    WireType.DATE: lambda _: date(),
    WireType.NEWDATE: lambda _: date(),
    WireType.TIME2: lambda c: time2(c.metadata),
    WireType.DATETIME2: lambda c: datetime2(c.metadata),
    WireType.TIMESTAMP2: lambda c: timestamp2(c.metadata),
    WireType.TIME: lambda _: old_time(),
    WireType.DATETIME: lambda _: old_datetime(),
    WireType.TIMESTAMP: lambda _: old_timestamp(),
    WireType.STRING: _string,
    WireType.VARCHAR: _varchar,
    WireType.VAR_STRING: _varchar,
    WireType.VARCHAR_COMPRESSED: _varchar,
    WireType.BLOB: _blob,
    WireType.TINY_BLOB: _blob,
    WireType.MEDIUM_BLOB: _blob,
    WireType.LONG_BLOB: _blob,
    WireType.BLOB_COMPRESSED: _blob,
    WireType.ENUM: lambda c: choice(c.length),
    WireType.SET: lambda c: choice(c.length),
    WireType.GEOMETRY: lambda c: geometry(_prefix(c)),
    WireType.VECTOR: lambda c: vector(_prefix(c)),
    WireType.JSON: _json,
}
