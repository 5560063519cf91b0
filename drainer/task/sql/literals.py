"""Literals: writes column values as SQL, one at a time or whole Arrow columns.

A quote inside a string is doubled in both dialects. The differences:

    family          MySQL                    SQLite
    backslash       doubled                  unchanged
    decimal         bare, exact              text, exact: NUMERIC affinity would round it
    float           bare, shortest repr      the same in the range that SQLite parses exactly,
                                             else exact_double(x'<8 bytes>'), which the sink adds
    unsigned > 2^63 bare                     text: it has no larger integers
    enum, set       number (index, mask)     text, the form that a reader expects
    text with NUL   quoted                   CAST(x'..' AS TEXT): NUL ends its statements
    binary          x'..', BINARY(n) padded  the same
    geometry        x'..', SRID and WKB      the same
    JSON            see `jsonb`           text
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codes import Code
from penstock.datum.jsonb import json_literal, text_literal, unmarked
from penstock.datum.rows.fields import number_of
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType

MYSQL = "mysql"
SQLITE = "sqlite"
ARROW = "arrow"
"""Blocks of Arrow instead of SQL, which have no literals (`drainer.task.sql.lake_rows`)."""

_TEXT = pa.large_string()
_INT64_MAX = (1 << 63) - 1
# Within these bounds SQLite reads every shortest decimal text as the same double; a test checks it.
_SQLITE_FLOAT_MIN, _SQLITE_FLOAT_MAX = 1e-4, 1e15


class Family(Enum):
    """Column types that are written in the same way."""

    INT = "int"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    TEMPORAL = "temporal"
    BIT = "bit"
    ENUM = "enum"
    SET = "set"
    JSON = "json"


_INTEGERS = (
    MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG, MysqlType.LONGLONG,
    MysqlType.YEAR,
)  # fmt: skip
_TIMES = (MysqlType.DATE, MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.DURATION)
_FAMILIES = {
    **dict.fromkeys(_INTEGERS, Family.INT),
    **dict.fromkeys(_TIMES, Family.TEMPORAL),
    **dict.fromkeys((MysqlType.FLOAT, MysqlType.DOUBLE), Family.FLOAT),
    MysqlType.NEWDECIMAL: Family.DECIMAL,
    MysqlType.BIT: Family.BIT,
    MysqlType.ENUM: Family.ENUM,
    MysqlType.SET: Family.SET,
    MysqlType.JSON: Family.JSON,
}
_STRINGS = {
    MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING, MysqlType.TINY_BLOB,
    MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB, MysqlType.BLOB, MysqlType.GEOMETRY,
}  # fmt: skip


def family(column: ColumnInfo) -> Family:
    """Return how the column's values are written; raise `Malformed` for a type never stored."""
    if column.tp in _STRINGS:
        return Family.BYTES if column.is_binary else Family.TEXT
    found = _FAMILIES.get(column.tp)
    if found is None:
        raise Malformed(
            f"column {column.name!r} has the type {column.sql_type}, which has no row encoding",
            "leave the table out, or change the column's type",
            Code.DDL_UNSUPPORTED,
        )
    return found


def padded_length(column: ColumnInfo) -> int:
    """Return n for a BINARY(n) column, whose values are padded with zero bytes; else 0."""
    fixed = column.tp is MysqlType.STRING and column.is_binary and column.flen > 0
    return column.flen if fixed else 0


# --- one value at a time -------------------------------------------------------------------


def _sqlite_text(value: Any) -> str:
    text = str(value)
    if "\0" in text:
        return f"CAST(x'{text.encode().hex()}' AS TEXT)"
    return "'" + text.replace("'", "''") + "'"


def _bytes(column: ColumnInfo) -> Callable[[Any], str]:
    length = padded_length(column)

    def literal(value: Any) -> str:
        data = bytes(value).ljust(length, b"\0")
        return f"x'{data.hex()}'"

    return literal


def _mysql_float(value: Any) -> str:
    text = repr(float(value))
    return text if "e" in text else text + "e0"


def sqlite_float(value: float) -> str:
    """Return a literal that SQLite reads back as exactly this double."""
    if value == 0 or _SQLITE_FLOAT_MIN <= abs(value) < _SQLITE_FLOAT_MAX:
        return repr(float(value))
    return f"exact_double(x'{struct.pack('>d', value).hex()}')"


def _sqlite_int(value: Any) -> str:
    return str(value) if value <= _INT64_MAX else f"'{value}'"


def _plain_decimal(value: Any) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _number(column: ColumnInfo) -> Callable[[Any], str]:
    number = number_of(column)
    return lambda value: str(number(value))


def literal(dialect: str, column: ColumnInfo) -> Callable[[Any], str]:
    """Return the function that writes one non-NULL value of the column, as rows decode it."""
    kind = family(column)
    if kind is Family.BYTES:
        return _bytes(column)
    if dialect == SQLITE:
        sqlite: dict[Family, Callable[[Any], str]] = {
            Family.INT: _sqlite_int,
            Family.BIT: _sqlite_int,
            Family.FLOAT: sqlite_float,
            Family.DECIMAL: lambda value: f"'{_plain_decimal(value)}'",
        }
        return sqlite.get(kind, _sqlite_text)
    assert dialect == MYSQL, dialect
    if kind in (Family.ENUM, Family.SET):
        return _number(column)
    mysql: dict[Family, Callable[[Any], str]] = {
        Family.INT: str,
        Family.BIT: str,
        Family.FLOAT: _mysql_float,
        Family.DECIMAL: _plain_decimal,
        Family.JSON: json_literal,
    }
    return mysql.get(kind, lambda value: text_literal(str(value)))


# --- whole columns -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One column's literals, without the text that stands on both sides of every value."""

    values: pa.Array
    open: str = ""
    close: str = ""


def _content(array: pa.Array) -> bytes:
    """Return the bytes of all values, including neighbours in the same buffer."""
    data = array.buffers()[2]
    return b"" if data is None else data.to_pybytes()


def _text_column(dialect: str, array: pa.Array) -> Column:
    array = array.cast(_TEXT)
    content = _content(array)
    if dialect == SQLITE and b"\0" in content:
        texts = [None if v is None else _sqlite_text(v) for v in array.to_pylist()]
        return Column(pa.array(texts, _TEXT))
    if dialect == MYSQL and b"\\" in content:
        array = pc.replace_substring(array, "\\", "\\\\")
    if b"'" in content:
        array = pc.replace_substring(array, "'", "''")
    return Column(array, "'", "'")


def _bytes_column(column: ColumnInfo, array: pa.Array) -> Column:
    array = array.cast(pa.large_binary())
    length = padded_length(column)
    if length and len(array) and (pc.min(pc.binary_length(array)).as_py() or 0) < length:
        padded = [None if v is None else v.ljust(length, b"\0") for v in array.to_pylist()]
        array = pa.array(padded, pa.large_binary())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    raw = memoryview(data if data is not None else b"")
    digits = hexlify(raw[int(ends[0]) : int(ends[-1])]) if len(array) else b""
    moved = np.ascontiguousarray((ends - ends[0]) * 2)
    validity = None
    if array.null_count:
        # Packed again, because the array may be a slice that starts within a byte.
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    text = pa.LargeStringArray.from_buffers(
        len(array), pa.py_buffer(moved), pa.py_buffer(digits), validity
    )
    return Column(text, "x'", "'")


def _float_column(dialect: str, array: pa.Array) -> Column:
    if dialect == SQLITE:
        sizes = np.abs(array.fill_null(0.0).to_numpy(zero_copy_only=False))
        exact = (sizes == 0) | ((sizes >= _SQLITE_FLOAT_MIN) & (sizes < _SQLITE_FLOAT_MAX))
        if not exact.all():
            texts = [None if v is None else sqlite_float(v) for v in array.to_pylist()]
            return Column(pa.array(texts, _TEXT))
    text = array.cast(_TEXT)
    # A bare `-0` would be an integer and lose its sign. In SQLite a bare `1` is an integer also,
    # which loses nothing.
    if pc.any(pc.equal(text, "-0")).as_py():
        text = pc.if_else(pc.equal(text, "-0"), "-0e0", text).cast(_TEXT)
    return Column(text)


def _int_column(dialect: str, array: pa.Array) -> Column:
    text = array.cast(_TEXT)
    if dialect == SQLITE and pa.types.is_uint64(array.type):
        large = pc.greater(array, pa.scalar(_INT64_MAX, pa.uint64()))
        if pc.any(large).as_py():
            quoted = pc.binary_join_element_wise(
                pa.scalar("'", _TEXT), text, pa.scalar("'", _TEXT), pa.scalar("", _TEXT)
            )
            text = pc.if_else(large, quoted, text)
    return Column(text)


def names_array(column: ColumnInfo, array: pa.Array) -> pa.Array:
    """Return enum indexes or set masks as names; raise `Malformed` for an invalid number."""
    coded = array.dictionary_encode()
    names = [number_to_text(column, number) for number in coded.dictionary.to_pylist()]
    return pa.array(names, _TEXT).take(coded.indices)


def number_to_text(column: ColumnInfo, number: int) -> str:
    """Return the text of an enum index or set mask; raise `Malformed` if it is invalid."""
    elems = column.elems
    if column.tp is MysqlType.ENUM:
        if number <= len(elems):
            return elems[number - 1] if number else ""
    elif number >> len(elems) == 0:
        return ",".join(name for i, name in enumerate(elems) if number >> i & 1)
    raise Malformed(
        f"column {column.name!r}: {number} is not one of its {len(elems)} elements",
        "the row was written with another version of the table",
        Code.BINLOG_UNDECODABLE,
    )


def literal_column(dialect: str, column: ColumnInfo, array: pa.Array) -> Column:
    """Return a whole column's literals; `array` is in the storage form of `decode_columns`."""
    kind = family(column)
    if kind is Family.BYTES:
        return _bytes_column(column, array)
    if kind is Family.FLOAT:
        return _float_column(dialect, array)
    if kind in (Family.ENUM, Family.SET) and dialect == SQLITE:
        return _text_column(SQLITE, names_array(column, array))
    if kind is Family.DECIMAL:
        quote = "'" if dialect == SQLITE else ""
        return Column(array.cast(_TEXT), quote, quote)
    if kind is Family.TEMPORAL:
        return Column(array.cast(_TEXT), "'", "'")
    if kind is Family.JSON and dialect == MYSQL and b"\0" in _content(array):
        texts = [None if v is None else json_literal(unmarked(v)) for v in array.to_pylist()]
        return Column(pa.array(texts, _TEXT))
    if kind in (Family.TEXT, Family.JSON):
        return _text_column(dialect, array)
    return _int_column(dialect, array)
