"""Compiles columns whose values are integers inside: integers, YEAR, BIT, ENUM and SET."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

from penstock.datum import values
from penstock.datum.rows.field import Field, refused
from penstock.datum.values import damaged
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
    """Return the smallest and the largest value of an integer, year, bit, enum or set column."""
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
    """Return how many bits a BIT column has."""
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
        # Nearly all integers have this flag; they are read without a call between.
        if at < len(data) and data[at] == 8:
            raw, at = values.read_uvarint(data, at + 1)
            value = (raw >> 1) ^ -(raw & 1)
        else:
            value, at = read_int(data, at)
        if not low <= value <= high:
            raise damaged(f"{value} is not in {low}..{high}")
        return value, at

    return decode


def integer_field(column: ColumnInfo) -> Field:
    """Compile an integer column, signed or unsigned."""
    low, high = integer_range(column)
    datum = values.uint_datum if column.is_unsigned else values.int_datum
    # Most numbers in most tables are small: a look-up costs a third of building the bytes.
    small = {number: datum(number) for number in _SMALL if low <= number <= high}

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
    """Compile a YEAR column."""

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


def enum_field(column: ColumnInfo) -> Field:
    """Compile an ENUM column; it takes names and numbers, and 0 is the empty name."""
    numbers = {name: i for i, name in reversed(list(enumerate(column.elems, 1)))}
    numbers[""] = numbers.get("", 0)
    folded = {name.lower(): i for name, i in reversed(numbers.items())}
    names = ("", *column.elems)

    def encode(value: object) -> bytes:
        if isinstance(value, str):
            number = numbers.get(value, folded.get(value.lower(), -1))
        else:
            number = as_int(column, value)
        if not 0 <= number < len(names):
            raise refused(column, value, f"the column takes {', '.join(column.elems)}")
        return values.uint_datum(number)

    store = _ranged_reader(*integer_range(column))

    def decode(data: bytes, at: int) -> tuple[object, int]:
        number, at = store(data, at)
        return names[number] if number < len(names) else "", at

    return Field(encode, decode, store)


def set_field(column: ColumnInfo) -> Field:
    """Compile a SET column; a mask with bits that no member has is malformed."""
    bits = {name: 1 << i for i, name in enumerate(column.elems)}
    folded = {name.lower(): bit for name, bit in bits.items()}
    low, high = integer_range(column)

    def encode(value: object) -> bytes:
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

    def decode(data: bytes, at: int) -> tuple[object, int]:
        mask, at = store(data, at)
        return ",".join(name for name, bit in bits.items() if mask & bit), at

    return Field(encode, decode, store)
