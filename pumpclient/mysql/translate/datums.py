"""Datum expressions: code that makes a column's id and datum from its bytes in an image.

Each is a `Reading` with the layout of the image, and an expression that makes bytes. Without a fast
path, or if the table's column has another size, the value is decoded and then encoded like any
writer's value, which checks it.
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from penstock.datum import values
from penstock.datum.rows.fields import decimal_size, fraction_digits, integer_range
from penstock.schema.model import MysqlType
from penstock.wire import protowire
from pumpclient.mysql.rows.column_types import decompressed, reading_of
from pumpclient.mysql.rows.rows_event import Reading
from pumpclient.mysql.rows.table_map import WireType, charset_of
from pumpclient.mysql.translate.column_mapping import ColumnPair

_QUICK = 1 << 27
"""Numbers below this are at most four bytes as a varint: two look-ups."""
_SHORT = 256
_DAY_S = 86400
_DAYS_KEPT = 1 << 16
_MONTHS, _YEAR_MAX = 12, 9999
_EPOCH = dt.date(1970, 1, 1).toordinal()
_DATETIME_BIAS, _TIME_BIAS = 0x8000000000, 0x800000
_MICROS = 1_000_000
_TIMESTAMP_MAX = (1 << 31) - 1
_INTEGERS = (
    WireType.TINY, WireType.SHORT, WireType.INT24, WireType.LONG, WireType.LONGLONG,
)  # fmt: skip
_UTF8 = ("utf8mb4", "utf8mb3", "ascii", "binary")
_COMPRESSED = (WireType.VARCHAR_COMPRESSED, WireType.BLOB_COMPRESSED)


def datum_reading(pair: ColumnPair) -> Reading:
    """Return the reading that gives a column's id and datum, both as they stand in a row."""
    reading = reading_of(pair.wire)
    made = _short_way(pair, reading)
    if made is not None:
        return made
    name, head, encode = f"encode{pair.index}", pair.stored.header, pair.stored.field.encode

    def make(value: object) -> bytes:
        return head + encode(value)

    return replace(
        reading, expression=f"{name}({reading.expression})", names={**reading.names, name: make}
    )


def _short_way(pair: ColumnPair, reading: Reading) -> Reading | None:
    real, here = pair.wire.real_type, pair.column.tp
    if real in _INTEGERS:
        return _integer(pair, reading)
    if real in (WireType.FLOAT, WireType.DOUBLE):
        return _float(pair, reading)
    if real is WireType.NEWDECIMAL:
        return _decimal(pair, reading)
    if here is MysqlType.JSON:
        return None
    if real in _TEXTS:
        return _text(pair, reading)
    if real in (WireType.DATE, WireType.NEWDATE):
        return _date(pair, reading) if here is MysqlType.DATE else None
    maker = _TIMES.get(real)
    if maker is not None and pair.wire.metadata == fraction_digits(pair.column):
        name = f"time{pair.index}"
        make = maker(pair.stored.header, pair.wire.metadata)
        return replace(reading, expression=f"{name}({{0}})", names={name: make})
    return None


def _integer(pair: ColumnPair, reading: Reading) -> Reading | None:
    low, high = integer_range(pair.column)
    size = 8 * reading.size
    is_unsigned = pair.column.is_unsigned
    reach = (0, (1 << size) - 1) if is_unsigned else (-(1 << size - 1), (1 << size - 1) - 1)
    if reach[0] < low or reach[1] > high:
        return None
    head, datum = pair.stored.header, values.uint_datum if is_unsigned else values.int_datum
    begin, otherwise = head + datum(0)[:1], f"number{pair.index}"
    shift = 0 if is_unsigned else 1  # A signed number is zig-zag.
    return replace(
        reading,
        expression=number_expression(reading.expression, begin, f"{otherwise}(x)", shift=shift),
        names={**reading.names, **NUMBER_NAMES, otherwise: lambda number: head + datum(number)},
    )


NUMBER_NAMES = {"last": protowire.LAST_BYTES, "more": protowire.MORE_BYTES}


def number_expression(
    number: str, begin: bytes, otherwise: str, *, shift: int, below: int = _QUICK
) -> str:
    """Return the expression of a number's datum after `begin`; it uses `NUMBER_NAMES` and `x`.

    `shift` is 1 for a zig-zag varint. `below` is at most `_QUICK`.
    """
    short, low = len(protowire.LAST_BYTES) >> shift, len(protowire.LAST_BYTES) - 1
    head = "b'" + "".join(map("\\x{:02x}".format, begin)) + "'"  # Without a brace, for `Reading`.
    return (
        f"(({head} + last[x << {shift}] if x < {short} else"
        f" {head} + more[x << {shift} & {low}] + last[x >> {14 - shift}])"
        f" if 0 <= (x := {number}) < {min(below, _QUICK)} else {otherwise})"
    )


def _float(pair: ColumnPair, reading: Reading) -> Reading | None:
    if pair.column.is_unsigned:
        return None
    head, datum = pair.stored.header, values.float_datum

    def make(value: float) -> bytes:
        if value - value != 0:
            raise ValueError(f"{value} is no number that a column holds")
        return head + datum(value)

    name = f"float{pair.index}"
    return replace(reading, expression=f"{name}({{0}})", names={name: make})


def _decimal(pair: ColumnPair, reading: Reading) -> Reading | None:
    size = (pair.wire.metadata >> 8, pair.wire.metadata & 0xFF)
    if size != decimal_size(pair.column) or pair.column.is_unsigned:
        return None
    name = f"decimal{pair.index}"
    begin = pair.stored.header + bytes([values.DECIMAL_FLAG, *size])
    return replace(reading, expression=f"{name} + {{0}}", names={name: begin})


_TEXTS = (
    WireType.STRING, WireType.VARCHAR, WireType.VAR_STRING, WireType.BLOB, WireType.TINY_BLOB,
    WireType.MEDIUM_BLOB, WireType.LONG_BLOB, WireType.GEOMETRY, *_COMPRESSED,
)  # fmt: skip


def _text(pair: ColumnPair, reading: Reading) -> Reading | None:
    column, collation = pair.column, pair.wire.collation
    if collation is None or pair.wire.declared is not None:
        return None
    charset = charset_of(collation)
    if charset.name not in _UTF8 or charset.is_binary != column.is_binary:
        return None
    head, encode = pair.stored.header, pair.stored.field.encode
    begin = begins_of(head)
    limit = column.flen if column.flen > 0 else 0xFFFFFFFF
    is_text = not charset.is_binary
    is_fixed = column.tp is MysqlType.STRING

    def make(raw: bytes) -> bytes:
        size = len(raw)
        if size > limit or (is_fixed and (not is_text or raw.endswith(b" "))):
            return head + encode(raw)
        if is_text and not raw.isascii():
            raw.decode()
        return (
            begin[size] if size < _SHORT else head + b"\x02" + protowire.encode_uvarint(size << 1)
        ) + raw

    name = f"text{pair.index}"
    if pair.wire.type in _COMPRESSED:
        names = {name: make, "plain": decompressed}
        return replace(reading, expression=f"{name}(plain({{0}}))", names=names)
    if is_fixed and not is_text:
        return replace(reading, expression=f"{name}({{0}})", names={name: make})
    conditions = [f"len(x := {{0}}) <= {min(limit, _SHORT - 1)}"]
    conditions += ["x.isascii()"] if is_text else []
    conditions += ["x[-1:] != b' '"] if is_fixed else []
    return replace(
        reading,
        expression=f"(begin{pair.index}[len(x)] + x if {' and '.join(conditions)} else {name}(x))",
        names={name: make, f"begin{pair.index}": begin},
    )


@lru_cache(maxsize=1024)
def begins_of(head: bytes) -> list[bytes]:
    """Return the bytes before a text, by its length."""
    return [head + values.bytes_datum(bytes(n))[: -n or None] for n in range(_SHORT)]


def _fraction(fsp: int) -> tuple[int, int, int]:
    size = (fsp + 1) // 2
    return 8 * size, (1 << 8 * size) - 1, 10 ** (6 - 2 * size)


def _date(pair: ColumnPair, reading: Reading) -> Reading:
    """Return a reading that keeps invalid days such as 31 February (ALLOW_INVALID_DATES)."""
    begin, datum = pair.stored.header + bytes([values.UVARINT_FLAG]), protowire.encode_uvarint

    @lru_cache(maxsize=_DAYS_KEPT)
    def make(packed: int) -> bytes:
        year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
        if month > _MONTHS or year > _YEAR_MAX:
            raise ValueError(f"{packed:#x} is no DATE")
        return begin + datum(((year * 13 + month) << 5 | day) << 41)

    name = f"date{pair.index}"
    return replace(reading, expression=f"{name}({{0}} | {{1}} << 16)", names={name: make})


def _datetime2(head: bytes, fsp: int) -> Callable[[Any], bytes]:
    bits, mask, unit = _fraction(fsp)
    bias, from_bytes, datum = _DATETIME_BIAS << bits, int.from_bytes, protowire.encode_uvarint
    begin = head + bytes([values.UVARINT_FLAG])

    def make(raw: bytes) -> bytes:
        number = from_bytes(raw, "big") - bias
        if number < 0:
            raise ValueError(f"{raw.hex()} is no DATETIME")
        return begin + datum((number >> bits) << 24 | (number & mask) * unit)

    return make


def _timestamp2(head: bytes, fsp: int) -> Callable[[Any], bytes]:
    bits, mask, unit = _fraction(fsp)
    days: dict[int, int] = {}
    from_bytes, datum = int.from_bytes, protowire.encode_uvarint
    begin = head + bytes([values.UVARINT_FLAG])

    def day_of(number: int) -> int:
        if len(days) >= _DAYS_KEPT:
            days.clear()
        day = dt.date.fromordinal(_EPOCH + number)
        packed = days[number] = ((day.year * 13 + day.month) << 5 | day.day) << 17
        return packed

    def make(raw: bytes) -> bytes:
        number = from_bytes(raw, "big")
        seconds = number >> bits
        if not seconds:
            if number:
                raise ValueError("a zero TIMESTAMP with a fraction")
            return begin + b"\0"
        day, second = divmod(seconds, _DAY_S)
        if seconds > _TIMESTAMP_MAX:
            raise ValueError("a TIMESTAMP ends with 2038-01-19 03:14:07 UTC")
        packed = days.get(day) or day_of(day)
        clock = second // 3600 << 12 | second // 60 % 60 << 6 | second % 60
        return begin + datum((packed | clock) << 24 | (number & mask) * unit)

    return make


def _time2(head: bytes, fsp: int) -> Callable[[Any], bytes]:
    bits, mask, unit = _fraction(fsp)
    bias, from_bytes, datum = _TIME_BIAS << bits, int.from_bytes, values.int_datum

    def make(raw: bytes) -> bytes:
        number = from_bytes(raw, "big") - bias
        size = -number if number < 0 else number
        clock = size >> bits
        seconds = (clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
        nanos = (seconds * _MICROS + (size & mask) * unit) * 1000
        return head + datum(-nanos if number < 0 else nanos)

    return make


_TIMES: dict[WireType, Callable[[bytes, int], Callable[[Any], bytes]]] = {
    WireType.DATETIME2: _datetime2,
    WireType.TIMESTAMP2: _timestamp2,
    WireType.TIME2: _time2,
}
