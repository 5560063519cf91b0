"""Compiles, for one column, the functions that turn its values into datums and back.

    MySQL type                          datum in a row         Python value       stored value
    ----------------------------------  ---------------------  -----------------  ------------
    tiny short int24 long longlong      int or uint, by flag   int                same
    year                                int                    int                same
    float double                        float                  float              same
    decimal                             decimal                Decimal            str
    date datetime timestamp             uint, packed           str                same
    time                                int, nanoseconds       str                same
    bit                                 uint                   int                same
    enum                                uint, 1-based          str, "" for 0      int
    set                                 uint, mask             str, "a,b"         int
    char varchar text                   bytes                  str                same
    binary varbinary blob               bytes                  bytes              same
    geometry                            bytes                  SRID (4, LE), WKB  same
    json                                JSON                   str, JSON text     same

A *stored value* is what the column-wise reader yields. Readers also accept the memcomparable twin
of a form (an int as flag 3 and so on), because a key that was cut into datums may hold either.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from math import isfinite
from struct import error as struct_error
from struct import pack, unpack

from penstock.datum import decimals, jsonb, times, values
from penstock.datum.rows import ints
from penstock.datum.rows.field import Decode, Field, refused
from penstock.datum.rows.ints import read_int
from penstock.datum.values import damaged
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType

STRING_TYPES = frozenset(
    {
        MysqlType.VARCHAR,
        MysqlType.VAR_STRING,
        MysqlType.STRING,
        MysqlType.TINY_BLOB,
        MysqlType.BLOB,
        MysqlType.MEDIUM_BLOB,
        MysqlType.LONG_BLOB,
        MysqlType.GEOMETRY,
    }
)
TIME_TYPES = frozenset({MysqlType.DATE, MysqlType.DATETIME, MysqlType.TIMESTAMP})
# Of these the length counts characters; of BLOB and TEXT it counts bytes.
_COUNTED_IN_CHARACTERS = frozenset({MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING})
DECIMAL_DEFAULT = (10, 0)


def compile_field(column: ColumnInfo) -> Field:
    """Return the functions of one column; a type that no row can hold raises `Malformed`."""
    for types, build in _BUILDERS:
        if column.tp in types:
            return build(column)
    raise Malformed(
        f"column {column.name!r} has type {column.tp.name}, which rows cannot hold",
        hint="leave the table out, or change the column's type",
    )


def fraction_digits(column: ColumnInfo) -> int:
    """Return how many fraction digits a time column keeps."""
    return min(max(column.decimal, 0), 6)


def decimal_size(column: ColumnInfo) -> tuple[int, int]:
    """Return precision and scale of a DECIMAL column."""
    if column.flen <= 0:
        return DECIMAL_DEFAULT
    return column.flen, max(column.decimal, 0)


def read_raw(data: bytes, at: int) -> tuple[bytes, int]:
    """Read bytes in either form."""
    # Short strings are by far the most; they are read without a call between.
    if at + 1 < len(data) and data[at] == 2 and not (size := data[at + 1]) & 0x81:
        end = at + 2 + (size >> 1)
        if end <= len(data):
            return data[at + 2 : end], end
    flag = values.flag_at(data, at)
    if flag == values.COMPACT_BYTES_FLAG:
        return values.read_bytes(data, at + 1)
    if flag == values.BYTES_FLAG:
        return values.read_bytes_comparable(data, at + 1)
    raise damaged(f"flag {flag} at byte {at} is not a string's")


def _expect(data: bytes, at: int, flag: int) -> int:
    found = values.flag_at(data, at)
    if found != flag:
        raise damaged(f"flag {found} at byte {at}, {flag} wanted")
    return at + 1


def _float_field(column: ColumnInfo) -> Field:
    single = column.tp is MysqlType.FLOAT
    is_unsigned = column.is_unsigned

    def encode(value: object) -> bytes:
        if not isinstance(value, (int, float, Decimal)):
            raise refused(column, value, "a number is wanted")
        try:
            number = float(value)
            if single:
                number = unpack("f", pack("f", number))[0]
        except (OverflowError, ValueError, struct_error):
            raise refused(column, value, "it is out of range") from None
        if not isfinite(number) or (is_unsigned and number < 0):
            raise refused(column, value, "it is out of range")
        return values.float_datum(number)

    def decode(data: bytes, at: int) -> tuple[object, int]:
        at = _expect(data, at, values.FLOAT_FLAG)
        number, at = values.read_float_comparable(data, at)
        if not isfinite(number):
            raise damaged(f"a float before byte {at} is {number}")
        return number, at

    return Field(encode, decode, decode)


def _decimal_field(column: ColumnInfo) -> Field:
    precision, scale = decimal_size(column)
    is_unsigned = column.is_unsigned

    def encode(value: object) -> bytes:
        if isinstance(value, float):
            value = repr(value)
        if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
            raise refused(column, value, "a decimal number is wanted")
        try:
            number = Decimal(value)
        except (InvalidOperation, ValueError):
            raise refused(column, value, "a decimal number is wanted") from None
        if is_unsigned and number < 0:
            raise refused(column, value, "it is negative")
        try:
            return b"\x06" + decimals.encode_decimal(number, precision, scale)
        except Malformed as problem:
            raise refused(column, value, problem.problem) from None

    def store(data: bytes, at: int) -> tuple[str, int]:
        return decimals.read_decimal_text(data, _expect(data, at, values.DECIMAL_FLAG), scale)

    def decode(data: bytes, at: int) -> tuple[object, int]:
        text, at = store(data, at)
        return Decimal(text), at

    return Field(encode, decode, store)


def _time_field(column: ColumnInfo) -> Field:
    fsp = fraction_digits(column)
    is_date = column.tp is MysqlType.DATE
    is_timestamp = column.tp is MysqlType.TIMESTAMP

    def encode(value: object) -> bytes:
        try:
            fields = times.datetime_fields(value, fsp)
            if is_date:
                times.date_text(fields)
        except Malformed as problem:
            raise refused(column, value, problem.problem) from None
        if is_timestamp and not times.in_timestamp_range(fields):
            raise refused(column, value, "a TIMESTAMP ends with 2038-01-19 03:14:07 UTC")
        return values.uint_datum(times.pack(fields))

    def decode(data: bytes, at: int) -> tuple[object, int]:
        packed, at = read_int(data, at)
        fields = times.unpack(packed)
        return (times.date_text(fields) if is_date else times.datetime_text(fields, fsp)), at

    return Field(encode, decode, decode)


def _duration_field(column: ColumnInfo) -> Field:
    fsp = fraction_digits(column)

    def encode(value: object) -> bytes:
        try:
            micros = times.duration_micros(value, fsp)
        except Malformed as problem:
            raise refused(column, value, problem.problem) from None
        return values.int_datum(micros * times.NANOS_PER_MICRO)

    def decode(data: bytes, at: int) -> tuple[object, int]:
        nanos, at = read_int(data, at)
        return times.duration_text(nanos, fsp), at

    return Field(encode, decode, decode)


def _string_field(column: ColumnInfo) -> Field:
    in_characters = column.tp in _COUNTED_IN_CHARACTERS and not column.is_binary
    limit = column.flen if column.flen > 0 else 0xFFFFFFFF
    fixed = column.tp is MysqlType.STRING
    pads = fixed and column.is_binary and column.flen > 0
    to_bytes = _bytes_of if column.is_binary else _text_bytes_of

    def encode(value: object) -> bytes:
        raw = to_bytes(column, value)
        if pads:
            raw = raw.ljust(column.flen, b"\0")
        elif fixed:
            # MySQL cannot tell trailing spaces of a CHAR from its padding, and TiDB drops them too.
            raw = raw.rstrip(b" ")
        size = len(raw.decode()) if in_characters and len(raw) > limit else len(raw)
        if size > limit:
            raise refused(column, value, f"it is longer than {limit}")
        return values.bytes_datum(raw)

    def decode_text(data: bytes, at: int) -> tuple[object, int]:
        raw, at = read_raw(data, at)
        try:
            return str(raw, "utf-8"), at
        except UnicodeDecodeError:
            raise damaged(f"the text before byte {at} is not UTF-8") from None

    decode: Decode = read_raw if column.is_binary else decode_text
    return Field(encode, decode, decode)


def _bytes_of(column: ColumnInfo, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return _text_bytes_of(column, value)
    raise refused(column, value, "bytes are wanted")


def _text_bytes_of(column: ColumnInfo, value: object) -> bytes:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise refused(column, value, "these bytes are not UTF-8 text") from None
    if not isinstance(value, str):
        raise refused(column, value, "text is wanted")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise refused(column, value, "half of a surrogate pair is not text") from None


def _json_field(column: ColumnInfo) -> Field:
    def encode(value: object) -> bytes:
        try:
            binary = jsonb.encode_text(value) if isinstance(value, str) else jsonb.encode(value)
        except Malformed as problem:
            raise refused(column, value, problem.problem) from None
        return b"\x0a" + binary

    def decode(data: bytes, at: int) -> tuple[object, int]:
        return jsonb.read_text(data, _expect(data, at, values.JSON_FLAG))

    return Field(encode, decode, decode)


_BUILDERS: tuple[tuple[frozenset[MysqlType], Callable[[ColumnInfo], Field]], ...] = (
    (frozenset(ints.INTEGER_BITS), ints.integer_field),
    (frozenset({MysqlType.YEAR}), ints.year_field),
    (frozenset({MysqlType.BIT}), ints.bit_field),
    (frozenset({MysqlType.ENUM}), ints.enum_field),
    (frozenset({MysqlType.SET}), ints.set_field),
    (frozenset({MysqlType.FLOAT, MysqlType.DOUBLE}), _float_field),
    (frozenset({MysqlType.NEWDECIMAL}), _decimal_field),
    (TIME_TYPES, _time_field),
    (frozenset({MysqlType.DURATION}), _duration_field),
    (STRING_TYPES, _string_field),
    (frozenset({MysqlType.JSON}), _json_field),
)
