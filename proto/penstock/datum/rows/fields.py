"""Fields: for one column, the functions that convert its values to datums and back.

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

A *stored value* is a value of the column-wise reader. Readers also accept the memcomparable variant
of a form (an int as flag 3 and so on), because a key that was split into datums may hold either.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from math import isfinite
from struct import error as struct_error
from struct import pack, unpack

from penstock.codes import Code
from penstock.datum import decimals, jsonb, times, values
from penstock.datum.values import damaged
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType

INTEGER_BITS = {
    MysqlType.TINY: 8,
    MysqlType.SHORT: 16,
    MysqlType.INT24: 24,
    MysqlType.LONG: 32,
    MysqlType.LONGLONG: 64,
}
YEAR_RANGE = (1901, 2155)
_SMALL = range(-128, 2048)


def integer_range(column: ColumnInfo) -> tuple[int, int]:
    if column.tp is MysqlType.YEAR:
        return 0, YEAR_RANGE[1]
    if column.tp is MysqlType.BIT:
        return 0, (1 << bit_length(column)) - 1
    if column.tp is MysqlType.ENUM:
        return 0, values.UINT64_MAX
    if column.tp is MysqlType.SET:
        return 0, (1 << len(column.elems)) - 1
    bits = INTEGER_BITS[column.tp]
    if column.is_unsigned:
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


def bit_length(column: ColumnInfo) -> int:
    return column.flen if column.flen > 0 else 1


def as_int(column: ColumnInfo, value: object) -> int:
    """Return `value` as an integer; floats and texts are refused rather than guessed at."""
    if type(value) is int:
        return value
    if isinstance(value, (str, bytes, float)):
        raise refused(column, value, "an integer is wanted")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refused(column, value, "an integer is wanted") from None


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """Read a signed or unsigned integer in any of its four forms."""
    flag = values.flag_at(data, at)
    if flag == values.VARINT_FLAG:
        return values.read_varint(data, at + 1)
    if flag == values.UVARINT_FLAG:
        return values.read_uvarint(data, at + 1)
    if flag in (values.INT_FLAG, values.DURATION_FLAG):
        return values.read_int_comparable(data, at + 1)
    if flag == values.UINT_FLAG:
        return values.read_uint_comparable(data, at + 1)
    raise damaged(f"flag {flag} at byte {at} is not an integer's")


def _ranged_reader(low: int, high: int) -> Callable[[bytes, int], tuple[int, int]]:
    def decode(data: bytes, at: int) -> tuple[int, int]:
        # Nearly all integers have this flag; they are read without another call.
        if at < len(data) and data[at] == 8:
            raw, at = values.read_uvarint(data, at + 1)
            value = (raw >> 1) ^ -(raw & 1)
        else:
            value, at = read_int(data, at)
        if not low <= value <= high:
            raise damaged(f"{value} is not in {low}..{high}")
        return value, at

    return decode


@cache
def _small_datums(datum: Callable[[int], bytes], numbers: range) -> dict[int, bytes]:
    # Most numbers are small: a look-up costs a third of building the bytes. All columns share the
    # datums, which take 200 KB.
    return {number: datum(number) for number in numbers}


def integer_field(column: ColumnInfo) -> Field:
    low, high = integer_range(column)
    datum = values.uint_datum if column.is_unsigned else values.int_datum
    small = _small_datums(datum, range(max(low, _SMALL.start), min(high + 1, _SMALL.stop)))

    def encode(value: object) -> bytes:
        if type(value) is int and (known := small.get(value)) is not None:
            return known
        number = as_int(column, value)
        if not low <= number <= high:
            raise refused(column, value, f"{low} to {high} is the range")
        return datum(number)

    decode = _ranged_reader(low, high)
    return Field(encode, decode, decode)


def year_field(column: ColumnInfo) -> Field:
    def encode(value: object) -> bytes:
        number = as_int(column, value)
        if number and not YEAR_RANGE[0] <= number <= YEAR_RANGE[1]:
            raise refused(column, value, "0 or a year from 1901 to 2155 is wanted")
        return values.int_datum(number)

    decode = _ranged_reader(*integer_range(column))
    return Field(encode, decode, decode)


def bit_field(column: ColumnInfo) -> Field:
    """Compile a BIT column; it also takes big-endian bytes."""
    low, high = integer_range(column)

    def encode(value: object) -> bytes:
        raw = isinstance(value, (bytes, bytearray))
        number = int.from_bytes(value, "big") if raw else as_int(column, value)  # type: ignore[arg-type]
        if not low <= number <= high:
            raise refused(column, value, f"the column has {bit_length(column)} bits")
        return values.uint_datum(number)

    decode = _ranged_reader(low, high)
    return Field(encode, decode, decode)


class Numbered(str):
    """The text of an ENUM's or SET's value that means another number when it is read as text.

    An ENUM's error value, index 0, reads as '' even if a label is empty; two labels may be equal.
    """

    __slots__ = ("number",)
    number: int

    def __new__(cls, text: str, number: int) -> Numbered:
        made = super().__new__(cls, text)
        made.number = number
        return made

    def __reduce__(self) -> tuple[type[Numbered], tuple[str, int]]:
        return Numbered, (str(self), self.number)


def number_of(column: ColumnInfo) -> Callable[[str], int]:
    """Return a function from an ENUM or SET text to index or mask; KeyError for other texts."""
    labels = list(reversed(list(enumerate(column.elems))))
    if column.tp is MysqlType.ENUM:
        known = {"": 0} | {name: at + 1 for at, name in labels}
        return lambda text: text.number if isinstance(text, Numbered) else known[text]
    bits = {name: 1 << at for at, name in labels}

    def mask(text: str) -> int:
        if isinstance(text, Numbered):
            return text.number
        return sum({bits[name] for name in text.split(",")}) if text else 0

    return mask


def text_of(column: ColumnInfo) -> Callable[[int], str]:
    """Return a function from ENUM or SET index or mask to text; an index without label is 0."""
    number, labels = number_of(column), column.elems
    if column.tp is MysqlType.ENUM:
        texts = [
            name if number(name) == at else Numbered(name, at)
            for at, name in enumerate(("", *labels))
        ]
        return lambda index: texts[index if index < len(texts) else 0]
    is_plain = len(set(labels)) == len(labels) and "" not in labels

    def text(mask: int) -> str:
        joined = ",".join(name for at, name in enumerate(labels) if mask >> at & 1)
        return joined if is_plain or number(joined) == mask else Numbered(joined, mask)

    return text


def enum_field(column: ColumnInfo) -> Field:
    """Compile an ENUM column; it takes names and numbers, and 0 is the empty name."""
    known = number_of(column)
    folded = {name.lower(): known(name) for name in ("", *reversed(column.elems))}

    def encode(value: object) -> bytes:
        if isinstance(value, str):
            try:
                number = known(value)
            except KeyError:
                number = folded.get(value.lower(), -1)
        else:
            number = as_int(column, value)
        if not 0 <= number <= len(column.elems):
            raise refused(column, value, f"the column takes {', '.join(column.elems)}")
        return values.uint_datum(number)

    store = _ranged_reader(*integer_range(column))
    text = text_of(column)

    def decode(data: bytes, at: int) -> tuple[object, int]:
        number, at = store(data, at)
        return text(number), at

    return Field(encode, decode, store)


def set_field(column: ColumnInfo) -> Field:
    """Compile a SET column; a mask with bits that no member has is malformed."""
    bits = {name: 1 << i for i, name in reversed(list(enumerate(column.elems)))}
    folded = {name.lower(): bit for name, bit in bits.items()}
    low, high = integer_range(column)

    def encode(value: object) -> bytes:
        if isinstance(value, Numbered):
            value = value.number
        if isinstance(value, str):
            value = value.split(",") if value else ()
        if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
            mask = 0
            for name in value:
                bit = bits.get(str(name), folded.get(str(name).lower(), 0))
                if not bit:
                    raise refused(column, name, f"the column takes {', '.join(column.elems)}")
                mask |= bit
        else:
            mask = as_int(column, value)
        if not low <= mask <= high:
            raise refused(column, value, f"the column has {len(column.elems)} members")
        return values.uint_datum(mask)

    store = _ranged_reader(low, high)
    text = text_of(column)

    def decode(data: bytes, at: int) -> tuple[object, int]:
        mask, at = store(data, at)
        return text(mask), at

    return Field(encode, decode, store)


Encode = Callable[[object], bytes]
"""Turns a value other than None into a datum, flag included."""
Decode = Callable[[bytes, int], tuple[object, int]]
"""Reads a datum other than NULL, flag included; returns the value and the next position."""


@dataclass(frozen=True, slots=True)
class Field:
    """`encode` makes datums, `decode` reads them as values, `store` as stored values."""

    encode: Encode
    decode: Decode
    store: Decode


def refused(column: ColumnInfo, value: object, why: str) -> Malformed:
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return Malformed(
        f"column {column.name!r} ({column.sql_type}) does not take {shown}: {why}",
        "give a value that fits the column, or change the column",
        Code.ROW_REFUSED,
    )


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
# For these types the length counts characters; for BLOB and TEXT it counts bytes.
_COUNTED_IN_CHARACTERS = frozenset({MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING})
DECIMAL_DEFAULT = (10, 0)


def compile_field(column: ColumnInfo) -> Field:
    """Return the functions of a column; `Malformed` for a type that rows cannot hold."""
    for types, build in _BUILDERS:
        if column.tp in types:
            return build(column)
    raise Malformed(
        f"column {column.name!r} has type {column.sql_type}, which rows cannot hold",
        "leave the table out, or change the column's type",
        Code.DDL_UNSUPPORTED,
    )


def fraction_digits(column: ColumnInfo) -> int:
    return min(max(column.decimal, 0), 6)


def decimal_size(column: ColumnInfo) -> tuple[int, int]:
    if column.flen <= 0:
        return DECIMAL_DEFAULT
    return column.flen, max(column.decimal, 0)


def read_raw(data: bytes, at: int) -> tuple[bytes, int]:
    # Short strings are by far the most frequent; they are read without another call.
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
        if not is_timestamp and isinstance(value, dt.datetime) and value.tzinfo is not None:
            hint = "give it without tzinfo, or use a TIMESTAMP"
            raise refused(column, value, f"the column has no time zone: {hint}")
        try:
            fields = times.datetime_fields(value, fsp)
            if is_date:
                times.date_text(fields)
        except Malformed as problem:
            raise refused(column, value, problem.problem) from None
        is_in_range = times.TIMESTAMP_MIN <= fields[:6] <= times.TIMESTAMP_MAX
        if is_timestamp and not is_in_range and any(fields):
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
            # MySQL cannot distinguish trailing spaces of a CHAR from its padding, and TiDB also
            # drops them.
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
    (frozenset(INTEGER_BITS), integer_field),
    (frozenset({MysqlType.YEAR}), year_field),
    (frozenset({MysqlType.BIT}), bit_field),
    (frozenset({MysqlType.ENUM}), enum_field),
    (frozenset({MysqlType.SET}), set_field),
    (frozenset({MysqlType.FLOAT, MysqlType.DOUBLE}), _float_field),
    (frozenset({MysqlType.NEWDECIMAL}), _decimal_field),
    (TIME_TYPES, _time_field),
    (frozenset({MysqlType.DURATION}), _duration_field),
    (STRING_TYPES, _string_field),
    (frozenset({MysqlType.JSON}), _json_field),
)
