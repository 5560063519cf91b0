"""Debezium types: how a column's values are written in Debezium JSON, and their schema.

    MySQL                          schema type   semantic name                       JSON
    -----------------------------  ------------  ----------------------------------  ---------------
    TINYINT, SMALLINT              int16         -                                   number
    MEDIUMINT, INT, SMALLINT U.    int32         -                                   number
    INT UNSIGNED, BIGINT           int64         -                                   number
    BIGINT UNSIGNED                -             -                                   number
             in schemas            bytes         o.a.kafka.connect.data.Decimal      base64
    FLOAT, DOUBLE                  float, double -                                   number
    DECIMAL  precise               bytes         o.a.kafka.connect.data.Decimal      base64
             string, double        string …      -                                   text, number
    DATE                           int32         io.debezium.time.Date               days
    DATETIME(0..3), (4..6)         int64         io.debezium.time.[Micro]Timestamp   ms, µs
    TIMESTAMP                      string        io.debezium.time.ZonedTimestamp     text in UTC
    TIME                           int64         io.debezium.time.MicroTime          µs
    YEAR                           int32         io.debezium.time.Year               number
    BIT(1); BIT(n)                 boolean;bytes -; io.debezium.data.Bits            base64, LE
    ENUM, SET, JSON                string        io.debezium.data.Enum EnumSet Json  text
    CHAR, TEXT; BINARY, BLOB       string; bytes -                                   text; base64
    GEOMETRY                       struct        io.debezium.data.geometry.Geometry  wkb, srid

A BIGINT UNSIGNED is a decimal in schemas, as in Debezium's mode `precise`, because readers silently
take an int64 above 2^63 as a negative number. Without a schema that says int64 it is a number. An
invalid date, such as 0000-00-00, is NULL, or the epoch if the column cannot be NULL.

Source: https://debezium.io/documentation/reference/stable/connectors/mysql.html, data types.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date
from decimal import Context, Decimal
from typing import Any, NamedTuple

from drainer.task.events.topics.json_row import Text, base64_text, quoted, shortest
from penstock.schema.model import ColumnInfo, MysqlType

PRECISE, STRING, DOUBLE = "precise", "string", "double"

_TIME = "io.debezium.time."
_DATA = "io.debezium.data."
_EPOCH = date(1970, 1, 1).toordinal()
_ALL_DIGITS = Context(prec=100)
_DAY_US = 86_400_000_000
_BASE_INTS = {
    MysqlType.TINY: "int16",
    MysqlType.SHORT: "int16",
    MysqlType.INT24: "int32",
    MysqlType.LONG: "int32",
    MysqlType.LONGLONG: "int64",
}
_UNSIGNED_INTS = {MysqlType.SHORT: "int32", MysqlType.LONG: "int64"}


class DebeziumType(NamedTuple):
    """How values are written, and the field's schema without its name."""

    text: Text
    schema: dict[str, Any]


def debezium_type(column: ColumnInfo, decimals: str, *, has_schema: bool) -> DebeziumType:
    tp = column.tp
    if has_schema and tp is MysqlType.LONGLONG and column.is_unsigned:
        return _PRECISE_INTEGER
    if tp in _BASE_INTS:
        found = _UNSIGNED_INTS.get(tp) if column.is_unsigned else None
        return DebeziumType(str, {"type": found or _BASE_INTS[tp]})
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return DebeziumType(shortest(column), {"type": tp.name.lower()})
    if tp is MysqlType.NEWDECIMAL:
        return _decimal(column, decimals)
    if tp is MysqlType.BIT:
        return _bit(column)
    if tp in (MysqlType.ENUM, MysqlType.SET):
        name = _DATA + ("Enum" if tp is MysqlType.ENUM else "EnumSet")
        parameters = {"allowed": ",".join(column.elems)}
        return DebeziumType(quoted, _named("string", name, parameters))
    if tp in _OTHERS:
        return _OTHERS[tp](column)
    if column.is_binary:
        return DebeziumType(base64_text, {"type": "bytes"})
    return DebeziumType(quoted, {"type": "string"})


def _named(kind: str, name: str, parameters: dict[str, str] | None = None) -> dict[str, Any]:
    more = {"parameters": parameters} if parameters else {}
    return {"type": kind, "name": name, "version": 1, **more}


def _decimal(column: ColumnInfo, decimals: str) -> DebeziumType:
    if decimals == STRING:
        return DebeziumType(lambda value: f'"{value:f}"', {"type": "string"})
    if decimals == DOUBLE:
        return DebeziumType(lambda value: repr(float(value)), {"type": "double"})
    scale = max(0, column.decimal)

    def text(value: Decimal) -> str:
        return base64_text(_twos_complement(int(value.scaleb(scale, _ALL_DIGITS))))

    precision = max(1, column.flen)
    return DebeziumType(text, _decimal_schema(precision, scale))


def _decimal_schema(precision: int, scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return _named("bytes", "org.apache.kafka.connect.data.Decimal", parameters)


def _twos_complement(number: int) -> bytes:
    """Return a number in the form of Java's BigInteger: big-endian, as few bytes as hold it."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


_PRECISE_INTEGER = DebeziumType(
    lambda value: base64_text(_twos_complement(value)), _decimal_schema(20, 0)
)
"""A BIGINT UNSIGNED, of up to 20 digits."""


def _bit(column: ColumnInfo) -> DebeziumType:
    length = max(1, column.flen)
    if length == 1:
        return DebeziumType(lambda value: "true" if value else "false", {"type": "boolean"})
    size = (length + 7) // 8
    schema = _named("bytes", f"{_DATA}Bits", {"length": str(length)})
    return DebeziumType(lambda value: base64_text(int(value).to_bytes(size, "little")), schema)


_GEOMETRY = _named("struct", f"{_DATA}geometry.Geometry") | {
    "fields": [
        {"type": "bytes", "optional": False, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ]
}


def _geometry(value: bytes) -> str:
    srid = int.from_bytes(value[:4], "little") or "null"
    return f'{{"wkb":"{base64.b64encode(value[4:]).decode()}","srid":{srid}}}'


def _date(column: ColumnInfo) -> DebeziumType:
    nothing = "0" if column.is_not_null else "null"

    def text(value: str) -> str:
        days = _days(value)
        return nothing if days is None else str(days)

    return DebeziumType(text, _named("int32", f"{_TIME}Date"))


def _datetime(column: ColumnInfo) -> DebeziumType:
    divisor, name = (1, "MicroTimestamp") if column.decimal > 3 else (1000, "Timestamp")
    nothing = "0" if column.is_not_null else "null"

    def text(value: str) -> str:
        days = _days(value[:10])
        return nothing if days is None else str((days * _DAY_US + _clock_us(value[11:])) // divisor)

    return DebeziumType(text, _named("int64", f"{_TIME}{name}"))


def _timestamp(column: ColumnInfo) -> DebeziumType:
    nothing = '"1970-01-01T00:00:00Z"' if column.is_not_null else "null"

    def text(value: str) -> str:
        return nothing if value.startswith("0000") else f'"{value[:10]}T{value[11:]}Z"'

    return DebeziumType(text, _named("string", f"{_TIME}ZonedTimestamp"))


def _time(column: ColumnInfo) -> DebeziumType:
    return DebeziumType(lambda value: str(_clock_us(value)), _named("int64", f"{_TIME}MicroTime"))


_OTHERS: dict[MysqlType, Callable[[ColumnInfo], DebeziumType]] = {
    MysqlType.DATE: _date,
    MysqlType.DATETIME: _datetime,
    MysqlType.TIMESTAMP: _timestamp,
    MysqlType.DURATION: _time,
    MysqlType.YEAR: lambda _: DebeziumType(str, _named("int32", f"{_TIME}Year")),
    MysqlType.JSON: lambda _: DebeziumType(quoted, _named("string", f"{_DATA}Json")),
    MysqlType.GEOMETRY: lambda _: DebeziumType(_geometry, _GEOMETRY),
}


def _days(text: str) -> int | None:
    """Return a date's days since the epoch, or None if it is not a valid date."""
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        return None


def _clock_us(text: str) -> int:
    """Return the microseconds of a time such as -838:59:59.5."""
    sign = -1 if text.startswith("-") else 1
    whole, _, fraction = text.lstrip("-").partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    micros = int(fraction.ljust(6, "0")) if fraction else 0
    return sign * (((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros)
