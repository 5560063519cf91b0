"""Lake types: a column's type in Arrow, and so in Delta, and its stored values as such an array.

    upstream                          Arrow               Delta
    TINYINT, SMALLINT, INT, BIGINT    int8 … int64        byte, short, integer, long
    the same, UNSIGNED                the next larger     BIGINT: decimal(20,0)
    YEAR                              int16               short
    FLOAT, DOUBLE                     float, double       float, double
    DECIMAL(p,s), p up to 38          decimal128(p,s)     decimal(p,s)
    DECIMAL above that                string              string, with the column's scale
    texts, ENUM, SET, JSON            string              string
    binaries, BIT, geometries         binary              binary
    DATE                              date32              date
    DATETIME                          timestamp[us]       timestamp_ntz
    TIMESTAMP                         timestamp[us, UTC]  timestamp
    TIME                              string              string, as MySQL prints it: -838:59:59

A lake has only valid dates from the year 1 on; MySQL's other dates (`0000-00-00`, `2020-02-00`)
become NULL, and are counted. CHAR has no trailing spaces and BINARY(n) all its zero bytes, as MySQL
reads them, so that a key has the same bytes whichever form a writer sends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.literals import Family, family, names_array, padded_length
from penstock.datum.rows.fields import decimal_size
from penstock.schema.model import ColumnInfo, MysqlType

DECIMAL_DIGITS_MAX = 38
_SIGNED = {
    MysqlType.TINY: pa.int8(),
    MysqlType.SHORT: pa.int16(),
    MysqlType.INT24: pa.int32(),
    MysqlType.LONG: pa.int32(),
    MysqlType.LONGLONG: pa.int64(),
    MysqlType.YEAR: pa.int16(),
}
_UNSIGNED = {
    MysqlType.TINY: pa.int16(),
    MysqlType.SHORT: pa.int32(),
    MysqlType.INT24: pa.int32(),
    MysqlType.LONG: pa.int64(),
    MysqlType.LONGLONG: pa.decimal128(20, 0),
    MysqlType.YEAR: pa.int16(),
}
_TEMPORAL = {
    MysqlType.DATE: pa.date32(),
    MysqlType.DATETIME: pa.timestamp("us"),
    MysqlType.TIMESTAMP: pa.timestamp("us", "UTC"),
    MysqlType.DURATION: pa.string(),
}
_FIRST_YEAR = b"0001"


def lake_type(column: ColumnInfo) -> pa.DataType:
    """Return the column's type in a lake; raise `Malformed` for a type that is never stored."""
    kind = family(column)
    if kind is Family.INT:
        return (_UNSIGNED if column.is_unsigned else _SIGNED)[column.tp]
    if kind is Family.FLOAT:
        return pa.float32() if column.tp is MysqlType.FLOAT else pa.float64()
    if kind is Family.DECIMAL:
        digits, scale = decimal_size(column)
        return pa.string() if digits > DECIMAL_DIGITS_MAX else pa.decimal128(digits, scale)
    if kind is Family.TEMPORAL:
        return _TEMPORAL[column.tp]
    return pa.binary() if kind in (Family.BYTES, Family.BIT) else pa.string()


def lake_array(column: ColumnInfo, stored: pa.Array) -> pa.Array:
    """Return values in the storage form of `decode_columns` as the lake has them.

    Values that a lake cannot represent are NULL.
    """
    kind, wanted = family(column), lake_type(column)
    if kind is Family.TEMPORAL and column.tp is not MysqlType.DURATION:
        return _moments(stored, wanted)
    if kind is Family.BIT:
        return _bits(stored, (column.flen + 7) // 8)
    if kind in (Family.ENUM, Family.SET):
        return names_array(column, stored).cast(wanted)
    if length := padded_length(column):
        padded = [None if v is None else v.ljust(length, b"\0") for v in stored.to_pylist()]
        return pa.array(padded, wanted)
    if kind is Family.TEXT and column.tp is MysqlType.STRING:
        stored = pc.utf8_rtrim(stored, " ")
    return stored.cast(wanted)


def _bits(stored: pa.Array, length: int) -> pa.Array:
    """Return bit masks in MySQL's output form: bytes, the highest bits first."""
    values = stored.fill_null(0).to_numpy(zero_copy_only=False).astype(">u8")
    data = values.view(np.uint8).reshape(-1, 8)[:, 8 - length :].tobytes()
    whole = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(length), len(stored), [None, pa.py_buffer(data)]
    ).cast(pa.binary())
    return pc.if_else(stored.is_valid(), whole, pa.scalar(None, pa.binary()))


def _moments(stored: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Parse printed dates or times; a value that is invalid in a lake becomes NULL."""
    texts = stored.cast(pa.string())
    before = pc.less(texts.cast(pa.binary()), pa.scalar(_FIRST_YEAR, pa.binary()))
    texts = pc.if_else(before, pa.scalar(None, pa.string()), texts)
    try:
        return _parsed(texts, wanted)
    except pa.ArrowInvalid:  # One of them is not a day of the calendar.
        return pa.concat_arrays([_one(texts.slice(i, 1), wanted) for i in range(len(texts))])


def _one(text: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return _parsed(text, wanted)
    except pa.ArrowInvalid:
        return pa.nulls(1, wanted)


def _parsed(texts: pa.Array, wanted: Any) -> pa.Array:
    if not pa.types.is_timestamp(wanted):
        return texts.cast(wanted)
    local = texts.cast(pa.timestamp("us"))
    return local if wanted.tz is None else pc.assume_timezone(local, wanted.tz)
